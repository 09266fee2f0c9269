"""Who a browser is: a random cookie, set before the first page is drawn and readable by scripts of the server only.

The cookie names a learner without asking for anything; it is not authentication. A page script cannot set cookies, so
this is pure-ASGI middleware on the page response. It never touches websocket traffic, static files or bodies.
"""

from __future__ import annotations

import re
import secrets
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "token_by_token_sid"
_ONE_YEAR_S = 365 * 24 * 3600
_SID = re.compile(r"[A-Za-z0-9_-]{22,64}")


def valid_sid(value: object) -> bool:
    """Whether ``value`` has the form of an id made here. Pure."""
    return isinstance(value, str) and _SID.fullmatch(value) is not None


def new_sid() -> str:
    """A fresh id with 144 random bits."""
    return secrets.token_urlsafe(18)


class LearnerCookie:
    """ASGI middleware. Effect: an HTML response to a browser without a valid id carries a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or valid_sid(_cookie(scope)):
            await self.app(scope, receive, send)
            return

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                is_page = headers.get("content-type", "").startswith("text/html")
                # A cached page is only confirmed (304), without a content type; the cookie may be gone all the same.
                if is_page or (message["status"] == 304 and _asks_for_page(scope)):
                    secure = "; Secure" if scope.get("scheme") == "https" else ""
                    headers.append(
                        "set-cookie",
                        f"{COOKIE}={new_sid()}; Path=/; Max-Age={_ONE_YEAR_S}; HttpOnly; SameSite=Lax{secure}",
                    )
            await send(message)

        await self.app(scope, receive, send_with_cookie)


def _asks_for_page(scope: Scope) -> bool:
    return any(name == b"accept" and b"text/html" in value for name, value in scope.get("headers", ()))


def _cookie(scope: Scope) -> str | None:
    for name, value in scope.get("headers", ()):
        if name == b"cookie":
            try:
                morsel = SimpleCookie(value.decode("latin-1")).get(COOKIE)
            except CookieError:
                continue
            if morsel is not None:
                return morsel.value
    return None
