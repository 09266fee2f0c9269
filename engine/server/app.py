"""The server as one Starlette app, and ``serve()``, which runs it on loopback until it is told to stop.

It joins the parts and owns the life of the worker thread; it decides nothing about jobs. The port answers before the
model is loaded (``/readyz`` tells how far loading is), so nothing here may import torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.server import wire
from engine.server.jobs import JobQueue
from engine.server.lab_api import lab_routes
from engine.server.metrics import Metrics
from engine.server.openai_api import openai_routes
from engine.server.parent import watch_parent
from engine.server.protocols import RuntimeFactory
from engine.server.worker import DeviceWorker, lab_runtime

HOST = "127.0.0.1"
EXPIRE_EVERY_S = 1.0
STOP_TIMEOUT_S = 3.0


class PortTaken(OSError):
    """The port cannot be opened. The message is one sentence."""


@dataclass(frozen=True)
class Server:
    """The parts of one engine server. ``instance`` is new with every start, so that clients notice a restart."""

    instance: str
    queue: JobQueue
    worker: DeviceWorker
    metrics: Metrics
    app: Starlette


def build(runtime_factory: RuntimeFactory, model: str, on_fatal: Callable[[], None] = lambda: None) -> Server:
    """Join the parts. Effect: none until the app's lifespan starts the worker."""
    instance = secrets.token_hex(6)
    queue = JobQueue(instance)
    metrics = Metrics(queue.counts)
    worker = DeviceWorker(queue, metrics, runtime_factory, model, on_fatal)

    async def healthz(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> Response:
        now = worker.readiness
        is_ready = now.state == "ready"
        body = {"ready": is_ready, "state": now.state, "stage": now.stage, "fraction": now.fraction}
        return JSONResponse({**body, "message": now.message, "instance": instance}, 200 if is_ready else 503)

    def exposition(request: Request) -> Response:
        return Response(metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def expire_leases() -> None:
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            queue.expire()

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        worker.start()
        expiring = asyncio.create_task(expire_leases())
        try:
            yield
        finally:
            expiring.cancel()
            await asyncio.to_thread(worker.stop, STOP_TIMEOUT_S)

    app = Starlette(
        routes=[
            Route("/healthz", healthz, methods=["GET"]),
            Route("/readyz", readyz, methods=["GET"]),
            Route("/metrics", exposition, methods=["GET"]),
            *lab_routes(queue, worker),
            *openai_routes(queue, worker),
        ],
        middleware=[Middleware(wire.LoopbackOnly)],
        exception_handlers={
            wire.ApiError: wire.on_api_error,
            HTTPException: wire.on_http_error,
            ClientDisconnect: wire.on_gone,
            Exception: wire.on_bug,
        },
        lifespan=lifespan,
    )
    return Server(instance, queue, worker, metrics, app)


class _Uvicorn(uvicorn.Server):
    """Stops without re-raising the signal, and ends open streams at once instead of waiting for their clients."""

    def __init__(self, config: uvicorn.Config, on_exit: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_exit = on_exit

    def handle_exit(self, sig: int, frame: object) -> None:
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_exit()
        await super().shutdown(sockets)


def bind(port: int) -> socket.socket:
    """Open the loopback port (0: any free one). Raises: PortTaken."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if os.name == "posix":  # elsewhere this option would let two servers share the port
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((HOST, port))
        sock.listen(128)
    except OSError as error:
        sock.close()
        reason = error.strerror or str(error)
        raise PortTaken(f"port {port} on {HOST} cannot be opened ({reason}); choose another with --port") from None
    return sock


def serve(
    sock: socket.socket, model: str, runtime_factory: RuntimeFactory | None = None, *, exit_with_parent: bool = False
) -> int:
    """Serve on an open socket until a signal, the parent's end or a lost device. Returns the exit code.

    Effect: blocks the main thread. Raises nothing a user causes.
    """
    lost_device: list[bool] = []

    def on_fatal() -> None:
        lost_device.append(True)
        running.should_exit = True

    server = build(runtime_factory or lab_runtime(model), model, on_fatal)
    config = uvicorn.Config(
        server.app,
        log_level="warning",
        access_log=False,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=2,
        timeout_keep_alive=75,  # longer than any page's polling interval, so that polls reuse their connection
    )
    running = _Uvicorn(config, on_exit=server.queue.close)

    def stop() -> None:
        running.should_exit = True

    if exit_with_parent:
        watch_parent(stop)
    running.run(sockets=[sock])
    code = 1 if lost_device else 0
    if not server.worker.stop(0):
        os._exit(code)  # the thread is inside torch (loading, a long step): a normal exit would tear that apart
    return code
