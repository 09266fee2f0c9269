"""The points of the roofline: work and time from raw records, ridge and crossing from their definitions."""

from __future__ import annotations

import statistics

import pytest

import lessons
from engine.lab import catalogue
from engine.lab.scenario import Scenario, ScenarioError
from engine.lab.work import stored_bytes_per_element
from lessons.roofline.points import crossing_tokens, measured_crossing, points, prefill_intensity, ridge_of
from lessons.roofline.scenarios import DECODE_BATCHES, NUM_BLOCKS, PREFILL_LENGTHS, ROLES, scenario, size_of
from tests.unit.lesson_cases.roofline import RUNS, study
from tests.unit.lesson_runs import MODEL


@pytest.fixture(scope="module")
def runs() -> dict:
    return study(pass_ms=25, token_ms=1.7)


@pytest.mark.parametrize("role", ROLES)
def test_a_part_makes_steps_of_one_kind_and_size(runs: dict, role: str) -> None:
    made = scenario(role)
    assert Scenario.parse(made.model_dump(mode="json")) == made
    assert made.limits.num_blocks == NUM_BLOCKS, "one cache for all parts"
    point = points(runs)[role]
    assert point.size == size_of(role) and point.count >= 3
    steps = runs[role].steps
    if point.kind == "prefill":
        assert len(steps) == point.count, "every prompt is computed whole and alone"
        assert {s.work.tokens for s in steps} == {point.size}
    else:
        assert [len(s.scheduled) for s in steps] == [point.size] * len(steps)
        assert len(steps) == point.count + 1, "one step computes all prompts"


def test_a_point_stands_on_the_records(runs: dict) -> None:
    for role, point in points(runs).items():
        kind = role.split("_")[0]
        steps = [s for s in runs[role].steps if {row.phase for row in s.scheduled} == {kind}]
        assert point.forward_s == pytest.approx(statistics.median(s.time_ms.forward for s in steps) / 1e3)
        assert point.flops == statistics.median(s.work.flops for s in steps)
        moved = [s.work.weight_bytes + s.work.kv_read_bytes + s.work.kv_write_bytes for s in steps]
        assert point.intensity == pytest.approx(point.flops / statistics.median(moved))
        assert point.tflops == pytest.approx(point.flops / point.forward_s / 1e12)
        assert point.low_s <= point.forward_s <= point.high_s
        slower = max(statistics.median(moved) / 21.3e9, point.flops / 0.118e12)
        assert point.modelled_s(21.3, 0.118) == pytest.approx(slower)


def test_intensity_follows_the_tokens_that_share_the_weights(runs: dict) -> None:
    found = sorted(points(runs).values(), key=lambda p: p.intensity)
    assert [p.size for p in found if p.kind == "decode"] == list(DECODE_BATCHES)
    assert [p.size for p in found if p.kind == "prefill"] == list(PREFILL_LENGTHS)
    by_role = points(runs)
    assert by_role["decode_8"].intensity == pytest.approx(8 * by_role["decode_1"].intensity, rel=0.05)
    assert by_role["decode_1"].intensity == pytest.approx(0.5, rel=0.05), "2 FLOP per weight of 4 bytes"


def test_fewer_bytes_move_a_point_to_the_right(runs: dict) -> None:
    point = points(runs)["decode_4"]
    assert point.in_dtype("float32") == point.intensity
    assert point.in_dtype("bfloat16") == pytest.approx(2 * point.intensity)
    assert point.in_dtype("int8") == pytest.approx(4 * point.intensity)


@pytest.mark.parametrize("ridge", [0.6, 5.5, 53, 106, 150])
def test_the_crossing_is_the_shortest_prompt_that_reaches_the_ridge(ridge: float) -> None:
    tokens = crossing_tokens(MODEL, ridge)
    size = stored_bytes_per_element(MODEL)
    assert prefill_intensity(MODEL, tokens, size) >= ridge
    assert tokens == 1 or prefill_intensity(MODEL, tokens - 1, size) < ridge


def test_a_ridge_that_no_prompt_reaches_has_no_crossing() -> None:
    assert crossing_tokens(MODEL, 1e9) is None
    assert crossing_tokens(MODEL, 0.0) == 1


def test_the_crossing_of_the_textbook_model_is_near_its_ridge() -> None:
    """In 16 bits a token adds about 1 FLOP/byte."""
    seven_b = catalogue.model("llama-2-7b").info("float16")
    for ridge in (51, 106, 295):
        assert crossing_tokens(seven_b, ridge) == pytest.approx(ridge, rel=0.15)


def test_the_measured_crossing_needs_no_ceiling() -> None:
    found = points(study(ceilings=None, pass_ms=40, token_ms=2.0, jitter=0.0))
    crossing = measured_crossing(found["decode_1"], found["prefill_512"])
    assert crossing == pytest.approx(42 / ((40 + 512 * 2) / 512), rel=0.01)
    assert "ridge" not in lessons.facts("roofline", study(ceilings=None))


def test_the_ridge_is_a_quotient_of_the_two_ceilings() -> None:
    assert ridge_of(448, 23.7) == pytest.approx(52.9, abs=0.1)
    assert ridge_of(448, 47.4) == pytest.approx(105.8, abs=0.1)


def test_predictions_are_answered_from_times_alone() -> None:
    with_roof, without = RUNS["near the roof"](), RUNS["no ceilings"]()
    for runs in (with_roof, without):
        found = points(runs)
        answers = lessons.prediction_answers("roofline", runs)
        assert answers["batch_gain"] == pytest.approx(found["decode_16"].tflops / found["decode_1"].tflops)
        assert answers["cross_tokens"] == round(measured_crossing(found["decode_1"], found["prefill_512"]))


def test_parts_in_two_formats_are_not_drawn_together() -> None:
    mixed = study(roles=("decode_1", "decode_16")) | study("bfloat16", roles=("prefill_512",))
    with pytest.raises(lessons.FactsError, match="different number formats"):
        lessons.facts("roofline", mixed)


def test_an_unknown_part_gets_one_sentence() -> None:
    with pytest.raises(ScenarioError, match="allowed: prefill_8"):
        scenario("prefill_9")
