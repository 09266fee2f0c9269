"""What every route of the server shares: reading a JSON body safely, the two error shapes, and who may call.

The server listens on loopback, but any web page in a browser on the same machine can reach loopback too. So requests
with a foreign Host (DNS rebinding) or a foreign Origin (a form or script on another site) are refused here.
"""

from __future__ import annotations

import json
import logging
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger("engine.server")

MAX_BODY_BYTES = 1_000_000
LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})


class ApiError(Exception):
    """An answer that is not 200. ``code`` and ``param`` are OpenAI's names; ``param`` is the lab's field."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None, retry_after_s: int = 0
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.headers = {"Retry-After": str(retry_after_s)} if retry_after_s else None


async def read_json(request: Request, *, status: int = 400) -> dict:
    """The body as a JSON object of at most MAX_BODY_BYTES. Raises: ApiError(413 or ``status``), ClientDisconnect."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise ApiError(413, f"the request body is larger than {MAX_BODY_BYTES} bytes; send a shorter one")
    try:
        data = json.loads(body, parse_constant=_refuse_constant)
        # A lone surrogate is legal JSON but no text: no tokenizer and no Run file could hold it.
        json.dumps(data, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise ApiError(status, "the request body holds half a surrogate pair, which is no character") from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise ApiError(status, f"the request body is not JSON: {reason}") from None
    if not isinstance(data, dict):
        raise ApiError(status, f"the request body is a JSON {type(data).__name__}; send an object")
    return data


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def error_response(request: Request, error: ApiError) -> JSONResponse:
    """The error in the shape of the API it was asked through: OpenAI's under /v1, the lab's elsewhere. Pure."""
    if request.url.path.startswith("/v1/"):
        kind = {429: "rate_limit_error", 404: "not_found_error"}.get(error.status, "invalid_request_error")
        if error.status >= 500:
            kind = "server_error"
        if error.code == "model_not_found":
            kind = "invalid_request_error"
        body = {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    else:
        body = {"message": error.message, "field": error.param or ""}
        if error.code:
            body["code"] = error.code
    return JSONResponse({"error": body}, error.status, headers=error.headers)


async def on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(request, error)


async def on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = {404: f"there is nothing at {request.url.path}", 405: f"{request.method} is not allowed here"}
    answer = ApiError(error.status_code, message.get(error.status_code, error.detail))
    response = error_response(request, answer)
    response.headers.update(error.headers or {})
    return response


async def on_bug(request: Request, error: Exception) -> Response:
    log.error("unexpected error in %s %s", request.method, request.url.path, exc_info=error)
    return error_response(request, ApiError(500, f"the engine failed on this request ({type(error).__name__})"))


async def on_gone(request: Request, error: Exception) -> Response:
    assert isinstance(error, ClientDisconnect)
    return Response(status_code=499)  # nobody reads it


class LoopbackOnly:
    """Refuses requests whose Host or Origin is not this machine. Plain ASGI, so that streams pass untouched."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            host = _host_name(b"//" + headers.get(b"host", b""))
            origin = headers.get(b"origin")
            if host not in LOOPBACK_NAMES or (origin is not None and _host_name(origin) not in LOOPBACK_NAMES):
                error = ApiError(403, "this engine answers programs on its own machine only")
                await error_response(Request(scope), error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _host_name(url: bytes) -> str | None:
    try:
        return urlsplit(url.decode("latin-1")).hostname
    except ValueError:
        return None
