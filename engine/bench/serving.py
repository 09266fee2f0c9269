"""How soon a person gets an answer: the server started as the lab starts it, ready, and its first token over HTTP."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

from engine.bench.plan import FIRST_TEXT
from engine.bench.results import BenchError
from engine.bench.systems import ROOT, ours_environment

PATIENCE_S = 120.0
POLL_S = 0.02


def start_times(num_threads: int) -> dict[str, float]:
    """Seconds from starting ``engine serve`` to ready, and from asking to the first token. Raises: BenchError."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    begin_s = time.perf_counter()
    with _server(port, num_threads) as url:
        while not _is_ready(url):
            if time.perf_counter() - begin_s > PATIENCE_S:
                raise BenchError(f"the server was not ready after {PATIENCE_S:.0f} s; start it by hand to see why")
            time.sleep(POLL_S)
        ready_s = time.perf_counter() - begin_s
        return {"server ready": ready_s, "server first token": _first_token_s(url)}


@contextlib.contextmanager
def _server(port: int, num_threads: int) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "engine", "serve", "--port", str(port)],
        cwd=ROOT,
        env=ours_environment(num_threads),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def _first_token_s(url: str) -> float:
    """The first piece of text of a streamed completion. Raises: BenchError."""
    body = {"model": "default", "prompt": FIRST_TEXT, "max_tokens": 4, "temperature": 0, "stream": True}
    with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as answer:
        body["model"] = json.load(answer)["data"][0]["id"]
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    begin_s = time.perf_counter()
    with urllib.request.urlopen(request, timeout=60) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                return time.perf_counter() - begin_s
    raise BenchError("the server sent no token; start it by hand to see why")
