"""The explanations: every placeholder has a value from the Run, every sentence shown is true of it."""

from __future__ import annotations

import math
import re
import statistics

import pytest

import lessons
from engine.lab.records import Run
from lessons.catalog import lesson, load_lessons
from lessons.run_facts import FactsError, text
from lessons.scenarios import PRESETS
from lessons.text import LANGS, placeholders
from tests.unit.lesson_runs import (
    batching_runs,
    disturbed_batching_runs,
    prefill_decode_runs,
    random_batching_runs,
)

ALL_RUNS = {
    **{f"batching/{preset}": ("batching", lambda p=preset: batching_runs(p)) for preset in PRESETS},
    "batching/dear rows": ("batching", lambda: batching_runs("abcd", pass_ms=1, token_ms=20)),
    "batching/no eos": ("batching", lambda: batching_runs("chat", eos=frozenset())),
    "batching/disturbed": ("batching", lambda: disturbed_batching_runs("abcd")),
    "prefill/disturbed": ("prefill_decode", lambda: prefill_decode_runs(jitter=4)),
    "prefill/short": ("prefill_decode", lambda: prefill_decode_runs(10)),
    "prefill/long": ("prefill_decode", lambda: prefill_decode_runs(300)),
    "prefill/own": ("prefill_decode", lambda: prefill_decode_runs(None)),
    "prefill/two tokens": ("prefill_decode", lambda: prefill_decode_runs(37, 2)),
    "prefill/one token": ("prefill_decode", lambda: prefill_decode_runs(37, 1)),
    "prefill/no ceilings": ("prefill_decode", lambda: prefill_decode_runs(ceilings=None)),
    "prefill/above": ("prefill_decode", lambda: prefill_decode_runs(pass_ms=90)),
    "prefill/below": ("prefill_decode", lambda: prefill_decode_runs(pass_ms=5)),
}


@pytest.fixture(scope="module")
def served() -> dict[str, tuple[str, dict[str, Run]]]:
    return {name: (lesson_id, make()) for name, (lesson_id, make) in ALL_RUNS.items()}


@pytest.mark.parametrize("name", ALL_RUNS)
def test_every_placeholder_of_every_section_that_holds_is_provided(served, name):
    lesson_id, runs = served[name]
    facts = lessons.facts(lesson_id, runs)
    shown = lessons.sections(lesson_id, runs)
    assert set(shown) <= set(lesson(lesson_id).sections)
    for lang in LANGS:
        for section in shown:
            assert placeholders(lesson(lesson_id).text(lang, section)) <= set(facts), section
        whole = lessons.headline(lesson_id, runs, lang) + lessons.explanation(lesson_id, runs, lang)
        assert len(whole) > 50
        assert not re.search(r"\{[a-z]|\bnan\b|\binf\b|None", whole)


def test_every_section_with_placeholders_is_reached_by_some_run(served):
    """So that no note is left whose placeholders nobody provides."""
    reached = {(lesson_id, s) for lesson_id, runs in served.values() for s in lessons.sections(lesson_id, runs)}
    tested = {lesson_id for lesson_id, _ in served.values()}  # the others bring cases of their own
    written = {(x.id, s) for x in load_lessons() if x.id in tested for s in x.sections if placeholders(x.text("en", s))}
    assert written <= reached | {("batching", "note_same_pace"), ("batching", "note_no_padding")}
    for lesson_id, section in written - reached:
        runs = next(r for i, r in served.values() if i == lesson_id)
        assert text(lesson_id, section, runs, "en")


def test_sections_without_facts_have_no_placeholders():
    for found in load_lessons():
        for section in found.sections:
            if section.startswith("before") or section == "summary":
                assert not placeholders(found.text("en", section))


# ------------------------------------------------------------------ prefill and decode: the numbers, from raw records


@pytest.mark.parametrize("name", ["prefill/short", "prefill/long", "prefill/own", "prefill/two tokens"])
def test_the_numbers_of_prefill_and_decode_follow_from_the_records(served, name):
    runs = served[name][1]
    facts = lessons.facts("prefill_decode", runs)
    run, record = runs["run"], runs["run"].requests[0]
    prompt, output = record.num_prompt_tokens, record.num_output_tokens
    gaps = [b.t_end_s - a.t_end_s for a, b in zip(run.steps, run.steps[1:], strict=False)]
    assert facts["tpot_ms"] == pytest.approx(1e3 * statistics.fmean(gaps))
    prefill_s = run.steps[0].t_end_s - record.first_scheduled_s
    assert facts["prefill_ms"] == pytest.approx(1e3 * prefill_s)
    assert facts["token_ratio"] == pytest.approx(statistics.fmean(gaps) / (prefill_s / prompt))
    assert facts["prefill_share"] + facts["decode_share"] == pytest.approx(100)
    assert facts["num_decode_steps"] == output - 1 == len(run.steps) - 1
    assert facts["kv_positions"] == prompt + output - 1
    assert facts["kv_blocks"] == math.ceil((prompt + output - 1) / 16)
    assert facts["unused_slots"] == facts["kv_blocks"] * 16 - facts["kv_positions"]
    assert facts["kv_per_position"] == "46.1 kB"  # 2 · 30 layers · 3 KV heads · 64 · 4 bytes = 46 080
    assert facts["bytes_per_weight"] == 4 and facts["weights"] == "538 MB"
    assert facts["decode_intensity"] == pytest.approx(0.5, rel=0.1)
    assert facts["prefill_intensity"] > 0.3 * prompt
    answers = lessons.prediction_answers("prefill_decode", runs)
    assert answers["token_ratio"] == facts["token_ratio"] and answers["prefill_share"] == facts["prefill_share"]


def test_the_crossing_length_is_where_intensity_meets_the_ridge(served):
    from engine.lab.work import ChunkShape, intensity, step_work

    runs = served["prefill/short"][1]
    facts = lessons.facts("prefill_decode", runs)
    model = runs["run"].header.model

    def reached(num_tokens: int) -> float:
        return intensity(step_work(model, [ChunkShape(0, num_tokens, "prefill", True)], 4.0, 4.0))

    cross = facts["cross_tokens"]
    assert reached(math.floor(0.85 * cross)) < facts["ridge"] < reached(math.ceil(1.15 * cross))


def test_notes_follow_the_run(served):
    def notes(name: str) -> set[str]:
        return set(lessons.sections(*served[name]))

    assert notes("prefill/one token") == {"note_one_token"}
    assert "note_no_ceilings" in notes("prefill/no ceilings")
    assert "note_decode_near" in notes("prefill/short")
    assert "note_decode_above" in notes("prefill/above")
    assert "note_decode_below" in notes("prefill/below")
    assert "note_prefill_memory" in notes("prefill/short") and "note_prefill_compute" in notes("prefill/long")
    assert "note_stop" not in notes("prefill/short")
    stopped = served["prefill/own"][1]["run"].requests[0].finish_reason == "stop"
    assert ("note_stop" in notes("prefill/own")) == stopped


def test_a_disturbed_machine_is_named_and_nothing_is_made_of_its_seconds(served):
    shown = lessons.sections(*served["batching/disturbed"])
    assert shown[-1] == "note_noisy" and not any(s.startswith(("note_gain", "note_step", "note_same")) for s in shown)
    assert "note_noisy" in lessons.sections(*served["prefill/disturbed"])
    for name in ("batching/abcd", "batching/mixed", "prefill/short"):
        assert "note_noisy" not in lessons.sections(*served[name])


def test_the_model_is_the_division_it_claims_to_be(served):
    facts = lessons.facts("prefill_decode", served["prefill/short"][1])
    assert facts["tpot_model_ms"] == pytest.approx(1e3 * 538_060_032 / 21.3e9)
    assert facts["tpot_factor"] == pytest.approx(facts["tpot_ms"] / facts["tpot_model_ms"])
    assert facts["ridge"] == pytest.approx(0.118e12 / 21.3e9)


# ------------------------------------------------------------------ batching: the numbers, from raw records


@pytest.mark.parametrize("preset", PRESETS)
def test_the_numbers_of_batching_follow_from_the_records(served, preset):
    runs = served[f"batching/{preset}"][1]
    static, chunked = runs["static"], runs["chunked"]
    facts = lessons.facts("batching", runs)
    assert facts["times_sooner"] == pytest.approx(
        max(r.completion_s for r in static.requests) / max(r.completion_s for r in chunked.requests)
    )
    rows = [row for step in static.steps for row in step.scheduled if row.phase in ("decode", "padding")]
    padding = [row for row in rows if row.phase == "padding"]
    assert (facts["static_rows"], facts["padding_tokens"]) == (len(rows), len(padding))
    assert facts["padding_tokens"] == sum(step.work.padding_tokens for step in static.steps)
    decode = len(rows) - len(padding)
    assert decode == sum(r.num_output_tokens - 1 for r in static.requests)
    assert facts["full_steps"] == math.ceil(decode / facts["max_requests"])
    assert facts["rows_static"] == pytest.approx(decode / facts["static_decode_steps"])
    assert facts["rows_static"] < facts["rows_continuous"] <= facts["max_requests"]
    assert not [row for step in chunked.steps for row in step.scheduled if row.phase == "padding"]
    answers = lessons.prediction_answers("batching", runs)
    asked = {p.id for p in lesson("batching").predictions if p.asked_for(preset)}
    assert set(answers) == asked, "every prediction that is asked for is answered, and no other"


def test_abcd_says_what_the_source_says(served):
    runs = served["batching/abcd"][1]
    facts = lessons.facts("batching", runs)
    assert (facts["idle_a"], facts["idle_b"]) == (30, 70)
    assert lessons.prediction_answers("batching", runs)["idle_steps_b"] == 70
    assert facts["waiter"] == "D" and facts["late_one"] == "D"
    shown = lessons.sections("batching", runs)
    assert {"note_abcd", "note_waiting", "note_still_waiting", "note_step_time", "note_gain_large"} <= set(shown)
    said = lessons.explanation("batching", runs, "en")
    assert "the batch before it had not drained" in said and "all places were taken" in said
    assert "70 more steps" in said
    said = lessons.explanation("batching", runs, "zh")
    assert "上一批还没有全部做完" in said and "陪跑了 70 步" in said


def test_dear_rows_are_not_called_cheap(served):
    shown = lessons.sections(*served["batching/dear rows"])
    assert "note_step_time_dear" in shown and "note_step_time" not in shown


def test_one_long_gains_little_in_total_and_much_for_the_short(served):
    shown = lessons.sections(*served["batching/one_long"])
    assert "note_gain_small" in shown and "note_gain_large" not in shown


def test_steps_and_seconds_are_spoken_of_only_where_they_differ():
    runs = batching_runs("abcd", token_ms=8)
    facts = lessons.facts("batching", runs)
    pace = facts["step_ratio"] / facts["times_sooner"]
    assert ("note_same_pace" in lessons.sections("batching", runs)) == (max(pace, 1 / pace) > 1.1)


@pytest.mark.parametrize("seed", range(60))
def test_any_workload_can_be_explained(seed):
    runs = random_batching_runs(seed)
    for lang in LANGS:
        whole = lessons.headline("batching", runs, lang) + lessons.explanation("batching", runs, lang)
        assert not re.search(r"\{[a-z]|\bnan\b|\binf\b|None", whole)
    facts = lessons.facts("batching", runs)
    if "note_no_padding" in lessons.sections("batching", runs):
        assert facts["padding_tokens"] == 0
    assert facts["bound_times"] >= 1 or facts["static_decode_steps"] == 0


# ------------------------------------------------------------------ Runs that cannot answer


def test_runs_that_cannot_answer_are_refused_in_one_sentence(served):
    abcd = served["batching/abcd"][1]
    chat = served["batching/chat"][1]
    cut = abcd["static"].model_copy(deep=True)
    cut.requests[1].completion_s, cut.requests[1].finish_reason = None, "abort"
    empty = served["prefill/own"][1]["run"].model_copy(deep=True)
    empty.requests[0].first_token_s = None
    cases = [
        ("batching", {}, "no static and no chunked"),
        ("batching", {"static": abcd["static"]}, "no chunked run"),
        ("batching", {"static": abcd["static"], "chunked": chat["chunked"]}, "different requests"),
        ("batching", {"static": cut, "chunked": abcd["chunked"]}, "request B did not finish"),
        ("prefill_decode", {}, "no run yet"),
        ("prefill_decode", {"run": empty}, "before its first token"),
        ("prefill_decode", {"run": empty.model_copy(update={"requests": []})}, "no request"),
    ]
    for lesson_id, runs, words in cases:
        for ask in (lessons.facts, lessons.sections, lessons.prediction_answers):
            with pytest.raises(FactsError, match=words):
                ask(lesson_id, runs)
