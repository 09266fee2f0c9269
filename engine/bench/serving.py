"""How soon a person gets an answer: the server started as the lab starts it, ready, and its first token over HTTP."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from engine.bench.plan import FIRST_TEXT
from engine.bench.results import BenchError
from engine.bench.systems import ROOT, ours_environment
from engine.lab.scenario import Scenario
from engine.server.client import EngineClient, EngineRefused, EngineUnavailable
from engine.settings import settings

PATIENCE_S = 120.0
POLL_S = 0.02


def start_times(num_threads: int) -> dict[str, float]:
    """Seconds from starting ``engine serve`` to ready, and from asking to the first token. Raises: BenchError."""
    begin_s = time.perf_counter()
    with _server(num_threads) as url:
        _wait(lambda: _is_ready(url), "ready")
        ready_s = time.perf_counter() - begin_s
        first_token_s = _first_token_s(url)
        _wait(lambda: _backend(url) == "compiled", "with its C++ kernels")
        return {
            "server ready": ready_s,
            "server first token": first_token_s,
            "C++ kernels, later start": time.perf_counter() - begin_s,
        }


def first_start_s(num_threads: int) -> float:
    """Seconds until the C++ kernels run where nothing was compiled before. Raises: BenchError."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "models").symlink_to(settings().models_dir, target_is_directory=True)
        begin_s = time.perf_counter()
        with _server(num_threads, folder) as url:
            _wait(lambda: _backend(url) == "compiled", "with its C++ kernels")
            return time.perf_counter() - begin_s


@contextlib.contextmanager
def _server(num_threads: int, home: str | None = None) -> Iterator[str]:
    """The server on a free port of loopback; its address. Effect: it is stopped at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "engine", "serve", "--port", str(port)],
        cwd=ROOT,
        env=ours_environment(num_threads) | ({"TOKEN_BY_TOKEN_HOME": home} if home else {}),
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


def _wait(is_so: Callable[[], bool], what: str) -> None:
    """Raises: BenchError when it does not come true."""
    begin_s = time.perf_counter()
    while not is_so():
        if time.perf_counter() - begin_s > PATIENCE_S:
            raise BenchError(f"the server was not {what} after {PATIENCE_S:.0f} s; start it by hand to see why")
        time.sleep(POLL_S)


def _backend(url: str) -> str:
    """What a Run that is made now says it was computed with: eager (torch) or compiled (the C++ kernels)."""
    scenario = Scenario.parse({"requests": [{"prompt": "Hello", "max_tokens": 2}]})
    try:
        with EngineClient(url) as client:
            run_id = client.submit(scenario, "bench").run_id
            while client.follow(run_id).state in ("queued", "running"):
                time.sleep(POLL_S)
            return client.fetch_run(run_id).steps[0].backend
    except (EngineUnavailable, EngineRefused):
        return ""


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
