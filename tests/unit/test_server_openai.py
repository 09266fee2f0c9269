"""The OpenAI API over real HTTP with the fake runtime, mostly through the official client, unmodified."""

from __future__ import annotations

import json
import threading

import openai
import pytest

from engine.server import jobs
from tests.fake_runtime import MAX_POSITIONS, NUM_BLOCKS, Knobs
from tests.live_server import Live, eventually, live_server

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def live():
    with live_server() as running:
        yield running


@pytest.fixture(scope="module")
def client(live):
    return official(live)


def official(live: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=20)


def test_models(client):
    models = client.models.list()
    assert [model.id for model in models.data] == ["fake"]
    assert client.models.retrieve("fake").owned_by == "token-by-token"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/other")


def test_completion(client):
    answer = client.completions.create(model="fake", prompt="hello", max_tokens=5)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-") and answer.model == "fake"
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("abcab", "length")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 5, 10)


def test_completion_defaults_to_sixteen_tokens(client):
    assert client.completions.create(model="fake", prompt="hello").usage.completion_tokens == 16


@pytest.mark.parametrize("prompt", ["hello", ["hello"], [1, 2, 3], [[1, 2, 3]]])
def test_every_kind_of_prompt(client, prompt):
    usage = client.completions.create(model="fake", prompt=prompt, max_tokens=1).usage
    assert usage.prompt_tokens == (5 if "hello" in str(prompt) else 3)


def test_completion_streamed(client):
    chunks = list(client.completions.create(model="fake", prompt="hello", max_tokens=4, stream=True))
    assert [chunk.choices[0].text for chunk in chunks] == ["a", "b", "c", "a"]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "length"]
    assert len({chunk.id for chunk in chunks}) == 1 and all(chunk.usage is None for chunk in chunks)


def test_chat(client):
    answer = client.chat.completions.create(model="fake", messages=HELLO, max_completion_tokens=3)
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    message = answer.choices[0].message
    assert (message.role, message.content, answer.choices[0].finish_reason) == ("assistant", "abc", "length")
    assert answer.usage.prompt_tokens == len("<user>hello")


def test_chat_streamed_with_usage(client):
    stream = client.chat.completions.create(
        model="fake", messages=HELLO, max_tokens=3, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "abc"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 3
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_raw_stream_ends_with_done(live):
    body = {"model": "fake", "prompt": "x", "max_tokens": 2, "stream": True}
    response = live.http.post("/v1/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]" and all(line.startswith("data: ") for line in lines)
    assert all(json.loads(line[6:])["object"] == "text_completion" for line in lines[:-1])


def test_content_parts_roles_and_developer(client):
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    usage = client.chat.completions.create(model="fake", messages=messages, max_tokens=1).usage
    assert usage.prompt_tokens == len("<system>be brief<user>ab<assistant>c<user>d")


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string(client, stream):
    answer = client.completions.create(model="fake", prompt="x", max_tokens=9, stop=["zz", "c"], stream=stream)
    chunks = list(answer) if stream else [answer]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "ab"
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_chat_without_a_limit_stays_inside_the_context(client):
    long = [{"role": "user", "content": "x" * (MAX_POSITIONS - 20)}]
    assert client.chat.completions.create(model="fake", messages=long).usage.completion_tokens == 20 - len("<user>")


def test_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="gpt-9", prompt="x")
    assert caught.value.code == "model_not_found" and caught.value.param == "model"
    assert "'gpt-9' does not exist here; this engine serves 'fake'" in str(caught.value)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("chat", [False, True])
def test_prompt_too_long(client, stream, chat):
    with pytest.raises(openai.BadRequestError) as caught:
        if chat:
            messages = [{"role": "user", "content": "x" * MAX_POSITIONS}]
            client.chat.completions.create(model="fake", messages=messages, stream=stream)
        else:
            client.completions.create(model="fake", prompt="x" * (MAX_POSITIONS - 9), max_tokens=10, stream=stream)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == ("messages" if chat else "prompt")
    assert "maximum context length is 2048 tokens" in str(caught.value)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_the_engine_refuses_is_400_also_when_streamed(client, stream):
    with pytest.raises(openai.BadRequestError, match="does not fit the KV cache") as caught:
        client.completions.create(model="fake", prompt="poison", stream=stream)
    assert caught.value.code == "context_length_exceeded"


BAD_COMPLETIONS = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a", "b"]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [0x110000]}, "prompt"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": "7"}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": 1e400}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.01}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"seed": -1}, "seed"),
    ({"seed": 2**63}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": list("abcde")}, "stop"),
    ({"stop": 5}, "stop"),
    ({"n": 2}, "n"),
    ({"best_of": 3}, "best_of"),
    ({"echo": True}, "echo"),
    ({"logprobs": 0}, "logprobs"),
    ({"logprobs": 5}, "logprobs"),
    ({"suffix": "x"}, "suffix"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"presence_penalty": 0.5}, "presence_penalty"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": 1}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "include_usage"),
    ({"model": None}, "model"),
    ({"model": 5}, "model"),
    ({"model": ""}, "model"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_COMPLETIONS)
def test_bad_completion_values(live, fields, param):
    body = json.dumps({"model": "fake", "prompt": "x", **fields}).replace("Infinity", "1e999")
    response = live.http.post("/v1/completions", content=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param and error["type"] == "invalid_request_error"
    assert param in error["message"] and set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        (["hi"], "messages[0]"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([*HELLO, {"role": "tool", "content": "x"}], "messages[1].role"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], "messages[0].content"),
    ],
)
def test_bad_messages(live, messages, param):
    response = live.http.post("/v1/chat/completions", json={"model": "fake", "messages": messages})
    assert response.status_code == 400 and response.json()["error"]["param"] == param


@pytest.mark.parametrize("fields", [{"tools": [{}]}, {"response_format": {"type": "json_object"}}, {"logprobs": True}])
def test_chat_features_we_lack_are_refused(live, fields):
    response = live.http.post("/v1/chat/completions", json={"model": "fake", "messages": HELLO, **fields})
    assert response.status_code == 400 and "does not support it" in response.json()["error"]["message"]


def test_harmless_fields_pass(live):
    harmless = {"n": 1, "logprobs": False, "presence_penalty": 0.0, "user": "me", "stop": None, "tools": [], "seed": 7}
    body = {"model": "fake", "messages": HELLO, "max_tokens": 1, "response_format": {"type": "text"}, **harmless}
    assert live.http.post("/v1/chat/completions", json=body).status_code == 200


def test_requests_are_served_together():
    gate = threading.Event()
    with live_server(Knobs(gate=gate)) as live:
        client = official(live)
        texts: list[str] = []

        def ask():
            texts.append(client.completions.create(model="fake", prompt="x", max_tokens=6).choices[0].text)

        threads = [threading.Thread(target=ask) for _ in range(5)]
        for thread in threads:
            thread.start()
        eventually(lambda: sum(live.server.queue.counts().values()) == 5)
        gate.set()
        for thread in threads:
            thread.join(20)
        assert texts == ["abcabc"] * 5
        assert max(len(members.split(",")) for _, members, _, _ in live.knobs.stretches) >= 4


def test_leaving_a_stream_frees_its_blocks_within_one_step():
    with live_server(Knobs(step_s=0.02)) as live:
        stream = official(live).completions.create(model="fake", prompt="x", max_tokens=1500, stream=True)
        next(iter(stream))
        assert live.knobs.serving.num_active == 1
        stream.close()
        eventually(lambda: live.knobs.serving.free_blocks == NUM_BLOCKS)
        assert live.knobs.aborted == ["g1"]
        # The step that was going on when the client left may finish; none begins after the abort.
        num_steps = len(live.knobs.stretches)
        assert official(live).completions.create(model="fake", prompt="y", max_tokens=1).choices[0].text == "a"
        assert len(live.knobs.stretches) == num_steps + 1


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_before_the_first_token_takes_the_request_out_of_the_line(stream):
    gate = threading.Event()
    with live_server(Knobs(gate=gate)) as live:
        first = threading.Thread(
            target=lambda: live.http.post("/v1/completions", json={"model": "fake", "prompt": "x", "max_tokens": 1})
        )
        first.start()
        eventually(lambda: live.server.queue.counts()["requests_running"] == 1)
        impatient = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=0.3)
        with pytest.raises(openai.APITimeoutError):
            impatient.completions.create(model="fake", prompt="y", stream=stream)
        eventually(lambda: live.server.queue.counts()["requests_waiting"] == 0)
        gate.set()
        first.join(20)
        assert {members for _, members, _, _ in live.knobs.stretches} == {"g1"}


def test_too_many_requests_are_429(monkeypatch):
    monkeypatch.setattr(jobs, "MAX_GENERATIONS", 1)
    gate = threading.Event()
    with live_server(Knobs(gate=gate)) as live:
        first = threading.Thread(
            target=lambda: live.http.post("/v1/completions", json={"model": "fake", "prompt": "x", "max_tokens": 1})
        )
        first.start()
        eventually(lambda: live.server.queue.counts()["requests_running"] == 1)
        with pytest.raises(openai.RateLimitError, match="1 requests are waiting or running"):
            official(live).completions.create(model="fake", prompt="y")
        gate.set()
        first.join(20)


def test_a_failing_step_is_500_and_the_next_request_works():
    with live_server(Knobs(step_error=ValueError("a bug"))) as live:
        with pytest.raises(openai.InternalServerError, match="the engine failed: ValueError: a bug"):
            official(live).completions.create(model="fake", prompt="x")
        assert live.knobs.aborted == ["g1"]
        assert official(live).completions.create(model="fake", prompt="x", max_tokens=1).choices[0].text == "a"


def test_a_step_that_fails_in_mid_stream_reaches_the_client_as_an_error():
    with live_server(Knobs(step_s=0.01)) as live:
        stream = official(live).chat.completions.create(model="fake", messages=HELLO, max_tokens=500, stream=True)
        next(iter(stream))
        live.knobs.step_error = RuntimeError("a bug")
        with pytest.raises(openai.APIError, match="the engine failed"):
            list(stream)


def test_stopping_the_server_ends_open_streams_with_a_sentence():
    with live_server(Knobs(step_s=0.01)) as live:
        stream = official(live).completions.create(model="fake", prompt="x", max_tokens=2000, stream=True)
        next(iter(stream))
        live.server.queue.close()
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)


def test_streams_survive_many_clients_leaving_at_once():
    with live_server(Knobs(step_s=0.005)) as live:
        client = official(live)
        streams = [client.completions.create(model="fake", prompt="x", max_tokens=2000, stream=True) for _ in range(12)]
        for stream in streams:
            next(iter(stream))
        for stream in streams:
            stream.close()
        eventually(lambda: live.knobs.serving.free_blocks == NUM_BLOCKS)
        assert len(live.knobs.aborted) == 12
        eventually(lambda: sum(live.server.queue.counts().values()) == 0)
