"""What if: the scenario to run again, and two Runs compared request by request, with the reasons."""

import subprocess
import sys
from pathlib import Path

import pytest

from engine.lab.counterfactual import Change, diff, vary
from engine.lab.latency import all_waits, waits
from engine.lab.scenario import Limits, ScenarioError
from tests.fakes import as_run, drain, make_engine, make_request

LENGTHS = {"a": (3, 12), "b": (6, 4), "late": (5, 2)}


def run_of(policy="static", num_prompt_tokens=3, **limits):
    """Three requests, one of which comes when the first batch has begun."""
    engine = make_engine(policy, **limits)
    for name, (prompt, max_tokens) in LENGTHS.items():
        arrival_s = 0.015 if name == "late" else 0.0
        engine.add(make_request(name, num_prompt_tokens if name == "a" else prompt, max_tokens, arrival_s=arrival_s))
    return as_run(engine, drain(engine))


def of(result, name):
    return next(r for r in result.requests if r.request_id == name)


# ---- the scenario to run again -------------------------------------------------------------------------------------


def test_vary_changes_what_it_is_told_and_nothing_else():
    run = run_of("static")
    before = run.header.scenario
    after = vary(run, policy="chunked", limits={"num_blocks": 16}).model_dump(mode="json")
    assert after["policy"] == "chunked"
    assert after["limits"] == before["limits"] | {"num_blocks": 16}
    assert {k: v for k, v in after.items() if k not in ("policy", "limits")} == {
        k: v for k, v in before.items() if k not in ("policy", "limits")
    }
    assert run.header.scenario == before


def test_vary_takes_whole_limits_too():
    limits = Limits(max_requests=2, num_blocks=9, prefix_cache="hash")
    assert vary(run_of(), limits=limits).limits == limits


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "same as before"),
        ({"policy": "static"}, "same as before"),
        ({"policy": "fastest"}, "policy is"),
        ({"limits": {"num_blocks": 0}}, r"limits.num_blocks is 0; allowed: a whole number from 1"),
        ({"limits": {"blocks": 4}}, "limits.blocks is not a field"),
    ],
)
def test_vary_refuses_with_a_sentence(changes, message):
    with pytest.raises(ScenarioError, match=message):
        vary(run_of("static"), **changes)


def test_what_vary_gives_can_be_run_and_compared():
    run = run_of("static")
    scenario = vary(run, policy="chunked")
    again = run_of(scenario.policy)
    assert again.header.scenario == scenario.model_dump(mode="json")
    assert diff(run, again).better()


# ---- two Runs compared ---------------------------------------------------------------------------------------------


def test_who_came_late_gains_what_it_waited_for_the_batch():
    result = diff(run_of("static"), run_of("chunked"))
    late = of(result, "late")
    assert late.e2e_s.delta < -0.05
    assert late.queue_s.delta == pytest.approx(late.e2e_s.delta)
    assert late.causes[0] == ("batch_not_drained", pytest.approx(late.e2e_s.delta))
    assert late.parts_s["batch_not_drained"].after == 0.0
    assert [r.request_id for r in result.better()] == ["late"]
    assert result.worse() == () and of(result, "a").causes == ()
    assert all(r.same_tokens for r in result.requests)
    assert result.makespan_s.delta < 0 and result.num_steps.delta < 0 and result.num_computed_tokens.delta == 0


def test_the_parts_of_a_request_sum_to_its_time_in_both_runs():
    one, two = run_of("static"), run_of("chunked", requests=1, tokens=3)
    for request in diff(one, two).requests:
        assert sum(c.before for c in request.parts_s.values()) == pytest.approx(request.e2e_s.before)
        assert sum(c.after for c in request.parts_s.values()) == pytest.approx(request.e2e_s.after)
        assert sum(seconds for _, seconds in request.causes) == pytest.approx(request.e2e_s.delta)


def test_fewer_blocks_cost_preemptions_and_the_wait_is_named():
    result = diff(run_of("chunked"), run_of("chunked", blocks=4))
    worse = of(result, "b")
    assert worse in result.worse()
    assert (worse.num_preemptions.before, worse.num_preemptions.delta) == (0, 1)
    assert "no_blocks" in dict(worse.causes)
    assert result.num_computed_tokens.delta > 0  # some of it was done twice
    assert worse.same_tokens


def test_the_first_difference_names_the_step_and_the_rows():
    first = diff(run_of("static"), run_of("chunked")).first_difference
    assert (first.step, first.only_before) == (2, ())  # late has come, and only chunked takes it in
    assert first.only_after == ("late [0, 5) prefill",)


def test_equal_runs_have_no_difference():
    result = diff(run_of("chunked"), run_of("chunked"))
    assert result.first_difference is None
    assert (result.better(), result.worse()) == ((), ())
    assert result.num_steps == Change(result.num_steps.before, result.num_steps.before)


def test_a_run_that_is_only_longer_differs_where_the_other_ends():
    one = run_of("chunked")
    two = one.model_copy(update={"steps": one.steps[:-1]})
    first = diff(one, two).first_difference
    assert (first.step, len(first.only_before), first.only_after) == (len(one.steps) - 1, 1, ())


def test_an_aborted_request_has_no_time_to_compare():
    engine = make_engine("chunked")
    for name, (prompt, max_tokens) in LENGTHS.items():
        engine.add(make_request(name, prompt, max_tokens, arrival_s=0.015 if name == "late" else 0.0))
    first = engine.step()
    engine.abort("b")
    aborted = as_run(engine, [first, *drain(engine, _Unchecked())])
    b = of(diff(run_of("chunked"), aborted), "b")
    assert (b.e2e_s.after, b.e2e_s.delta, dict(b.parts_s), b.causes) == (None, None, {}, ())


class _Unchecked:
    def check(self, record):
        """A checker that begins in mid-run cannot replay the blocks."""


def test_other_workloads_are_refused():
    with pytest.raises(ValueError, match="the prompt of a has 3 tokens in one Run and 7 in the other"):
        diff(run_of(), run_of(num_prompt_tokens=7))
    run = run_of()
    with pytest.raises(ValueError, match="request late is in one Run only"):
        diff(run, run.model_copy(update={"requests": run.requests[:2]}))


def test_all_waits_are_the_waits_of_each():
    run = run_of("chunked", requests=1, tokens=3)
    assert all_waits(run) == {name: waits(run, name) for name in LENGTHS}
    assert all_waits(run.model_copy(update={"steps": []})) == dict.fromkeys(LENGTHS, ())


def test_it_imports_no_torch():
    code = "import sys, engine.lab.counterfactual, engine.lab.prefix_use; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True)
