"""Keeps one engine server running beside the pages: starts it, watches it, starts it again when it dies.

Used by the web app's lifespan; asyncio, no torch. The engine is a child process that dies with this one
(``engine.server.parent``). The pages learn the address from the environment variable TOKEN_BY_TOKEN_ENGINE_URL, because
the wanted port may be taken. Invariant: at most one child at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from engine.server.client import ENGINE_URL_VARIABLE
from engine.settings import settings

log = logging.getLogger("engine.supervisor")

HOST = "127.0.0.1"
NUM_PORTS_TRIED = 50
FIRST_DELAYS_S = (0.0, 1.0, 2.0, 4.0, 8.0)
HEALTHY_AFTER_S = 30.0
POLL_S = 0.2
HEALTH_EVERY_S = 5.0
HUNG_AFTER_S = 60.0
STOP_TIMEOUT_S = 7.0


class EngineSupervisor:
    """``await start()`` returns when the process exists, not when it is ready: ask ``EngineClient.ready`` for that."""

    def __init__(self, command: Sequence[str] | None = None, port: int | None = None) -> None:
        self._command = tuple(command or (sys.executable, "-m", "engine", "serve", "--exit-with-parent"))
        self._wanted_port = port or settings().engine_port
        self._process: subprocess.Popen[bytes] | None = None
        self._watching: asyncio.Task[None] | None = None
        self.url = ""
        self.num_restarts = 0
        self.last_exit = ""  # why the engine was started again, one sentence, empty while it never was

    @property
    def pid(self) -> int | None:
        """Process id of the engine, None while there is none."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    async def start(self) -> None:
        """Effect: the engine process exists and is watched. Idempotent. Raises: OSError if no port is free."""
        if self._watching is not None:
            return
        self._spawn()
        self._watching = asyncio.create_task(self._watch(), name="engine supervisor")

    async def stop(self) -> None:
        """Effect: the engine process is gone, gently within STOP_TIMEOUT_S, else by force. Idempotent."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(_end, process)
        if os.environ.get(ENGINE_URL_VARIABLE) == self.url:
            os.environ.pop(ENGINE_URL_VARIABLE, None)

    def _spawn(self) -> None:
        port = free_port(self._wanted_port)
        self.url = f"http://{HOST}:{port}"
        # In this thread on purpose: Linux ties the child's life to the thread that started it.
        self._process = subprocess.Popen(
            [*self._command, "--port", str(port)],
            env=child_environment(),
            stdin=subprocess.PIPE,  # its end tells the child that this process is gone
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal reaches this process only, which then stops the child
        )
        os.environ[ENGINE_URL_VARIABLE] = self.url
        log.info("engine started at %s, process %d", self.url, self._process.pid)

    async def _watch(self) -> None:
        num_failures = 0
        while True:
            assert self._process is not None
            lifetime_s = await self._until_it_ends(self._process)
            if lifetime_s >= HEALTHY_AFTER_S:
                num_failures = 0
            delay_s = FIRST_DELAYS_S[min(num_failures, len(FIRST_DELAYS_S) - 1)]
            num_failures += 1
            self.last_exit = f"the engine ended {_how(self._process.returncode)} and was started again"
            log.warning("the engine ended %s; starting it again in %.0f s", _how(self._process.returncode), delay_s)
            await asyncio.sleep(delay_s)
            while True:
                try:
                    self._spawn()
                    break
                except OSError as error:
                    log.error("the engine could not be started again: %s", error)
                    await asyncio.sleep(FIRST_DELAYS_S[-1])
            self.num_restarts += 1

    async def _until_it_ends(self, process: subprocess.Popen[bytes]) -> float:
        """Wait for the process to end and return how long it lived, in seconds. Effect: a hung one is killed."""
        started_s = answered_s = asked_s = time.monotonic()
        async with httpx.AsyncClient(timeout=HEALTH_EVERY_S, trust_env=False, verify=False) as http:
            while process.poll() is None:
                await asyncio.sleep(POLL_S)
                if time.monotonic() - asked_s < HEALTH_EVERY_S:
                    continue
                with contextlib.suppress(httpx.HTTPError):
                    await http.get(f"{self.url}/healthz")
                    answered_s = time.monotonic()
                asked_s = time.monotonic()
                if asked_s - answered_s > HUNG_AFTER_S and process.poll() is None:
                    log.error("the engine has not answered for %.0f s; it is killed", HUNG_AFTER_S)
                    process.kill()
        if process.stdin is not None:
            process.stdin.close()
        return time.monotonic() - started_s


def free_port(wanted: int) -> int:
    """The first port from ``wanted`` on that can be opened on loopback. Raises: OSError if none of 50 can."""
    for port in range(wanted, min(wanted + NUM_PORTS_TRIED, 65_536)):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            if os.name == "posix":  # a port that waits out its last connection is free for a listener
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                sock.bind((HOST, port))
                return port
    raise OSError(f"no free port from {wanted} on; set TOKEN_BY_TOKEN_ENGINE_PORT to another number")


def child_environment() -> dict[str, str]:
    """The environment of the engine: this one's, able to import it, and without Triton's interpreter switch. Pure."""
    environment = dict(os.environ)
    root = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH"))))
    environment.pop("TRITON_INTERPRET", None)
    return environment


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _how(returncode: int | None) -> str:
    if returncode is not None and returncode < 0:
        with contextlib.suppress(ValueError):
            return f"by signal {signal.Signals(-returncode).name}"
    return f"with exit code {returncode}"
