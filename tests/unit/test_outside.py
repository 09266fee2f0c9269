"""Another server watched from outside: a small server of the tests with known pauses, and every way it can fail."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from engine.lab.check import check_run
from engine.lab.latency import request_metrics
from engine.lab.metrics import run_metrics
from engine.lab.observed import gaps_s
from engine.lab.records import Run
from engine.lab.scenario import Scenario, ScenarioError
from engine.runtime.openai_caller import ServerError
from engine.runtime.outside import Stopped, observe
from engine.server.app import bind
from tests.live_server import eventually, live_server

RUN_ID = "run-0123456789ab"
PAUSE_S = 0.03


class Server:
    """Answers with ``max_tokens`` words, ``PAUSE_S`` before each. ``strict`` refuses fields it does not know."""

    def __init__(self) -> None:
        self.bodies: list[dict] = []
        self.strict = False
        self.models: Response = JSONResponse({"data": [{"id": "small", "owned_by": "tests"}, {"id": "large"}]})
        self.answer: Response | None = None
        self.break_off = False
        self.token: str | None = None

    def list_models(self, request: Request) -> Response:
        self.token = request.headers.get("authorization")
        return self.models

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        if self.strict and ("ignore_eos" in body or "stream_options" in body):
            return JSONResponse({"error": {"message": "unknown field"}}, 400)
        if self.answer is not None and len(self.bodies) > 1:
            return self.answer
        chat = request.url.path.endswith("chat/completions")
        return StreamingResponse(self.stream(body, chat), media_type="text/event-stream")

    async def stream(self, body: dict, chat: bool):
        def event(**fields: object) -> str:
            return f"data: {json.dumps(fields)}\n\n"

        if chat:
            yield event(choices=[{"delta": {"role": "assistant", "content": ""}}])
        for index in range(body["max_tokens"]):
            await asyncio.sleep(PAUSE_S)
            if self.break_off and index == 3:
                yield event(error={"message": "out of memory"})
                return
            text = {"delta": {"content": "word "}} if chat else {"text": "word "}
            last = index + 1 == body["max_tokens"]
            yield event(choices=[{**text, "finish_reason": "length" if last else None}])
        if "stream_options" in body:
            yield event(choices=[], usage={"prompt_tokens": 7, "completion_tokens": body["max_tokens"]})
        yield "data: [DONE]\n\n"


@contextmanager
def serving(server: Server) -> Iterator[str]:
    app = Starlette(
        routes=[
            Route("/v1/models", server.list_models),
            Route("/v1/completions", server.complete, methods=["POST"]),
            Route("/v1/chat/completions", server.complete, methods=["POST"]),
        ]
    )
    sock = bind(0)
    running = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        eventually(lambda: running.started)
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        running.should_exit = True
        thread.join(20)


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Server, str]]:
    server = Server()
    with serving(server) as url:
        yield server, url


@pytest.fixture
def target(shared: tuple[Server, str]) -> tuple[Server, str]:
    shared[0].__init__()
    return shared


def asked(url: str, num_requests: int = 2, max_tokens: int = 5, **fields: object) -> Scenario:
    server = {"url": url, **fields}
    requests = [
        {"prompt": f"number {i}", "max_tokens": max_tokens, "arrival_s": 0.05 * i, "ignore_eos": True}
        for i in range(num_requests)
    ]
    return Scenario.parse({"server": server, "requests": requests})


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_every_token_has_its_moment(target: tuple[Server, str], api: str) -> None:
    server, url = target
    said: list[str] = []
    seen = observe(asked(url, api=api), RUN_ID, lambda deltas: said.extend(deltas))
    run = seen.run
    check_run(Run.from_jsonl(run.to_jsonl()))
    assert run.header.model.name == "small" and run.header.observed.server == "tests"
    assert "single_tokens" not in run.header.observed.lacks and "steps" in run.header.observed.lacks
    assert sorted(said) == ["r0"] * 5 + ["r1"] * 5
    for index, record in enumerate(run.requests):
        metrics = request_metrics(record)
        assert record.num_output_tokens == 5 and record.num_prompt_tokens == 7 and record.finish_reason == "length"
        assert record.arrival_s >= 0.05 * index
        assert metrics.ttft_s >= PAUSE_S and metrics.queue_s is None
        assert sum(gaps_s(run, record.request_id)) == pytest.approx(4 * metrics.tpot_s)
        assert metrics.e2e_s >= 0.9 * 5 * PAUSE_S, "no piece came before the server had waited for it"
    assert seen.texts["r1"] == "word " * 5
    assert run_metrics(run).output_tokens_per_s > 0
    assert [body["max_tokens"] for body in server.bodies] == [2, 5, 5], "one short request goes ahead, unmeasured"


def test_a_server_that_knows_fewer_fields_is_asked_for_less(target: tuple[Server, str]) -> None:
    server, url = target
    server.strict = True
    run = observe(asked(url), RUN_ID).run
    assert "ignore_eos" not in server.bodies[-1] and "stream_options" not in server.bodies[-1]
    assert {"ignore_eos", "prompt_tokens", "single_tokens"} <= set(run.header.observed.lacks)
    assert [r.num_output_tokens for r in run.requests] == [5, 5]


def test_the_key_goes_along_and_stands_nowhere(target: tuple[Server, str], monkeypatch: pytest.MonkeyPatch) -> None:
    server, url = target
    monkeypatch.setenv("TOKEN_BY_TOKEN_SERVER_KEY", "secret-key")
    run = observe(asked(url, 1), RUN_ID).run
    assert server.token == "Bearer secret-key"
    assert "secret-key" not in run.to_jsonl()


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda s: setattr(s, "models", PlainTextResponse("<h1>Router login</h1>", 404)), "answered 404;"),
        (lambda s: setattr(s, "models", JSONResponse({"error": {"message": "no key"}}, 401)), "401 (no key)"),
        (lambda s: setattr(s, "models", PlainTextResponse("hello")), "lists no model"),
        (lambda s: setattr(s, "models", JSONResponse({"data": []})), "lists no model"),
        (lambda s: setattr(s, "answer", JSONResponse({"error": {"message": "too long"}}, 400)), "400 (too long)"),
        (lambda s: setattr(s, "answer", PlainTextResponse("data: {nonsense\n\n")), "not JSON"),
        (lambda s: setattr(s, "answer", PlainTextResponse("")), "without a word"),
        (lambda s: setattr(s, "break_off", True), "broke off (out of memory)"),
    ],
)
def test_what_a_server_does_wrong_is_one_sentence(target: tuple[Server, str], spoil, sentence: str) -> None:
    server, url = target
    spoil(server)
    with pytest.raises(ServerError) as caught:
        observe(asked(url), RUN_ID)
    assert sentence in str(caught.value) and url in str(caught.value) and "login" not in str(caught.value)


def test_a_model_that_is_not_there_is_named_with_those_that_are(target: tuple[Server, str]) -> None:
    with pytest.raises(ServerError, match="small, large"):
        observe(asked(target[1], model="huge"), RUN_ID)


def test_nobody_at_the_address() -> None:
    sock = bind(0)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    sock.close()
    with pytest.raises(ServerError, match="nothing answers"):
        observe(asked(url), RUN_ID)


def test_the_engine_does_not_wait_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_BY_TOKEN_SERVING_PORT", "8600")
    with pytest.raises(ServerError, match="serve --port 8601"):
        observe(asked("http://localhost:8600/v1"), RUN_ID)


def test_it_stops_between_two_pieces(target: tuple[Server, str]) -> None:
    pieces: list[str] = []
    with pytest.raises(Stopped):
        observe(asked(target[1], max_tokens=500), RUN_ID, lambda d: pieces.extend(d), lambda: len(pieces) > 3)
    assert 3 < len(pieces) < 100


def test_our_own_server_is_such_a_server() -> None:
    with live_server() as live:
        run = observe(asked(live.url, api="completions"), RUN_ID).run
    check_run(run)
    assert [r.num_output_tokens for r in run.requests] == [5, 5]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"weights": "int8"}, "weights"),
        ({"probes": ["training_step"]}, "probes"),
        ({"requests": [{"prompt_token_ids": [1, 2]}]}, "r0"),
        ({"requests": [{"prompt": "a"}, {"prompt": "b", "follows": "r0"}]}, "r1"),
        ({"server": {"url": "file:///etc/passwd"}}, "server.url"),
        ({"server": {"url": "http://user:word@host"}}, "server.url"),
        ({"server": {}}, "server.url"),
    ],
)
def test_a_scenario_for_a_server_holds_what_a_server_can_be_sent(fields: dict, named: str) -> None:
    with pytest.raises(ScenarioError, match=named):
        Scenario.parse({"server": {"url": "http://127.0.0.1:1"}, "requests": [{"prompt": "x"}], **fields})
