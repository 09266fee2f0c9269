"""The lab API over real HTTP with the fake runtime: what a page sees, from submit to Run, and every refusal."""

from __future__ import annotations

import gc
import json
import threading
from itertools import pairwise

import pytest

from engine.lab.records import Run
from engine.server import jobs, wire
from tests.fake_runtime import FakeModelError, Knobs
from tests.live_server import Live, eventually, live_server, scenario


@pytest.fixture(scope="module")
def live():
    with live_server() as running:
        yield running


def submit(live: Live, client_id: str = "me", **fields) -> str:
    response = live.http.post("/lab/runs", json={"scenario": scenario(**fields), "client_id": client_id})
    assert response.status_code == 202, response.text
    return response.json()["run_id"]


def status(live: Live, run_id: str, since: int = 0) -> dict:
    response = live.http.get(f"/lab/runs/{run_id}", params={"since": since})
    assert response.status_code == 200, response.text
    return response.json()


def finished(live: Live, run_id: str) -> dict:
    eventually(lambda: status(live, run_id)["state"] not in ("queued", "running"))
    return status(live, run_id)


def test_a_run_from_submit_to_file(live):
    response = live.http.post("/lab/runs", json={"scenario": scenario(num_requests=2), "client_id": "me"})
    queued = response.json()
    assert queued["state"] == "queued" and queued["position"] >= 1 and queued["total_tokens"] == 6
    run_id = queued["run_id"]
    done = finished(live, run_id)
    assert (done["state"], done["position"], done["error"]) == ("done", 0, None)
    assert (done["num_steps"], done["num_tokens"], done["total_tokens"]) == (3, 6, 6)
    assert [step["step"] for step in done["steps"]] == [0, 1, 2]
    assert [step["step"] for step in status(live, run_id, since=2)["steps"]] == [2]
    assert status(live, run_id, since=99)["steps"] == []
    assert done["texts"] == {"r0": "xxx", "r1": "xxx"}
    assert done["instance"] == live.server.instance
    file = live.http.get(f"/lab/runs/{run_id}/run")
    assert file.headers["content-type"] == "application/jsonl"
    assert Run.from_jsonl(file.text).run_id == run_id
    texts = live.http.get(f"/lab/runs/{run_id}/texts").json()
    assert texts == {"texts": {"r0": "xxx", "r1": "xxx"}, "pieces": {"r0": ["x"] * 3, "r1": ["x"] * 3}}


def test_steps_appear_while_it_runs():
    gate = threading.Event()
    with live_server(Knobs(gate=gate)) as live:
        run_id = submit(live)
        eventually(lambda: status(live, run_id)["state"] == "running")
        running = status(live, run_id)
        assert running["steps"] == [] and running["position"] == 0 and running["stage"] == "tokenizing"
        assert live.http.get(f"/lab/runs/{run_id}/run").status_code == 409
        assert live.http.get(f"/lab/runs/{run_id}/texts").status_code == 409
        gate.set()
        assert finished(live, run_id)["state"] == "done"


def test_order_position_and_device_exclusivity():
    gate = threading.Event()
    with live_server(Knobs(step_s=0.003, gate=gate)) as live:
        ids = [submit(live, f"client {i}", max_tokens=8) for i in range(4)]
        ask = {"model": "fake", "prompt": "hi", "max_tokens": 8}
        answers = []
        asking = threading.Thread(target=lambda: answers.append(live.http.post("/v1/completions", json=ask)))
        asking.start()
        eventually(lambda: status(live, ids[0])["state"] == "running")
        assert [status(live, run_id)["position"] for run_id in ids] == [0, 1, 2, 3]
        gate.set()
        for run_id in ids:
            assert finished(live, run_id)["state"] == "done"
        asking.join(20)
        assert answers[0].status_code == 200
        runs = [stretch[1] for stretch in live.knobs.stretches if stretch[0] == "run"]
        assert runs == ids
        stretches = sorted(live.knobs.stretches, key=lambda stretch: stretch[2])
        assert {stretch[0] for stretch in stretches} == {"run", "serve"}
        for (_, _, _, end), (_, _, begin, _) in pairwise(stretches):
            assert end <= begin, "two jobs were on the device at once"


def test_requests_behind_a_run_wait_for_it_and_a_run_waits_for_the_group():
    gate = threading.Event()
    with live_server(Knobs(gate=gate)) as live:
        ask = {"model": "fake", "prompt": "hi", "max_tokens": 4}
        threads = [
            threading.Thread(target=lambda: live.http.post("/v1/completions", json=ask), daemon=True) for _ in range(3)
        ]
        threads[0].start()
        eventually(lambda: live.server.queue.counts()["requests_running"] == 1)
        threads[1].start()  # joins the group: no run is queued yet
        eventually(lambda: live.server.queue.counts()["requests_waiting"] == 1)
        run_id = submit(live)
        threads[2].start()
        eventually(lambda: live.server.queue.counts()["requests_waiting"] == 2)
        assert status(live, run_id)["position"] == 1
        gate.set()
        for thread in threads:
            thread.join(20)
        assert finished(live, run_id)["state"] == "done"
        order = [name for what, name, _, _ in live.knobs.stretches]
        assert order.index(run_id) > max(i for i, name in enumerate(order) if "g1" in name or "g2" in name)
        assert order.index(run_id) < min(i for i, name in enumerate(order) if "g3" in name)
        assert "g1,g2" in order, "the newcomer was not served together with the first"


def test_cancel_a_queued_and_a_running_run():
    with live_server(Knobs(step_s=0.01)) as live:
        running, queued = submit(live, max_tokens=2000), submit(live, max_tokens=2000)
        eventually(lambda: status(live, running)["num_steps"] > 0)
        answer = live.http.delete(f"/lab/runs/{queued}").json()
        assert answer["state"] == "cancelled" and answer["error"] == "cancelled on request"
        assert live.http.delete(f"/lab/runs/{running}").json()["state"] == "cancelled"
        third = submit(live)
        assert finished(live, third)["state"] == "done"
        assert [what for what in live.knobs.stretches if what[1] == queued] == []
        assert status(live, running)["num_steps"] < 2000
        assert live.http.delete(f"/lab/runs/{third}").json()["state"] == "done"


def test_a_run_nobody_follows_ends_and_the_next_one_starts(monkeypatch):
    monkeypatch.setattr(jobs, "LEASE_S", 0.3)
    with live_server(Knobs(step_s=0.01)) as live:
        left = submit(live, max_tokens=5000)
        followed = submit(live, "other", max_tokens=1)
        eventually(lambda: status(live, followed)["state"] == "done")
        gone = status(live, left)
        assert gone["state"] == "cancelled" and "nobody followed" in gone["error"]


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"client_id": "me"}, "", "a scenario is a JSON object"),
        ({"scenario": scenario(), "client_id": ""}, "client_id", "1 to 128"),
        ({"scenario": scenario(), "client_id": 5}, "client_id", "1 to 128"),
        ({"scenario": scenario(), "client_id": "x" * 129}, "client_id", "1 to 128"),
        ({"scenario": scenario(), "client_id": "me", "secnario": 1}, "secnario", "not a field"),
        ({"scenario": {"requests": []}, "client_id": "me"}, "requests", "requests"),
        ({"scenario": scenario(max_tokens=10**9), "client_id": "me"}, "requests[0].max_tokens", "1 to 8192"),
        ({"scenario": scenario(policy="magic"), "client_id": "me"}, "policy", "magic"),
    ],
)
def test_a_bad_submission_is_refused_with_field_and_sentence(live, body, field, words):
    response = live.http.post("/lab/runs", json=body)
    assert response.status_code == 422
    error = response.json()["error"]
    assert error["field"] == field and words in error["message"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1]",
        b"null",
        b"\xff\xfe",
        b'{"a": NaN}',
        b'{"a": "\\ud800"}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
@pytest.mark.parametrize("path", ["/lab/runs", "/lab/tokenize", "/v1/completions", "/v1/chat/completions"])
def test_a_body_that_is_no_json_object_is_refused(live, path, content):
    response = live.http.post(path, content=content)
    assert response.status_code == (400 if path.startswith("/v1") else 422)
    assert "the request body" in response.json()["error"]["message"]
    assert live.http.get("/healthz").status_code == 200


@pytest.mark.parametrize("path", ["/lab/runs", "/v1/completions"])
def test_a_large_body_is_refused(live, path):
    response = live.http.post(path, content=b'"' + b"x" * wire.MAX_BODY_BYTES + b'"')
    assert response.status_code == 413
    assert "larger than" in response.json()["error"]["message"]

    def chunks():
        for _ in range(11):
            yield b"x" * 100_000

    assert live.http.post(path, content=chunks()).status_code == 413


def test_a_third_run_of_one_client_is_429():
    gate = threading.Event()
    with live_server(Knobs(gate=gate)) as live:
        submit(live)
        submit(live)
        response = live.http.post("/lab/runs", json={"scenario": scenario(), "client_id": "me"})
        error = response.json()["error"]
        assert response.status_code == 429 and "you have 2 runs" in error["message"] and error["code"] == "own_runs"
        assert response.headers["retry-after"] == "5"
        gate.set()


def test_a_run_that_cannot_be_prepared_fails_with_its_sentence(live):
    body = {"requests": [{"prompt": "unpreparable"}]}
    run_id = live.http.post("/lab/runs", json={"scenario": body, "client_id": "me"}).json()["run_id"]
    failed = finished(live, run_id)
    assert failed["state"] == "failed" and failed["error"].startswith("requests[0].prompt cannot be prepared")
    assert finished(live, submit(live))["state"] == "done"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("layer"), "KeyError: 'layer'"),
        (MemoryError(), "not enough free memory"),
        (FakeModelError("the model needs 9 GB, 4 GB are free"), "the model needs 9 GB"),
    ],
)
def test_a_run_that_breaks_leaves_one_sentence_and_a_living_engine(error, words):
    with live_server(Knobs(run_error=error)) as live:
        failed = finished(live, submit(live))
        assert failed["state"] == "failed" and words in failed["error"] and "\n" not in failed["error"]
        live.knobs.run_error = None
        assert finished(live, submit(live))["state"] == "done"


def test_the_garbage_collector_rests_during_a_run_and_only_then():
    with live_server() as live:
        finished(live, submit(live))
        assert live.knobs.collecting == [False] * 3
        live.knobs.run_error = KeyError("a bug")
        finished(live, submit(live))
        eventually(gc.isenabled)


def test_unknown_runs(live):
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/run"), ("GET", "/texts")):
        response = live.http.request(method, f"/lab/runs/run-ffffffffffff{path}")
        assert response.status_code == 404 and response.json()["error"]["code"] == "restarted"
        response = live.http.request(method, f"/lab/runs/run-{live.server.instance[:6]}ffffff{path}")
        assert response.status_code == 404 and response.json()["error"]["code"] == "forgotten"


@pytest.mark.parametrize("since", ["-1", "x", "1.5", "9" * 40, "²"])
def test_a_bad_since_is_refused(live, since):
    run_id = submit(live)
    assert live.http.get(f"/lab/runs/{run_id}", params={"since": since}).status_code == 422
    finished(live, run_id)


def test_tokenize(live):
    found = live.http.post("/lab/tokenize", json={"text": "añ漢"}).json()
    assert found == {"num_tokens": 3, "pieces": ["a", "ñ", "漢"]}
    assert live.http.post("/lab/tokenize", json={"text": "a", "chat": True}).json()["num_tokens"] == len("<user>a")
    for body in ({}, {"text": 1}, {"text": "x" * 20_001}, {"text": "a", "chat": "yes"}):
        response = live.http.post("/lab/tokenize", json=body)
        assert response.status_code == 422 and response.json()["error"]["field"] in ("text", "chat")


def test_device_and_health(live):
    assert live.http.get("/lab/device").json()["device"] == {"name": "fake"}
    assert live.http.get("/healthz").json() == {"status": "ok"}
    ready = live.http.get("/readyz").json()
    assert ready["ready"] and ready["state"] == "ready" and ready["instance"] == live.server.instance


@pytest.mark.parametrize("path", ["/nowhere", "/v1/nowhere", "/lab/runs/a/b/c"])
def test_unknown_paths_answer_in_json(live, path):
    response = live.http.get(path)
    assert response.status_code == 404 and path in response.json()["error"]["message"]
    assert live.http.put("/lab/runs", json={}).status_code == 405


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:8600"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
    ],
)
def test_pages_of_other_sites_are_refused(live, headers):
    response = live.http.post("/lab/runs", json={"scenario": scenario(), "client_id": "me"}, headers=headers)
    assert response.status_code == 403
    assert live.http.get("/healthz", headers={"origin": "http://localhost:8501"}).status_code == 200
    assert live.http.get("/healthz", headers={"host": "localhost:1"}).status_code == 200


def test_loading_is_visible_and_runs_wait_for_it():
    with live_server(Knobs(load_s=3.0), wait_ready=False) as live:
        seen = live.http.get("/readyz")
        assert seen.status_code == 503 and seen.json()["state"] in ("starting", "loading")
        run_id = submit(live)
        assert status(live, run_id)["position"] == 1
        eventually(lambda: live.http.get("/readyz").json()["fraction"] == 0.5)
        assert live.http.get("/v1/models").json() == {"object": "list", "data": []}
        early = live.http.post("/v1/completions", json={"model": "fake", "prompt": "x"})
        assert early.status_code == 503 and early.json()["error"]["type"] == "server_error"
        assert live.http.post("/lab/tokenize", json={"text": "x"}).status_code == 503
        assert finished(live, run_id)["state"] == "done"


def test_a_failed_load_stays_visible_and_is_tried_again(monkeypatch):
    monkeypatch.setattr("engine.server.worker.RETRY_LOAD_S", 0.3)
    knobs = Knobs(load_s=2.0, load_errors=[FakeModelError("no disk space for the model; free 0.6 GB")])
    with live_server(knobs, wait_ready=False) as live:
        waiting = submit(live)
        eventually(lambda: live.http.get("/readyz").json()["state"] == "failed")
        failed = live.http.get("/readyz")
        assert failed.status_code == 503 and failed.json()["message"] == "no disk space for the model; free 0.6 GB"
        assert status(live, waiting)["state"] == "failed" and "no disk space" in status(live, waiting)["error"]
        refused = live.http.post("/lab/runs", json={"scenario": scenario(), "client_id": "me"})
        assert refused.status_code == 503 and "no disk space" in refused.json()["error"]["message"]
        assert live.http.get("/healthz").status_code == 200
        eventually(lambda: live.http.get("/readyz").status_code == 200)
        assert finished(live, submit(live))["state"] == "done"


def test_an_engine_whose_libraries_cannot_load_stays_up():
    with live_server(Knobs(import_error=OSError("libtorch.so: cannot open")), wait_ready=False) as live:
        eventually(lambda: live.http.get("/readyz").json()["state"] == "failed")
        assert (
            live.http.get("/readyz").json()["message"] == "the engine cannot start: OSError: libtorch.so: cannot open"
        )
        assert live.http.get("/lab/device").json() == {}


def test_a_lost_device_ends_the_worker_for_a_fresh_process():
    with live_server(Knobs(run_error=RuntimeError("CUDA error: device-side assert triggered"))) as live:
        run_id = submit(live)
        eventually(lambda: live.http.get("/readyz").json()["state"] == "failed")
        assert status(live, run_id)["state"] == "failed"


@pytest.mark.parametrize("num_disturbed", [0, 3])
def test_the_device_is_measured_when_idle_until_nothing_disturbed_it(monkeypatch, num_disturbed):
    monkeypatch.setattr("engine.server.worker.IDLE_BEFORE_CALIBRATION_S", (0.0, 0.01))
    monkeypatch.setattr("engine.server.worker.POLL_S", 0.02)
    expected = max(1, num_disturbed)
    with live_server(Knobs(num_disturbed=num_disturbed)) as live:
        eventually(lambda: live.knobs.num_calibrations == expected)
        finished(live, submit(live))
        finished(live, submit(live))
        assert live.knobs.num_calibrations == expected
        assert live.http.get("/readyz").json()["message"] == "fake is ready"


def test_metrics(live):
    finished(live, submit(live))
    live.http.post("/v1/completions", json={"model": "fake", "prompt": "hi", "max_tokens": 4})
    text = live.http.get("/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    assert float(values['token_by_token_lab_runs_total{outcome="done"}']) >= 1
    assert float(values['token_by_token_requests_total{finished_reason="length"}']) == 1
    assert float(values["token_by_token_generation_tokens_total"]) == 4
    assert float(values["token_by_token_prompt_tokens_total"]) == 2
    assert float(values["token_by_token_time_to_first_token_seconds_count"]) == 1
    assert float(values["token_by_token_time_per_output_token_seconds_count"]) == 1
    assert float(values["token_by_token_kv_cache_usage_perc"]) == 0
    assert float(values["token_by_token_num_requests_waiting"]) == 0


def test_status_is_valid_json_however_odd_the_prompt(live):
    odd = {"requests": [{"prompt": 'quote " \u2028 \\ 漢 😀', "max_tokens": 1}]}
    run_id = live.http.post("/lab/runs", json={"scenario": odd, "client_id": "me"}).json()["run_id"]
    finished(live, run_id)
    file = live.http.get(f"/lab/runs/{run_id}/run").content.decode()
    assert json.loads(file.split("\n")[0])["scenario"]["requests"][0]["prompt"] == 'quote " \u2028 \\ 漢 😀'
