"""The pages' client: against the real server with the fake runtime, and against servers that misbehave."""

from __future__ import annotations

import subprocess
import sys

import httpx
import pytest

from engine.lab.scenario import Scenario
from engine.server.client import EngineClient, EngineRefused, EngineUnavailable
from engine.server.supervisor import child_environment
from tests.live_server import eventually, live_server, scenario

SCENARIO = Scenario.parse(scenario(num_requests=2))


@pytest.fixture(scope="module")
def live():
    with live_server() as running:
        yield running


@pytest.fixture
def client(live):
    with EngineClient(live.url) as made:
        yield made


def answering(*responses: httpx.Response | Exception) -> EngineClient:
    """A client whose server gives these answers, the last one for ever."""
    left = list(responses)

    def handler(request: httpx.Request) -> httpx.Response:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return EngineClient("http://127.0.0.1:1", transport=httpx.MockTransport(handler))


def test_a_run_from_submit_to_texts(client, live):
    queued = client.submit(SCENARIO, "me")
    assert queued.state == "queued" and queued.position >= 1 and queued.fraction == 0
    eventually(lambda: client.follow(queued.run_id).is_over)
    done = client.follow(queued.run_id, since=1)
    assert (done.state, done.num_steps, len(done.steps), done.fraction) == ("done", 3, 2, 1.0)
    assert done.steps[0].step == 1 and done.texts == {"r0": "xxx", "r1": "xxx"}
    assert done.instance == live.server.instance
    run = client.fetch_run(queued.run_id)
    assert run.run_id == queued.run_id and Scenario.parse(run.header.scenario) == SCENARIO
    assert client.fetch_texts(queued.run_id).pieces == {"r0": ["x"] * 3, "r1": ["x"] * 3}
    assert client.cancel(queued.run_id).state == "done"


def test_state_of_the_engine(client):
    assert client.health()
    ready = client.ready()
    assert ready.ready and ready.state == "ready" and ready.message == "fake is ready"
    assert client.device()["device"]["name"] == "fake"
    assert client.tokenize("añ").pieces == ["a", "ñ"]
    assert client.tokenize("a", chat=True).num_tokens == 7


def test_refusals_carry_sentence_and_field(client):
    with pytest.raises(EngineRefused) as caught:
        client.submit(SCENARIO, "")
    assert caught.value.field == "client_id" and "1 to 128" in caught.value.message
    with pytest.raises(EngineRefused) as caught:
        client.tokenize("\ud800")
    assert "surrogate" in caught.value.message


def test_a_run_of_an_earlier_instance_says_restarted(client, live):
    with pytest.raises(EngineUnavailable) as caught:
        client.follow("run-ffffffffffff")
    assert caught.value.restarted
    with pytest.raises(EngineRefused) as refused:
        client.fetch_run(f"run-{live.server.instance[:6]}ffffff")
    assert "no longer kept" in refused.value.message and refused.value.status == 404


@pytest.mark.parametrize("run_id", ["../../healthz", "", "a/b", "?since=1", "run-%2e%2e", "漢字" * 50])
def test_a_nonsense_run_id_cannot_reach_another_path(client, run_id):
    with pytest.raises((EngineUnavailable, EngineRefused)) as caught:
        client.follow(run_id)
    assert "answered with" not in str(caught.value)


def test_an_engine_that_is_not_there():
    with EngineClient("http://127.0.0.1:9") as client:
        assert not client.health()
        for ask in (client.ready, client.device, lambda: client.follow("run-0"), lambda: client.submit(SCENARIO, "a")):
            with pytest.raises(EngineUnavailable, match=r"not running at http://127\.0\.0\.1:9") as caught:
                ask()
            assert not caught.value.restarted


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, text="<html>another program</html>"),
        httpx.Response(200, json=["not", "ours"]),
        httpx.Response(200, json={"state": "strange"}),
        httpx.Response(404, text="no"),
        httpx.Response(500, json={"error": "text"}),
        httpx.ReadTimeout("slow"),
        httpx.RemoteProtocolError("garbage"),
        httpx.ReadError("reset"),
    ],
)
def test_whatever_answers_there_is_only_one_kind_of_trouble(answer):
    client = answering(answer)
    for ask in (client.ready, lambda: client.follow("run-0"), lambda: client.fetch_texts("run-0")):
        with pytest.raises(EngineUnavailable):
            ask()
    with pytest.raises(EngineUnavailable):
        answering(httpx.Response(200, text="no json" if answer is not None else "")).device()


def test_a_run_file_that_cannot_be_read():
    with pytest.raises(EngineUnavailable, match="cannot be read: line 1"):
        answering(httpx.Response(200, text="{}\n")).fetch_run("run-0")


def test_a_failed_load_is_an_answer_not_an_error():
    body = {"ready": False, "state": "failed", "stage": "load", "fraction": None, "message": "no disk", "instance": "i"}
    assert answering(httpx.Response(503, json=body)).ready().message == "no disk"
    error = {"error": {"message": "the engine is not ready: no disk", "field": ""}}
    with pytest.raises(EngineUnavailable, match="not ready: no disk"):
        answering(httpx.Response(503, json=error)).submit(SCENARIO, "me")


def test_default_address(monkeypatch):
    monkeypatch.delenv("TOKEN_BY_TOKEN_ENGINE_URL", raising=False)
    monkeypatch.setenv("TOKEN_BY_TOKEN_ENGINE_PORT", "8765")
    assert EngineClient.default().base_url == "http://127.0.0.1:8765"
    monkeypatch.setenv("TOKEN_BY_TOKEN_ENGINE_URL", "http://127.0.0.1:9999/")
    assert EngineClient.default().base_url == "http://127.0.0.1:9999"


def test_a_proxy_from_the_environment_is_not_asked(live, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with EngineClient(live.url) as client:
        assert client.health()


@pytest.mark.parametrize("module", ["engine.server.client", "engine.server.supervisor", "engine.server.app"])
def test_importing_it_leaves_torch_unloaded(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, env=child_environment()).returncode == 0
