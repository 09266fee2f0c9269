"""The load sweep: arrivals at exactly the load asked for, sized by the device; each load read from its own records."""

from __future__ import annotations

import itertools
import statistics

import pytest

import lessons
from engine.lab.metrics import makespan_s
from engine.lab.scenario import Scenario, ScenarioError
from lessons.facts_error import FactsError
from lessons.later import later_scenario
from lessons.metrics.scenarios import (
    FEWEST,
    LONGEST_WINDOW_S,
    MOST,
    NUM_BLOCKS,
    OUTPUT_TOKENS,
    PLACES,
    PROMPT_TOKENS,
    SHARES,
    WINDOW_S,
    alone,
    arrivals,
    burst,
    capacity_rps,
    load,
)
from lessons.metrics.sweep import in_system, knee, loads, modelled_queue_s, offered_rps, service_s
from tests.unit.lesson_cases.metrics import RUNS, sweep
from tests.unit.lesson_runs import serve


@pytest.fixture(scope="module")
def runs() -> dict:
    return sweep()


# ------------------------------------------------------------------ what is offered
@pytest.mark.parametrize("count", [2, 7, 90])
def test_arrivals_have_exactly_the_mean_rate_and_are_spread_like_a_poisson_process(count: int) -> None:
    times = arrivals(count, 5.0, seed=3)
    assert len(times) == count and times == sorted(times)
    assert times[0] == 0.0 and times[-1] == pytest.approx(5.0, abs=1e-3)
    assert times == arrivals(count, 5.0, seed=3) and (count == 2 or times != arrivals(count, 5.0, seed=4))


def test_gaps_between_arrivals_scatter_as_exponential_ones_do() -> None:
    gaps = [b - a for seed in range(40) for one in [arrivals(60, 59.0, seed)] for a, b in itertools.pairwise(one)]
    assert statistics.fmean(gaps) == pytest.approx(1.0, rel=0.01)
    assert statistics.stdev(gaps) == pytest.approx(1.0, rel=0.1), "evenly spaced arrivals would have 0"


@pytest.mark.parametrize("capacity", [0.05, 0.7, 3.0, 12.0, 900.0])
def test_a_sweep_fits_into_a_minute_on_any_device(capacity: float) -> None:
    total_s = 0.0
    for role in SHARES:
        scenario = load(role, capacity)
        times = [r.arrival_s for r in scenario.requests]
        assert FEWEST <= len(times) <= MOST
        assert max(times) <= LONGEST_WINDOW_S + 1e-3
        total_s += max(max(times), len(times) / capacity)
    assert total_s < 45 or capacity < 0.5, "what is slower than that would need shorter answers"
    if 1 < capacity < 10:
        assert all(max(r.arrival_s for r in load(role, capacity).requests) >= 0.7 * WINDOW_S for role in SHARES)


@pytest.mark.parametrize("places", PLACES)
def test_all_parts_ask_for_like_requests_and_fit_the_cache(places: int) -> None:
    scenarios = [alone(places), burst(places), load("load_5", 4.0, places)]
    assert len({s.limits for s in scenarios}) == 1
    shapes = {(r.num_prompt_tokens, r.max_tokens, r.ignore_eos) for s in scenarios for r in s.requests}
    assert shapes == {(PROMPT_TOKENS, OUTPUT_TOKENS, True)}
    blocks = -(-(PROMPT_TOKENS + OUTPUT_TOKENS) // 16)
    assert places * blocks <= NUM_BLOCKS
    assert all(Scenario.parse(s.model_dump(mode="json")) == s for s in scenarios)


def test_a_bad_value_gets_one_sentence() -> None:
    with pytest.raises(ScenarioError, match="allowed: 4, 8, 16"):
        alone(7)
    with pytest.raises(ScenarioError, match="allowed: load_1"):
        load("load_9", 1.0)


def test_a_later_part_is_made_from_the_runs_before_it(runs: dict) -> None:
    asked = {"places": 8, "dtype": "float32", "lang": "zh", "seed": 1}
    made = later_scenario("metrics", "load_2", asked, {"burst": runs["burst"]})
    assert made == load("load_2", capacity_rps(runs), 8, "float32", "zh", 1)
    with pytest.raises(FactsError, match="run the whole study"):
        later_scenario("metrics", "load_2", asked, {"alone": runs["alone"]})


# ------------------------------------------------------------------ what comes out, from raw records
def test_each_load_is_read_from_its_own_run(runs: dict) -> None:
    found = loads(runs)
    assert [x.role for x in found] == list(SHARES)
    for one in found:
        records = one.run.requests
        assert one.ttft_s == pytest.approx(statistics.fmean(r.first_token_s - r.arrival_s for r in records))
        assert one.e2e_s == pytest.approx(statistics.fmean(r.completion_s - r.arrival_s for r in records))
        assert one.queue_s == pytest.approx(statistics.fmean(r.first_scheduled_s - r.arrival_s for r in records))
        span = max(r.completion_s for r in records) - min(r.arrival_s for r in records)
        assert one.tokens_per_s == pytest.approx(sum(r.num_output_tokens for r in records) / span)
        assert one.offered_rps == pytest.approx(SHARES[one.role] * capacity_rps(runs), rel=0.01)
        assert loads({one.role: one.run}) == [one]


def test_littles_law_agrees_with_the_count(runs: dict) -> None:
    for one in loads(runs):
        assert in_system(one.run) == pytest.approx(one.requests_per_s * one.e2e_s, rel=0.15)


def test_the_plain_queue_is_a_queue(runs: dict) -> None:
    high = loads(runs)[-1].run
    held = service_s(runs)
    assert held == pytest.approx(8 * makespan_s(runs["burst"]) / 16)
    waits = [modelled_queue_s(high, held * factor) for factor in (0.1, 0.5, 1.0, 2.0)]
    assert waits == sorted(waits) and waits[0] == 0
    together = serve(burst(4))
    assert modelled_queue_s(together, 2.0) == pytest.approx(1.0), "four start at once, four after 2 s"


def test_the_knee_has_the_most_throughput_per_latency(runs: dict) -> None:
    found = loads(runs)
    assert knee(found[:2]) is None
    best = knee(found)
    assert all(best.tokens_per_s / best.e2e_s >= one.tokens_per_s / one.e2e_s for one in found)
    assert offered_rps(best.run) == best.offered_rps


@pytest.mark.parametrize("name", RUNS)
def test_the_identity_holds_in_every_run(name: str) -> None:
    values = lessons.facts("metrics", RUNS[name]())
    assert values["identity_ms"] == pytest.approx(values["alone_e2e_ms"], rel=1e-6)
    answers = lessons.prediction_answers("metrics", RUNS[name]())
    assert answers["ttft_growth"] == pytest.approx(values["high_ttft_ms"] / values["low_ttft_ms"])


def test_waiting_grows_and_steps_do_not_on_an_undisturbed_device(runs: dict) -> None:
    values = lessons.facts("metrics", runs)
    assert values["ttft_growth"] > 4 * values["tpot_growth"]
    assert {"note_levels_off", "note_queue_agrees"} <= set(lessons.sections("metrics", runs))


def test_an_unfinished_load_is_no_point(runs: dict) -> None:
    cut = runs["load_3"].model_copy(deep=True)
    cut.requests[0].completion_s, cut.requests[0].finish_reason = None, "abort"
    assert [x.role for x in loads(runs | {"load_3": cut})] == ["load_1", "load_2", "load_4", "load_5"]
