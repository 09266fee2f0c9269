"""Another server watched from outside: the scenario's requests go there over HTTP, and every piece that comes is timed.

It decides how a workload is sent (an open loop: each request when the scenario says, whatever the server has done) and
what counts as a token's moment (the arrival of the piece that carries it, so network and server's HTTP are in it). It
knows nothing of the server's inside and follows no redirect. One short request goes ahead, unmeasured: it wakes the
server up and finds out which of the optional fields it takes. The API is OpenAI's, as vLLM, SGLang and llama.cpp speak
it; the key, if one is needed, is read from the environment and stands in no record.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from engine.lab.observed import Seen, observed_run
from engine.lab.records import FinishReason, Run
from engine.lab.scenario import RequestSpec, Scenario, ServerTarget
from engine.runtime.openai_caller import (
    CONNECT_TIMEOUT_S,
    SILENCE_TIMEOUT_S,
    Caller,
    ServerError,
    find_model,
    trouble,
    warm_up,
)

KEY_VARIABLE = "TOKEN_BY_TOKEN_SERVER_KEY"
OWN_PORT_VARIABLE = "TOKEN_BY_TOKEN_SERVING_PORT"  # set by the engine's server for its own process
WHOLE_TIMEOUT_S = 180.0
LOOK_S = 0.1  # how often it is asked whether to stop

OnText = Callable[[Mapping[str, str]], None]


class Stopped(Exception):
    """The run was stopped before its end."""


@dataclass
class Answer:
    """What came back of one request so far."""

    sent_s: float = 0.0
    token_times_s: list[float] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Observation:
    """A finished run with its texts, as ``engine.runtime.lab.RunResult``."""

    run: Run
    texts: dict[str, str]
    pieces: dict[str, list[str]]


def observe(
    scenario: Scenario,
    run_id: str,
    on_text: OnText = lambda deltas: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Observation:
    """Send the workload to ``scenario.server`` and time it. Raises: ServerError, Stopped.

    ``on_text`` gets each new piece of text by request id, as it comes.
    """
    assert scenario.server is not None
    _refuse_itself(scenario.server)
    return asyncio.run(_observe(scenario, scenario.server, run_id, on_text, should_stop))


def _refuse_itself(target: ServerTarget) -> None:
    """The engine that sends this workload is busy with it: its own API would answer only after the end."""
    parts = urlsplit(target.url)
    here = parts.hostname in ("127.0.0.1", "localhost", "::1", "0.0.0.0")
    if here and str(parts.port) == os.environ.get(OWN_PORT_VARIABLE):
        raise ServerError(
            f"{target.url} is this engine itself, which is busy with this very run; "
            f"start a second one with `python -m engine serve --port {parts.port + 1}` and give its address",
            "server.url",
        )


async def _observe(
    scenario: Scenario, target: ServerTarget, run_id: str, on_text: OnText, should_stop: Callable[[], bool]
) -> Observation:
    key = os.environ.get(KEY_VARIABLE)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = httpx.Timeout(SILENCE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
    limits = httpx.Limits(max_connections=len(scenario.requests) + 1)
    try:
        async with httpx.AsyncClient(
            base_url=target.url, headers=headers, timeout=timeout, limits=limits, follow_redirects=False
        ) as client:
            model, server = await find_model(client, target)
            caller = await warm_up(Caller(client, target, model), scenario.requests[0])
            answers = {name: Answer() for name in scenario.request_ids()}
            await _until_stopped(_send_all(caller, scenario, answers, on_text), should_stop)
    except httpx.HTTPError as error:
        raise ServerError(trouble(target, error), "server.url") from None
    except TimeoutError:
        raise ServerError(
            f"{target.url} had not answered everything after {WHOLE_TIMEOUT_S:.0f} s; send fewer or shorter requests",
            "server.url",
        ) from None
    return _result(scenario, run_id, server, model, answers, caller)


async def _until_stopped(work: Any, should_stop: Callable[[], bool]) -> None:
    """Await the work, looking now and then whether to stop. Raises: Stopped, TimeoutError, what the work raises."""
    task = asyncio.ensure_future(work)
    end_s = time.monotonic() + WHOLE_TIMEOUT_S
    try:
        while not task.done():
            await asyncio.wait([task], timeout=LOOK_S)
            if not task.done() and should_stop():
                raise Stopped
            if not task.done() and time.monotonic() > end_s:
                raise TimeoutError
        task.result()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task


async def _send_all(caller: Caller, scenario: Scenario, answers: Mapping[str, Answer], on_text: OnText) -> None:
    start_s = time.perf_counter()

    async def one(name: str, spec: RequestSpec) -> None:
        await asyncio.sleep(max(0.0, spec.arrival_s - (time.perf_counter() - start_s)))
        answer = answers[name]
        answer.sent_s = time.perf_counter() - start_s
        async for event in caller.stream(spec):
            _take(answer, event, time.perf_counter() - start_s, lambda text: on_text({name: text}))
        if not answer.token_times_s and answer.finish_reason is None:
            raise ServerError(f"{scenario.server.url} ended the answer to {name} without a word", "server.url")

    workload = zip(scenario.request_ids(), scenario.requests, strict=True)
    ends = await asyncio.gather(*(_error_of(one(name, spec)) for name, spec in workload))
    errors = [error for error in ends if error is not None]
    if errors:
        raise errors[0]


async def _error_of(work: Any) -> Exception | None:
    """Awaits the work to its end: one request that fails must not leave the others running."""
    try:
        await work
    except (ServerError, httpx.HTTPError) as error:
        return error
    return None


def _take(answer: Answer, event: Mapping[str, Any], now_s: float, say: Callable[[str], None]) -> None:
    """Effect: a piece of text with its moment, the reason of the end, the counts: whatever the event holds."""
    if isinstance(event.get("usage"), Mapping):
        answer.usage = event["usage"]
    for choice in event.get("choices") or []:
        delta = choice.get("delta") or {}
        # A model that thinks aloud sends those tokens under another name; they take time like any other.
        text = choice.get("text") or delta.get("content") or delta.get("reasoning_content") or ""
        if text:
            answer.token_times_s.append(now_s)
            answer.pieces.append(text)
            say(text)
        if choice.get("finish_reason"):
            answer.finish_reason = "length" if choice["finish_reason"] == "length" else "stop"


def _result(
    scenario: Scenario, run_id: str, server: str, model: str, answers: Mapping[str, Answer], caller: Caller
) -> Observation:
    ignored = any(spec.ignore_eos for spec in scenario.requests) and "ignore_eos" not in caller.optional
    seen = [
        Seen(
            request_id=name,
            sent_s=answer.sent_s,
            token_times_s=tuple(answer.token_times_s),
            finish_reason=answer.finish_reason or "stop",
            num_prompt_tokens=_count(answer.usage.get("prompt_tokens")),
            num_output_tokens=_count(answer.usage.get("completion_tokens"), len(answer.token_times_s)),
        )
        for name, answer in answers.items()
    ]
    run = observed_run(
        run_id,
        source=caller.target.url,
        server=server,
        model=model,
        seen=seen,
        scenario=scenario.model_dump(mode="json"),
        lacks=["ignore_eos"] if ignored else [],
        versions={"httpx": httpx.__version__},
    )
    pieces = {name: answer.pieces for name, answer in answers.items()}
    return Observation(run, {name: "".join(parts) for name, parts in pieces.items()}, pieces)


def _count(value: object, least: int = 0) -> int | None:
    """A server's count; fewer tokens than pieces cannot be. None where it is no count. Pure."""
    known = isinstance(value, int) and not isinstance(value, bool) and value >= least
    return value if known else None
