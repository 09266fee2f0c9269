"""The learner's cookie: set once, on pages only, unreadable for scripts, and never trusted when it is malformed."""

from __future__ import annotations

import asyncio
from http.cookies import SimpleCookie

import pytest

from pages._ui.identity import COOKIE, LearnerCookie, new_sid, valid_sid


def ask(
    cookie: str | None = None,
    kind: str = "text/html; charset=utf-8",
    status: int = 200,
    scheme: str = "http",
    accept: str = "",
) -> list[str]:
    """The set-cookie headers of one request through the middleware."""
    sent: list[dict] = []

    async def page(scope, receive, send) -> None:
        headers = [(b"content-type", kind.encode())] if kind else []
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def send(message) -> None:
        sent.append(message)

    headers = [(b"cookie", cookie.encode("latin-1"))] if cookie is not None else []
    headers += [(b"accept", accept.encode())] if accept else []
    scope = {"type": "http", "scheme": scheme, "headers": headers}
    asyncio.run(LearnerCookie(page)(scope, None, send))
    return [value.decode() for name, value in sent[0]["headers"] if name == b"set-cookie"]


def test_a_new_browser_gets_a_cookie_that_scripts_cannot_read() -> None:
    (header,) = ask()
    assert valid_sid(SimpleCookie(header)[COOKIE].value)
    assert "HttpOnly" in header
    assert "SameSite=Lax" in header
    assert "Secure" not in header
    assert "Secure" in ask(scheme="https")[0]


def test_two_browsers_get_different_cookies() -> None:
    assert ask() != ask()


def test_a_known_browser_keeps_its_cookie() -> None:
    assert ask(f"{COOKIE}={new_sid()}; other=1") == []


@pytest.mark.parametrize("value", ["", "short", "x" * 65, "a b" * 10, "é" * 24, "'; DROP TABLE learner; --xxxxxxx"])
def test_a_malformed_cookie_is_replaced(value: str) -> None:
    assert not valid_sid(value)
    assert len(ask(f"{COOKIE}={value}")) == 1


def test_only_pages_carry_it() -> None:
    assert ask(kind="application/javascript") == []
    assert ask(kind="", status=304, accept="*/*") == []
    assert len(ask(kind="", status=304, accept="text/html,*/*")) == 1


def test_websockets_pass_untouched() -> None:
    seen = []

    async def inner(scope, receive, send) -> None:
        seen.append((scope, send))

    async def send(message) -> None:
        raise AssertionError("nothing is sent")

    scope = {"type": "websocket", "headers": []}
    asyncio.run(LearnerCookie(inner)(scope, None, send))
    assert seen == [(scope, send)]
