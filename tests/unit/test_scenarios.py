"""The lessons' workloads: valid, alike but for the policy, and shaped so that the lesson's point shows."""

from __future__ import annotations

import pytest

from engine.lab.metrics import makespan_s, num_rows, request_metrics, request_record
from engine.lab.scenario import Scenario, ScenarioError
from lessons.reasons import main_reason
from lessons.scenarios import (
    OUTPUT_TOKENS_RANGE,
    PRESETS,
    PROMPT_TOKENS_RANGE,
    SUGGESTED_PROMPTS,
    batching,
    prefill_decode,
    preset_of,
)
from tests.unit.lesson_runs import batching_runs, serve


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_two_scenarios_of_a_preset_differ_in_the_policy_alone(preset, lang):
    static = batching(preset, "static", lang=lang).model_dump()
    chunked = batching(preset, "chunked", lang=lang).model_dump()
    assert static.pop("policy") == "static" and chunked.pop("policy") == "chunked"
    assert static == chunked
    assert preset_of(static) == preset
    assert Scenario.parse(batching(preset, "static", lang=lang).model_dump(mode="json"))


@pytest.mark.parametrize("preset", PRESETS)
def test_the_languages_differ_in_the_prompts_alone(preset):
    in_english, in_chinese = (batching(preset, "static", lang=lang).model_dump() for lang in ("en", "zh"))
    for one, other in zip(in_english.pop("requests"), in_chinese.pop("requests"), strict=True):
        english, chinese = one.pop("prompt"), other.pop("prompt")
        assert english.isascii() and not chinese.isascii()
        assert one == other
    assert in_english == in_chinese


def test_abcd_is_the_source_lessons_example():
    scenario = batching("abcd", "static")
    a, b, c, d = scenario.requests
    assert [r.request_id for r in scenario.requests] == ["A", "B", "C", "D"]
    assert [r.max_tokens for r in (a, b, c)] == [50, 10, 80]
    assert a.arrival_s == b.arrival_s == c.arrival_s == 0 < d.arrival_s
    assert all(r.ignore_eos for r in scenario.requests)
    assert scenario.limits.max_requests == 3


def test_in_abcd_d_waits_for_the_batch_or_for_one_place():
    runs = batching_runs("abcd")
    assert main_reason(runs["static"], "D") == "batch_not_drained"
    assert main_reason(runs["chunked"], "D") == "request_limit"
    c = request_record(runs["static"], "C")
    d = request_record(runs["static"], "D")
    assert d.first_scheduled_s >= c.completion_s
    d = request_record(runs["chunked"], "D")
    b = request_record(runs["chunked"], "B")
    assert b.completion_s <= d.first_scheduled_s < request_record(runs["chunked"], "A").completion_s


@pytest.mark.parametrize(
    ("preset", "at_least", "at_most"), [("mixed", 1.8, 3), ("one_long", 1.0, 1.4), ("abcd", 1.2, 2)]
)
def test_a_preset_gains_what_its_lengths_promise(preset, at_least, at_most):
    runs = batching_runs(preset)
    assert at_least < makespan_s(runs["static"]) / makespan_s(runs["chunked"]) < at_most


def test_in_one_long_the_short_ones_gain():
    runs = batching_runs("one_long")
    mean = {
        name: sum(request_metrics(r).e2e_s for r in run.requests if r.request_id != "r1") / 7
        for name, run in runs.items()
    }
    assert mean["static"] > 2 * mean["chunked"]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_takes_a_few_seconds_on_a_slow_cpu(preset):
    """20 tokens/s for one stream, and a step that grows with its rows: the longest a learner has to look at it."""
    for policy in ("static", "chunked"):
        run = serve(batching(preset, policy), pass_ms=45, token_ms=5, eos=frozenset())
        assert 1 < makespan_s(run) < 15
        assert max(num_rows(step) for step in run.steps) == run.header.scenario["limits"]["max_requests"]


def test_prefill_decode_fits_lengths_only_when_asked():
    own = prefill_decode("Hello").requests[0]
    assert own.chat and not own.ignore_eos and own.num_prompt_tokens is None and own.max_tokens == 64
    fitted = prefill_decode("Hello", 100, 30, "bfloat16")
    assert fitted.dtype == "bfloat16"
    assert (fitted.requests[0].num_prompt_tokens, fitted.requests[0].max_tokens) == (100, 30)
    assert fitted.requests[0].ignore_eos and not fitted.requests[0].chat


def test_the_sliders_fit_the_limits():
    scenario = prefill_decode("Hello", PROMPT_TOKENS_RANGE[1], OUTPUT_TOKENS_RANGE[1])
    limits = scenario.limits
    assert PROMPT_TOKENS_RANGE[1] <= limits.max_batch_tokens, "one step computes the whole prompt"
    assert PROMPT_TOKENS_RANGE[1] + OUTPUT_TOKENS_RANGE[1] <= limits.num_blocks * scenario.block_size
    run = serve(scenario)
    assert [s.scheduled[0].phase for s in run.steps].count("prefill") == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: prefill_decode(""), "prompt is empty"),
        (lambda: prefill_decode("x" * 100_000), "prompt"),
        (lambda: prefill_decode("hi", 0), "num_prompt_tokens is 0; allowed"),
        (lambda: prefill_decode("hi", 10, 10**9), "max_tokens is 1000000000; allowed"),
        (lambda: prefill_decode("hi", 10, 10, "float8"), "dtype"),
        (lambda: batching("nonsense", "static"), "allowed: abcd, chat, mixed, one_long"),
        (lambda: batching("abcd", "paged"), "allowed: static, chunked"),
    ],
)
def test_a_bad_value_gets_one_sentence(call, words):
    with pytest.raises(ScenarioError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


def test_suggestions_stand_in_both_languages():
    assert len(SUGGESTED_PROMPTS["en"]) == len(SUGGESTED_PROMPTS["zh"]) >= 3
    assert all(p.isascii() for p in SUGGESTED_PROMPTS["en"]) and not any(p.isascii() for p in SUGGESTED_PROMPTS["zh"])


@pytest.mark.parametrize("name", ["", "batching/", "batching/nonsense", "prefill_decode", "other/abcd"])
def test_other_scenarios_have_no_preset(name):
    assert preset_of({"name": name}) is None
