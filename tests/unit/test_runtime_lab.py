"""The runtime turns a scenario into a Run that the checker accepts, with a tiny random model."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.lab.check import check_run
from engine.lab.probes import quantization_error
from engine.lab.records import Disturbance, Run
from engine.lab.scenario import Scenario, ScenarioError
from engine.lab.work import element_sizes, kv_bytes_per_token
from engine.runtime.lab import LabRuntime, RunCancelled, RunResult
from engine.settings import Settings

RUN_ID = "run-0123456789ab"


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> LabRuntime:
    home: Path = tmp_path_factory.mktemp("home")
    return LabRuntime(Settings(home, f"sqlite:///{home}/lab.sqlite3", 8600, "tiny-random"))


def scenario(**fields: object) -> Scenario:
    requests = [
        {"prompt": "What is a KV cache?", "max_tokens": 12, "ignore_eos": True},
        {"prompt_token_ids": [1, 2, 3], "max_tokens": 3, "ignore_eos": True},
        {"prompt": "late", "max_tokens": 5, "ignore_eos": True, "arrival_s": 0.05, "temperature": 0.8},
    ]
    data = {"model": "tiny-random", "limits": {"max_requests": 2, "num_blocks": 64}, "requests": requests}
    return Scenario.parse(data | fields)


def run(runtime: LabRuntime, wanted: Scenario) -> RunResult:
    return runtime.run(runtime.prepare(wanted), RUN_ID)


@pytest.mark.parametrize("policy", ["static", "chunked"])
def test_a_run_passes_the_check_and_tells_every_request(runtime: LabRuntime, policy: str) -> None:
    result = run(runtime, scenario(policy=policy))
    check_run(result.run)
    assert [r.num_output_tokens for r in result.run.requests] == [12, 3, 5]
    assert result.run.header.scenario["policy"] == policy
    assert {name: len(pieces) for name, pieces in result.pieces.items()} == {"r0": 12, "r1": 3, "r2": 5}


def test_a_run_says_what_else_the_machine_did(runtime: LabRuntime, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    seen = Disturbance(steal_share=0.0, others_share=0.3, is_noisy=True)
    monkeypatch.setattr("engine.runtime.lab.disturbance", lambda before: seen)
    made = run(runtime, scenario()).run
    made.save(tmp_path / "noisy.jsonl")
    assert Run.load(tmp_path / "noisy.jsonl").header.disturbance == seen
    monkeypatch.setattr("engine.runtime.lab.disturbance", lambda before: None)
    run(runtime, scenario()).run.save(tmp_path / "unknown.jsonl")
    assert "disturbance" not in (tmp_path / "unknown.jsonl").read_text()


def test_the_same_scenario_gives_the_same_tokens_again_and_under_either_policy(runtime: LabRuntime) -> None:
    runs = [run(runtime, scenario(policy=policy)).run for policy in ("static", "chunked", "chunked")]
    outputs = [[r.output_token_ids for r in one.requests] for one in runs]
    assert outputs[0] == outputs[1] == outputs[2]


def test_text_arrives_with_the_steps_and_adds_up(runtime: LabRuntime) -> None:
    seen: dict[str, str] = {}

    def on_step(record: object, deltas: dict[str, str]) -> None:
        for name, delta in deltas.items():
            seen[name] = seen.get(name, "") + delta

    result = runtime.run(runtime.prepare(scenario()), RUN_ID, on_step)
    assert seen == {name: text for name, text in result.texts.items() if text}


def test_a_run_that_is_stopped_keeps_nothing_and_the_next_one_works(runtime: LabRuntime) -> None:
    with pytest.raises(RunCancelled):
        runtime.run(runtime.prepare(scenario()), RUN_ID, should_stop=lambda: True)
    check_run(run(runtime, scenario()).run)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"requests": [{"prompt": "a", "max_tokens": 8_000}]}, "positions"),
        ({"limits": {"num_blocks": 1}, "requests": [{"prompt": "a", "max_tokens": 40}]}, "num_blocks"),
        ({"requests": [{"prompt_token_ids": [10_000_000]}]}, "allowed: 0 to"),
    ],
)
def test_what_cannot_run_is_refused_with_numbers(runtime: LabRuntime, fields: dict, sentence: str) -> None:
    with pytest.raises(ScenarioError, match=sentence):
        run(runtime, scenario(**fields))


@pytest.mark.parametrize("weights", [None, "int8", "int4"])
@pytest.mark.parametrize("kv_dtype", [None, "int8", "int4"])
def test_a_quantized_run_passes_the_check_and_states_the_size_of_its_elements(runtime, weights, kv_dtype) -> None:
    made = run(runtime, scenario(weights=weights, kv_dtype=kv_dtype)).run
    check_run(made)
    assert [r.num_output_tokens for r in made.requests] == [12, 3, 5]
    weight_size, kv_size = element_sizes(made.header)
    assert weight_size == (4 if weights is None else 1 + 4 / 128), "the head's: int8 with one scale per output"
    assert (
        kv_size == {None: 4, "int8": 1 + 2 * (1 / 16 + 1 / 32) / 2, "int4": 0.5 + 4 * (1 / 16 + 1 / 32) / 2}[kv_dtype]
    )
    plain = run(runtime, scenario()).run.steps[0].work
    work = made.steps[0].work
    assert (work.flops, work.tokens) == (plain.flops, plain.tokens)
    assert (work.weight_bytes < plain.weight_bytes / 3) == (weights is not None)
    assert (work.kv_write_bytes < plain.kv_write_bytes / 3) == (kv_dtype is not None)


def test_int8_keys_and_values_halve_what_a_block_of_bfloat16_takes(runtime) -> None:
    sizes = {}
    for kv_dtype in (None, "int8"):
        header = run(runtime, scenario(dtype="bfloat16", kv_dtype=kv_dtype)).run.header
        sizes[kv_dtype] = kv_bytes_per_token(header.model, element_sizes(header)[1]) * header.block_size
    assert sizes["int8"] / sizes[None] == 0.5 + 2 * (1 / 16 + 1 / 32) / 2 / 2, "half, and the scales"


@pytest.mark.parametrize("fields", [{"weights": "int4"}, {"kv_dtype": "int4"}])
def test_what_quantization_changed_stands_in_the_header(runtime: LabRuntime, fields: dict) -> None:
    last = {"requests": [{"prompt": "late"}, {"prompt": "What is a KV cache?", "max_tokens": 12, "ignore_eos": True}]}
    plain = run(runtime, scenario(**last)).run
    other = Run.from_jsonl(run(runtime, scenario(**last, **fields, probes=["quantization"])).run.to_jsonl())
    check_run(other)
    found = quantization_error(other)
    pairs = zip(plain.requests[1].output_token_ids, other.requests[1].output_token_ids, strict=True)
    assert found.first_divergent_token == next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    assert found.request_id == "r1" and found.num_tokens == len(found.max_errors) == 12
    assert 0 < found.mean_logit_error < found.max_logit_error == max(found.max_errors)
    smaller = found.weight_bytes < found.reference_weight_bytes
    assert smaller == ("weights" in fields) and found.reference_weight_bytes == plain.header.model.weight_bytes
    assert (found.kv_bytes_per_element < found.reference_kv_bytes_per_element) == ("kv_dtype" in fields)
    assert quantization_error(plain) is None
    num_looks = iter(range(10_000))
    with pytest.raises(RunCancelled):  # so many looks are only reached while the two forms are compared
        prepared = runtime.prepare(scenario(**last, **fields, probes=["quantization"]))
        runtime.run(prepared, RUN_ID, should_stop=lambda: next(num_looks) > len(other.steps) + 3)


def test_a_probe_needs_something_quantized() -> None:
    with pytest.raises(ScenarioError, match="give weights or kv_dtype"):
        scenario(probes=["quantization"])


def test_quantized_weights_are_not_trained(runtime) -> None:
    with pytest.raises(ScenarioError, match="weights is 'int8'; quantized weights cannot be trained"):
        runtime.prepare(scenario(weights="int8", probes=["training_step"]))


def test_live_serving_gives_text_and_a_reason_and_its_blocks_back(runtime: LabRuntime) -> None:
    class Spec:
        prompt = (1, 2, 3)
        max_tokens = 4
        temperature = 0.0
        top_p = 1.0
        top_k = -1
        seed = None
        stop = ()
        ignore_eos = False

    serving = runtime.serving()
    first, second = serving.add(Spec()), serving.add(Spec())
    serving.step()
    assert serving.free_blocks < serving.total_blocks
    assert serving.abort(second)
    reasons = {}
    while serving.has_work:
        for event in serving.step():
            reasons[event.request_id] = event.finish_reason
    assert reasons == {first: "length"} or reasons[first] in ("length", "stop")
    assert serving.free_blocks == serving.total_blocks


@pytest.mark.parametrize(("ignored", "reason"), [(False, "stop"), (True, "length")])
def test_live_serving_goes_on_past_the_end_of_the_answer_only_when_asked(runtime, ignored: bool, reason: str) -> None:
    spec = SimpleNamespace(
        prompt=(1, 2, 3), max_tokens=4, temperature=0.0, top_p=1.0, top_k=-1, seed=None, stop=(), ignore_eos=ignored
    )
    serving = runtime.serving()
    every_token = frozenset(range(serving._loaded.info.vocab_size))
    serving._loaded = dataclasses.replace(serving._loaded, eos_token_ids=every_token)
    serving.add(spec)
    events = []
    while serving.has_work:
        events += serving.step()
    assert [event.finish_reason for event in events if event.finish_reason] == [reason]


def test_the_device_report_names_device_models_and_limits(runtime: LabRuntime) -> None:
    report = runtime.describe()
    assert report["device"]["threads"] >= 1
    assert report["default_model"]["name"] == "tiny-random"
    assert report["limits"]["max_requests_per_scenario"] > 0


def test_what_a_run_loads_does_not_change_the_model_in_the_device_report(runtime: LabRuntime) -> None:
    runtime.load("tiny-random", "float32")
    before = runtime.describe()["default_model"]
    for fields in ({"weights": "int4"}, {"dtype": "bfloat16"}, {"num_kv_heads": 1}):
        run(runtime, scenario(**fields))
        assert runtime.describe()["default_model"] == before


def test_a_prepared_run_can_run_twice_and_its_file_holds_any_prompt(runtime: LabRuntime) -> None:
    lines = "one\u2028two\u0085three\x0cfour"
    prepared = runtime.prepare(scenario(requests=[{"prompt": lines, "max_tokens": 2, "ignore_eos": True}]))
    first, second = (runtime.run(prepared, RUN_ID).run for _ in range(2))
    assert first.requests[0].output_token_ids == second.requests[0].output_token_ids
    assert Run.from_jsonl(first.to_jsonl()) == first
