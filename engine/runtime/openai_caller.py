"""One request at a time to a server that speaks OpenAI's API: which model, which fields it takes, the events it sends.

It decides how a scenario's request becomes a body and turns whatever a server does wrong into one sentence with its
address. An answer that is not in OpenAI's form is never passed on: it may be any page of the network. It keeps no time
(``engine.runtime.outside`` does) and follows no redirect.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from engine.lab.scenario import RequestSpec, ScenarioError, ServerTarget

CONNECT_TIMEOUT_S = 5.0
SILENCE_TIMEOUT_S = 60.0  # between two pieces
MOST_ERROR_CHARACTERS = 200
MOST_LINE_CHARACTERS = 1_000_000

# Fields that not every server takes; tried together first, then fewer. Usage gives the server's own token counts.
_OPTIONAL: tuple[dict[str, Any], ...] = (
    {"ignore_eos": True, "stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": True}},
    {"ignore_eos": True},
    {},
)


class ServerError(ScenarioError):
    """The server cannot be used, in one sentence with its address."""


def trouble(target: ServerTarget, error: httpx.HTTPError) -> str:
    """What a broken connection means, in one sentence. Pure."""
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return f"nothing answers at {target.url}; start the server there, or correct the address"
    if isinstance(error, httpx.TimeoutException):
        return f"{target.url} sent nothing for {SILENCE_TIMEOUT_S:.0f} s; look whether the server is overloaded"
    return f"the connection to {target.url} broke ({type(error).__name__}); look at the server's log and try again"


async def find_model(client: httpx.AsyncClient, target: ServerTarget) -> tuple[str, str]:
    """The model to ask for and what the server calls itself. Raises: ServerError, httpx.HTTPError."""
    response = await client.get("/v1/models")
    if response.status_code != 200:
        raise ServerError(
            f"{target.url}/v1/models answered {response.status_code}{_said(response.text)}; "
            "the address must be that of a server with OpenAI's API",
            "server.url",
        )
    try:
        listed = [entry for entry in response.json()["data"] if isinstance(entry.get("id"), str)]
    except (ValueError, KeyError, TypeError, AttributeError):
        listed = []
    names = [entry["id"] for entry in listed]
    if not names:
        raise ServerError(f"{target.url}/v1/models lists no model; load one in that server", "server.url")
    if target.model is not None and target.model not in names:
        shown = ", ".join(names[:8])[:300]
        raise ServerError(f"model {target.model[:80]!r} is not at {target.url}; it has: {shown}", "server.model")
    model = target.model or names[0]
    owner = next((entry.get("owned_by") for entry in listed if entry["id"] == model), None)
    return model, str(owner or response.headers.get("server") or "unknown")[:80]


def _said(body: str) -> str:
    """The message of an answer in OpenAI's form. Anything else is not passed on: it may be any page of the network."""
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        error = json.loads(body)["error"]
        message = error if isinstance(error, str) else error["message"]
        return f" ({str(message)[:MOST_ERROR_CHARACTERS]})"
    return ""


@dataclass(frozen=True)
class Caller:
    """How this server is asked. ``optional`` holds the fields it takes besides the usual ones."""

    client: httpx.AsyncClient
    target: ServerTarget
    model: str
    optional: Mapping[str, Any] = field(default_factory=dict)

    def body(self, spec: RequestSpec) -> dict[str, Any]:
        chat = self.target.api == "chat"
        asked = {"messages": [{"role": "user", "content": spec.prompt}]} if chat else {"prompt": spec.prompt}
        given = {"temperature": spec.temperature, "max_tokens": spec.max_tokens, "stream": True, "model": self.model}
        if spec.top_p < 1:
            given["top_p"] = spec.top_p
        if spec.seed is not None:
            given["seed"] = spec.seed
        if spec.stop:
            given["stop"] = list(spec.stop)
        extra = {k: v for k, v in self.optional.items() if k != "ignore_eos" or spec.ignore_eos}
        return {**asked, **given, **extra}

    async def stream(self, spec: RequestSpec) -> AsyncIterator[dict[str, Any]]:
        """The events of one streamed answer. Raises: ServerError, httpx.HTTPError."""
        path = "/v1/chat/completions" if self.target.api == "chat" else "/v1/completions"
        async with self.client.stream("POST", path, json=self.body(spec)) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode("utf-8", "replace")
                raise _Refused(response.status_code, f"{self.target.url}{path} answered {response.status_code}", text)
            async for line in response.aiter_lines():
                data = line.removeprefix("data:").strip()
                if not line.startswith("data:") or data == "[DONE]":
                    continue
                try:
                    event = json.loads(data[:MOST_LINE_CHARACTERS])
                except ValueError:
                    event = None
                if not isinstance(event, dict):
                    raise ServerError(f"{self.target.url}{path} sent an event that is not JSON", "server.url")
                if "error" in event:
                    raise ServerError(f"{self.target.url}{path} broke off{_said(data)}", "server.url")
                yield event


class _Refused(ServerError):
    def __init__(self, status: int, what: str, body: str) -> None:
        super().__init__(f"{what}{_said(body)}", "server.url")
        self.status = status


async def warm_up(caller: Caller, spec: RequestSpec) -> Caller:
    """One short request, unmeasured. Returns the caller with the optional fields that the server takes."""
    short = spec.model_copy(
        update={"max_tokens": 2, "prompt": "Hello"}
    )  # not its text, which a prefix cache would keep
    for optional in _OPTIONAL:
        asking = replace(caller, optional=optional)
        try:
            async for _ in asking.stream(short):
                pass
        except _Refused as refused:
            if refused.status in (400, 422) and optional:
                continue
            raise
        return asking
    raise AssertionError("unreachable")
