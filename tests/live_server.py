"""The real HTTP server over the fake runtime, in a thread of the test process, so that a test sees both sides."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import uvicorn

from engine.server import app
from tests.fake_runtime import FakeRuntime, Knobs


@dataclass(frozen=True)
class Live:
    """A running server: ``http`` talks to it, ``knobs`` and ``server`` are its inside."""

    url: str
    http: httpx.Client
    knobs: Knobs
    server: app.Server


@contextmanager
def live_server(knobs: Knobs | None = None, *, wait_ready: bool = True) -> Iterator[Live]:
    knobs = knobs or Knobs()
    server = app.build(lambda on_progress: FakeRuntime(knobs, on_progress), "fake")
    sock = app.bind(0)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    config = uvicorn.Config(server.app, log_level="error", lifespan="on", timeout_graceful_shutdown=1, ws="none")
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        with httpx.Client(base_url=url, timeout=20, trust_env=False) as http:
            eventually(lambda: http.get("/healthz").status_code == 200)
            if wait_ready:
                eventually(lambda: http.get("/readyz").status_code == 200)
            yield Live(url, http, knobs, server)
    finally:
        if knobs.gate is not None:
            knobs.gate.set()
        server.queue.close()
        running.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server did not stop"


def eventually(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Wait until ``condition`` holds; an AssertionError after ``timeout_s``."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            if condition():
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline_s, "the condition never came true"
        time.sleep(0.01)


def scenario(max_tokens: int = 3, num_requests: int = 1, **fields: object) -> dict:
    """A small scenario as JSON."""
    requests = [{"prompt": f"hello {i}", "max_tokens": max_tokens} for i in range(num_requests)]
    return {"requests": requests, **fields}
