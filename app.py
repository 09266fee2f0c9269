"""Launcher: one ASGI app that serves the pages and keeps the engine server running beside them. No page code here.

``python app.py [--port N]`` and ``streamlit run app.py`` both work. Navigation lives in ``pages/_main.py``: a script
entry beside a ``pages`` folder would fall into Streamlit's old multi-page mode. torch is never imported here.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import secrets
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from pages._ui.identity import LearnerCookie

DEFAULT_PORT = 8501
NUM_PORTS_TRIED = 20
log = logging.getLogger("token_by_token")


@contextlib.asynccontextmanager
async def lifespan(app: st.App) -> AsyncIterator[dict[str, object]]:
    """The engine lives exactly as long as the app. A lab whose engine cannot start still serves its lessons."""
    from engine.server.supervisor import EngineSupervisor

    engine = EngineSupervisor()
    try:
        await engine.start()
    except OSError as error:
        log.error("the engine could not be started: %s", error)
    try:
        yield {"engine": engine}
    finally:
        await engine.stop()


async def healthz(request: Request) -> JSONResponse:
    """The pages are served."""
    return JSONResponse({"status": "ok"})


def readyz(request: Request) -> JSONResponse:
    """Whether a run could start now. A plain function: Starlette asks the engine from a pool thread."""
    from engine.server.client import EngineClient, EngineRefused, EngineUnavailable

    try:
        with EngineClient.default() as client:
            answer = client.ready()
    except (EngineUnavailable, EngineRefused) as error:
        return JSONResponse({"ready": False, "state": "down", "message": str(error)}, 503)
    return JSONResponse(answer.model_dump(), 200 if answer.ready else 503)


def on_script_error(error: Exception) -> bool:
    """A bug in a page: the learner gets a sentence with a number, the log gets the rest under the same number."""
    from pages._ui.i18n import t

    number = secrets.token_hex(4)
    log.error("page error %s", number, exc_info=error)
    st.error(t("common.script_error", id=number), icon=":material/bug_report:")
    return True


app = st.App(
    Path(__file__).resolve().parent / "pages" / "_main.py",
    lifespan=lifespan,
    routes=[Route("/healthz", healthz), Route("/readyz", readyz)],
    middleware=[Middleware(LearnerCookie)],
    on_script_error=on_script_error,
)


def _free_port(host: str) -> int:
    """The default port, or the next one that is free, so that a second lab does not stop at the first one's port."""
    for port in range(DEFAULT_PORT, DEFAULT_PORT + NUM_PORTS_TRIED):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock, contextlib.suppress(OSError):
            if sys.platform != "win32":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            return port
    return DEFAULT_PORT


def main() -> None:
    """Effect: serve until interrupted."""
    parser = argparse.ArgumentParser(description="Token by Token: the lab, its engine included.")
    parser.add_argument("--port", type=int, help=f"port of the pages (default: the first free one from {DEFAULT_PORT})")
    parser.add_argument("--address", default="127.0.0.1", help="address to listen on (default: this machine only)")
    arguments = parser.parse_args()
    if arguments.port is not None and not 1 <= arguments.port <= 65_535:
        parser.error(f"--port is {arguments.port}; allowed: 1 to 65535")
    port = arguments.port or _free_port(arguments.address)
    app.run(config={"server.port": port, "server.address": arguments.address})


if __name__ == "__main__":
    main()
