"""The official ``openai`` client, unmodified, against a real server process with the real default model.

The model's own words are judged elsewhere (against transformers); here it is that every way of asking gives the same
greedy answer, that counts agree with the tokenizer, and that the lab's runs and the API's requests share one device.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from engine.lab.check import check_run
from engine.lab.scenario import Scenario
from engine.server.client import EngineClient, EngineUnavailable
from engine.server.supervisor import child_environment
from tests.lent_home import lend_home
from tests.live_server import eventually

MODEL = "smollm2-135m"
PROMPT = "The three primary colours are"
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]
GREEDY = {"model": MODEL, "temperature": 0}

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> Iterator[str]:
    home = lend_home(tmp_path_factory.mktemp("home"))
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    command = [sys.executable, "-m", "engine", "serve", "--port", str(port), "--exit-with-parent"]
    environment = child_environment() | {"TOKEN_BY_TOKEN_HOME": str(home)}
    server = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)
    address = f"http://127.0.0.1:{port}"
    try:
        with EngineClient(address) as lab:
            eventually(lambda: is_ready(lab), 240)
        yield address
    finally:
        server.terminate()
        assert server.wait(30) == 0


def is_ready(lab: EngineClient) -> bool:
    try:
        readiness = lab.ready()
    except EngineUnavailable:
        return False
    assert readiness.state != "failed", readiness.message
    return readiness.ready


@pytest.fixture(scope="module")
def client(url) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)


@pytest.fixture
def lab(url) -> Iterator[EngineClient]:
    with EngineClient(url) as made:
        yield made


def metric(url: str, name: str) -> float:
    for line in httpx.get(f"{url}/metrics", trust_env=False).text.splitlines():
        if line.startswith(f"token_by_token_{name} "):
            return float(line.split()[-1])
    raise AssertionError(f"no metric {name}")


def test_models(client):
    assert [model.id for model in client.models.list()] == [MODEL]


def test_completion_and_its_counts(client, lab):
    answer = client.completions.create(prompt=PROMPT, max_tokens=12, **GREEDY)
    assert answer.choices[0].finish_reason == "length" and answer.choices[0].text.strip()
    assert answer.usage.completion_tokens == 12
    assert answer.usage.prompt_tokens == lab.tokenize(PROMPT).num_tokens


def test_every_way_of_asking_gives_the_same_greedy_answer(client):
    def ask(_: int) -> str:
        return client.completions.create(prompt=PROMPT, max_tokens=24, **GREEDY).choices[0].text

    alone = ask(0)
    chunks = list(client.completions.create(prompt=PROMPT, max_tokens=24, stream=True, **GREEDY))
    assert "".join(chunk.choices[0].text for chunk in chunks) == alone
    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(ask, range(6))) == {alone}


def test_chat_streamed_and_not(client, lab):
    answer = client.chat.completions.create(messages=QUESTION, max_tokens=40, **GREEDY)
    assert "Paris" in answer.choices[0].message.content and answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens < 40
    assert answer.usage.prompt_tokens == lab.tokenize(QUESTION[0]["content"], chat=True).num_tokens
    stream = client.chat.completions.create(
        messages=QUESTION, max_tokens=40, stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == answer.choices[0].message.content
    assert chunks[-1].usage == answer.usage and chunks[-2].choices[0].finish_reason == "stop"


def test_seeds_make_sampling_repeatable(client):
    def ask(seed: int | None) -> str:
        return client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=16, seed=seed).choices[0].text

    assert ask(1) == ask(1)
    assert len({ask(seed) for seed in (1, 2, 3, 4)}) > 1
    assert len({ask(None) for _ in range(4)}) > 1


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings(client, stream):
    whole = client.completions.create(prompt=PROMPT, max_tokens=24, **GREEDY).choices[0].text
    word = whole.split()[3]
    answer = client.completions.create(prompt=PROMPT, max_tokens=24, stop=["@@@", word], stream=stream, **GREEDY)
    chunks = list(answer) if stream else [answer]
    text = "".join(chunk.choices[0].text for chunk in chunks)
    assert text == whole[: whole.index(word)]
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_text_beyond_ascii_streams_in_whole_characters(client):
    messages = [{"role": "user", "content": "Repeat exactly: 你好，世界 😀 é"}]
    whole = client.chat.completions.create(messages=messages, max_tokens=48, **GREEDY).choices[0].message.content
    stream = client.chat.completions.create(messages=messages, max_tokens=48, stream=True, **GREEDY)
    parts = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(parts) == whole
    if "\ufffd" not in whole:
        assert not any("\ufffd" in part for part in parts)


def test_errors(client):
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4o", messages=QUESTION)
    assert missing.value.code == "model_not_found"
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as long:
            client.completions.create(model=MODEL, prompt="word " * 9000, stream=stream)
        assert long.value.code == "context_length_exceeded" and "8192" in str(long.value)
    with pytest.raises(openai.BadRequestError) as hot:
        client.completions.create(model=MODEL, prompt="x", temperature=3)
    assert hot.value.param == "temperature"


def test_leaving_a_stream_frees_its_blocks(client, url):
    before = metric(url, "generation_tokens_total")
    stream = client.completions.create(prompt=PROMPT * 20, max_tokens=3000, stream=True, **GREEDY)
    for _ in zip(range(3), stream, strict=False):
        pass
    assert metric(url, "kv_cache_usage_perc") > 0
    stream.close()
    eventually(lambda: metric(url, "kv_cache_usage_perc") == 0 and metric(url, "num_requests_running") == 0)
    assert metric(url, "generation_tokens_total") - before < 500


@pytest.mark.parametrize("policy", ["static", "chunked"])
def test_a_lab_run_beside_requests_passes_every_invariant(client, lab, policy):
    scenario = Scenario.parse(
        {
            "policy": policy,
            "limits": {"max_requests": 4, "max_batch_tokens": 64, "num_blocks": 64},
            "requests": [
                {"prompt": "Once upon a time", "max_tokens": 24, "ignore_eos": True},
                {"prompt": "A cache is", "max_tokens": 8, "num_prompt_tokens": 100},
                {"prompt": "Hello", "max_tokens": 12, "arrival_s": 0.2, "chat": True},
            ],
        }
    )
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(client.completions.create, prompt=PROMPT, max_tokens=32, **GREEDY)
        run_id = lab.submit(scenario, "me").run_id
        eventually(lambda: lab.follow(run_id).is_over, 120)
        assert asked.result(60).usage.completion_tokens == 32
    status = lab.follow(run_id)
    assert status.state == "done", status.error
    run = lab.fetch_run(run_id)
    check_run(run)
    assert status.steps == run.steps
    texts = lab.fetch_texts(run_id)
    assert status.texts == texts.texts and set(texts.pieces) == {"r0", "r1", "r2"}
    assert [len(texts.pieces[r.request_id]) for r in run.requests] == [r.num_output_tokens for r in run.requests]


def test_the_device_report(lab):
    report = lab.device()
    assert report["default_model"]["name"] == MODEL and report["device"]["type"] in ("cpu", "cuda")
