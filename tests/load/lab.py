"""The whole lab with its real engine, for a load test: own home, own ports, stopped at the end."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from engine.lab.scenario import Scenario
from engine.server.client import EngineClient
from engine.settings import settings
from lessons.store import Store

ROOT = Path(__file__).resolve().parents[2]
START_S = 180.0


@dataclass(frozen=True)
class Lab:
    """Addresses of a running lab, and its database."""

    port: int
    engine_port: int
    pid: int
    store: Store

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ws(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def engine(self) -> EngineClient:
        return EngineClient(f"http://127.0.0.1:{self.engine_port}")


@contextlib.contextmanager
def running_lab() -> Iterator[Lab]:
    """Effect: starts the lab in a folder of its own and stops it. Raises: RuntimeError if it does not get ready."""
    with tempfile.TemporaryDirectory(prefix="load-") as folder:
        home = Path(folder)
        for name in ("models", "kernels", "ceilings.json"):
            if (settings().home / name).exists():
                (home / name).symlink_to(settings().home / name)
        port, engine_port = _free_port(), _free_port()
        kept = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "TOKEN_BY_TOKEN_ENGINE_URL")}
        env = kept | {"TOKEN_BY_TOKEN_HOME": str(home), "TOKEN_BY_TOKEN_ENGINE_PORT": str(engine_port)}
        with (home / "log.txt").open("w") as log:
            command = [sys.executable, "app.py", "--port", str(port)]
            process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log)
            try:
                _wait_ready(f"http://127.0.0.1:{port}/readyz", process)
                yield Lab(port, engine_port, process.pid, Store(f"sqlite:///{home / 'lab.sqlite3'}"))
            finally:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()


def run_once(lab: Lab, scenario: Scenario, client_id: str = "load-test-run"):
    """Run a scenario to its end. Returns (Run, texts)."""
    with lab.engine() as engine:
        run_id = engine.submit(scenario, client_id).run_id
        while engine.follow(run_id).state not in ("done", "failed", "cancelled"):
            time.sleep(0.2)
        return engine.fetch_run(run_id), engine.fetch_texts(run_id)


def _wait_ready(url: str, process: subprocess.Popen) -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise RuntimeError("the lab ended before it was ready")
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, timeout=5, trust_env=False).status_code == 200:
                return
        time.sleep(0.2)
    raise RuntimeError(f"the lab was not ready after {START_S:.0f} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
