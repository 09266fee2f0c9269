"""The bench around its measurements: what is asked of whom, who is skipped and why, the file, the tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from engine.bench import session as sessions
from engine.bench.cli import measure
from engine.bench.peers import common
from engine.bench.plan import PEERS, SUITES, Plan, chosen, spread_of_lengths, workload
from engine.bench.process import run_job
from engine.bench.results import BenchError, Results, SuiteResult
from engine.bench.samples import Sample
from engine.bench.scheduling import decide_and_commit_ms
from engine.bench.systems import environment, ours, peer
from engine.bench.table import number, render
from engine.scheduling.policies import POLICIES

ROOT = Path(__file__).resolve().parents[2]
FACTS = {
    "model_dir": "somewhere",
    "gguf": {"bfloat16": "a", "int8": "b", "int4": "c"},
    "first_prompt": [1, 2, 3],
    "why_no_kernels": "",
    "model": {
        "name": "m",
        "source": "made up",
        "architecture": "LlamaForCausalLM",
        "num_layers": 2,
        "hidden_size": 8,
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_dim": 4,
        "vocab_size": 16,
        "num_parameters": 1_000,
        "weight_bytes": 2_000,
    },
}
# Stands in for every measured process: answers each case with a second, or fails where its name says so.
FAKE = """
import json, sys
sys.path.insert(0, {peers!r})
import common

class Fake:
    def load(self, job):
        if {fails}: sys.exit("the engine is broken")
        print("a library that talks on stdout")
        return {{"versions": {{{name!r}: "1.0"}}, "weight_bytes": 2000, "notes": "fake"}}

    def generate(self, prompts, num_tokens):
        steps = [9.0, 9.0, 9.0] + [{seconds}] * (num_tokens - 4)
        return common.Timing({seconds}, steps, [[7] * num_tokens for _ in prompts])

    def serve(self, requests, max_requests, policy):
        return (2.0 if policy == "static" else {seconds}), sum(request["num_tokens"] for request in requests)

common.main(Fake())
"""


def fake(tmp_path: Path, name: str, seconds: float, fails: bool = False) -> sessions.System:
    path = tmp_path / f"{name}.py"
    peers = str(ROOT / "engine" / "bench" / "peers")
    path.write_text(FAKE.format(peers=peers, name=name, seconds=seconds, fails=fails))
    return sessions.System(name, (sys.executable, str(path)))


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours takes a second for everything, hf two, llama.cpp falls over, vLLM is not installed."""
    found = {
        "hf": fake(tmp_path, "hf", 2.0),
        "llamacpp": fake(tmp_path, "llamacpp", 1.0, fails=True),
        "vllm": sessions.System("vllm", why_not="no environment in ~/nowhere; see tests/bench/README.md"),
    }
    monkeypatch.setattr(sessions, "_prepare", lambda num_threads: FACTS)
    monkeypatch.setattr(sessions, "ours", lambda: fake(tmp_path, "ours", 1.0))
    monkeypatch.setattr(sessions, "peer", lambda name, home: found[name])


def bench(
    tmp_path: Path,
    only: str,
    repeats: int = 1,
    peers: str = "hf,llamacpp,vllm",
    minutes: float = 9,
    say=lambda text: None,
) -> str:
    return measure(peers, only, tmp_path / "bench.json", repeats, True, minutes, "python -m engine bench", say)


# ------------------------------------------------------------------------------------------------- what is asked
def test_only_and_peers_are_lists_of_known_names_in_a_fixed_order() -> None:
    assert chosen("--peers", " vllm, hf", PEERS) == ["hf", "vllm"]
    assert chosen("--only", "", SUITES) == []
    with pytest.raises(BenchError, match=r"--peers names 'ollama'; allowed: hf, llamacpp, vllm"):
        chosen("--peers", "ollama", PEERS)


def test_every_policy_serves_the_workload_and_a_peer_serves_it_once() -> None:
    plan = Plan()
    mine = [case["policy"] for case in plan.cases("ours", "bfloat16", ["mixed"])]
    assert mine == list(POLICIES)
    assert [case["name"] for case in plan.cases("hf", "bfloat16", ["mixed"])] == ["mixed"]


def test_smaller_precisions_are_measured_on_decode_only() -> None:
    assert {case["suite"] for case in Plan().cases("ours", "int8", SUITES)} == {"decode"}
    assert Plan().cases("llamacpp", "int4", ["prefill", "mixed"]) == []


def test_the_same_work_is_asked_every_time_and_prefill_never_of_a_prompt_seen_before() -> None:
    assert Plan().cases("ours", "bfloat16", SUITES) == Plan().cases("ours", "bfloat16", SUITES)
    for case, length in zip(Plan().prefill_cases(), Plan().prompts, strict=True):
        warm_up, timed = case["prompts"]
        assert len(timed) == length and warm_up != timed[: len(warm_up)]


def test_the_workload_has_short_and_long_outputs_and_is_told_in_a_sentence() -> None:
    requests = workload(32)
    outputs = [request["num_tokens"] for request in requests]
    assert max(outputs) > 8 * min(outputs) and len(requests) == 32
    assert f"outputs of {min(outputs)} to {max(outputs)} tokens" in spread_of_lengths(requests)


# ------------------------------------------------------------------------------------------------- who is measured
def test_a_peer_without_an_environment_or_without_its_package_is_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert peer("vllm", tmp_path).why_not.startswith("no environment in ")
    monkeypatch.setenv("TOKEN_BY_TOKEN_BENCH_LLAMACPP", sys.executable)
    monkeypatch.setitem(sys.modules["engine.bench.systems"].MODULES, "llamacpp", "no_such_module")
    assert "no_such_module is not installed in" in peer("llamacpp", tmp_path).why_not


def test_peers_get_the_device_threads_and_nothing_of_our_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    env = environment(6)
    assert "PYTHONPATH" not in env and env["OMP_NUM_THREADS"] == "6"


def test_a_process_that_hangs_or_fails_is_an_answer_with_its_reason(tmp_path: Path) -> None:
    hangs = run_job([sys.executable, "-c", "import time; time.sleep(60)"], {}, environment(1), tmp_path, timeout_s=0.3)
    assert hangs.why_failed == "not done after 0 s" and hangs.seconds < 30
    fails = run_job([sys.executable, "-c", "raise SystemExit('no memory left')"], {}, environment(1), tmp_path)
    assert fails.why_failed == "no memory left"


def test_warm_up_steps_are_not_in_the_median(capsys: pytest.CaptureFixture) -> None:
    class Warming:
        def generate(self, prompts, num_tokens):
            return common.Timing(0.1, [9.0] * common.WARM_STEPS + [1.0, 2.0, 3.0], [])

    common.CASES["decode"](Warming(), {"name": "decode 64", "prompts": [[1]], "num_tokens": 3})
    line = capsys.readouterr().out.strip()
    assert json.loads(line.removeprefix(common.MARK))["seconds"] == 2.0


# ------------------------------------------------------------------------------------------------- a whole bench
def test_a_bench_with_one_peer_one_broken_and_one_missing(tmp_path: Path, fakes) -> None:
    text = bench(tmp_path, "decode,prefill,mixed", repeats=2)
    assert "skipped: vllm (no environment in ~/nowhere" in text
    assert "skipped: llamacpp (bfloat16: the engine is broken)" in text
    assert "hf gives the same first 16 of 16 greedy tokens as ours" in text
    assert "Preliminary: fewer than 5 rounds" in text
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("|")]
    (decode,) = [row for row in rows if row[1] == "decode 64, bfloat16"]
    assert decode[2:4] == ["tok/s", "1.00 [1.00, 1.00]"]
    assert decode[-3:-1] == ["0.500 [0.500, 0.500]", "2.00 [2.00, 2.00]"]
    prefills = {int(row[1].split()[1]): float(row[3].split()[0]) for row in rows if row[1].startswith("prefill ")}
    assert prefills and all(rate == pytest.approx(n, rel=0.01) for n, rate in prefills.items()), (
        "not its warm-up's tokens"
    )
    (chunked,) = [row for row in rows if row[1] == "ours chunked"]
    assert chunked[4:6] == ["2.00 [2.00, 2.00]", "1.00 [1.00, 1.00]"]  # over our static, and over itself
    saved = json.loads((tmp_path / "bench.json").read_text())
    assert saved["suites"]["decode"]["repeats"] == 2 and saved["suites"]["decode"]["versions"]["hf"] == {"hf": "1.0"}


def test_a_suite_measured_again_replaces_itself_and_leaves_the_others(tmp_path: Path, fakes) -> None:
    bench(tmp_path, "decode,prefill", peers="")
    text = bench(tmp_path, "decode", repeats=3, peers="")
    saved = json.loads((tmp_path / "bench.json").read_text())
    assert (saved["suites"]["decode"]["repeats"], saved["suites"]["prefill"]["repeats"]) == (3, 1)
    assert "## Decode, one stream" in text and "## Prefill, one prompt" in text


def test_no_round_begins_that_would_not_end_in_time_and_what_was_measured_is_kept(tmp_path: Path, fakes) -> None:
    told: list[str] = []
    bench(tmp_path, "decode", repeats=5, peers="", minutes=1e-6, say=told.append)
    assert told[-1] == "stopping after 1 rounds: another would not end in time"
    assert json.loads((tmp_path / "bench.json").read_text())["suites"]["decode"]["repeats"] == 1


def test_results_of_another_machine_or_another_kind_of_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    Results("a big machine", {}).save(path)
    with pytest.raises(BenchError, match="was measured on another machine"):
        Results.load(path, "a small machine")
    path.write_text('{"kind": "header"}')
    with pytest.raises(BenchError, match="is no bench file"):
        Results.load(path, "a small machine")
    path.write_text("{")
    with pytest.raises(BenchError, match="cannot read"):
        Results.load(path, "a small machine")
    assert Results.load(tmp_path / "new.json", "any") is None


# ------------------------------------------------------------------------------------------------- tables
def test_decode_is_told_as_a_share_of_the_read_rate_of_its_round() -> None:
    roof = [Sample("roofs", "read", "ours", "bfloat16", 0, 40.0, "GB/s")]
    mine = [Sample("decode", "decode 64", "ours", "bfloat16", 0, 100.0, "tok/s", bytes_read=0.3e9)]
    results = Results("m", {})
    later = [Sample("roofs", "read", "ours", "bfloat16", 0, 10.0, "GB/s")]  # measured again, in another hour
    results.put([SuiteResult("roofs", "later", "c", 5, later), SuiteResult("decode", "now", "c", 5, mine, roofs=roof)])
    text = render(results)
    assert "75 % [75 %, 75 %]" in text and "share of read rate" in text
    assert "Preliminary" not in text


def test_what_had_company_says_so() -> None:
    sample = Sample("decode", "decode 64", "ours", "bfloat16", 0, 100.0, "tok/s")
    results = Results("m", {})
    told = ["ours in round 1: other processes took 40 %", "hf in round 2: the hypervisor took 5 %"]
    results.put([SuiteResult("decode", "now", "c", 5, [sample], disturbed=told)])
    assert f"Disturbed: 2 processes had company, as {told[0]}" in render(results)


@pytest.mark.parametrize(
    ("value", "text"), [(1234.4, "1234"), (12.345, "12.3"), (3.7, "3.70"), (0.12345, "0.123"), (0.00012, "0.000120")]
)
def test_numbers_have_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert number(value) == text


# ------------------------------------------------------------------------------------------------- the scheduler
@pytest.mark.parametrize("policy", POLICIES)
def test_all_256_requests_run_in_every_step_that_is_timed(policy: str) -> None:
    assert decide_and_commit_ms(policy, num_steps=2) > 0  # it asserts the number of rows itself


def test_ours_runs_with_this_interpreter() -> None:
    assert ours().command[0] == sys.executable
