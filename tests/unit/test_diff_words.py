"""What another policy changed, in sentences: who, by how much, and for which recorded reason."""

from __future__ import annotations

import pytest

from engine.lab.counterfactual import Change, RequestDiff, WorkloadError, diff
from engine.lab.diff_words import first_difference, reasons, summary, told, told_text, verdict
from engine.lab.records import Observed
from tests.unit.lab_runs import chunked_scenario, make_run, preempting_scenario, static_scenario

NOTHING = Change(0, 0)


def request(before: float | None, after: float | None, **parts: tuple[float, float]) -> RequestDiff:
    return RequestDiff(
        request_id="a", queue_s=NOTHING, ttft_s=NOTHING, e2e_s=Change(before, after),
        parts_s={name: Change(*values) for name, values in parts.items()},
        num_preemptions=NOTHING, num_cached_tokens=NOTHING, same_tokens=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [(1.0, 0.8, "better"), (1.0, 1.2, "worse"), (1.0, 1.04, "same"), (1.0, 0.96, "same"), (None, 1.0, "unknown")],
)
def test_a_change_within_the_noise_is_none(before, after, expected: str) -> None:
    assert verdict(request(before, after)) == expected


def test_reasons_are_the_recorded_ones_the_largest_first() -> None:
    found = request(1.0, 0.7, no_blocks=(0.5, 0.1), computing=(0.4, 0.45), token_budget=(0.1, 0.15))
    said = reasons(found, "en").split("; ")
    assert said[0] == "waited 400 ms less where no KV block is free"
    assert set(said[1:]) == {
        "was computed for 50 ms longer",
        "waited 50 ms longer because the step's token budget is used up",
    }
    assert "没有空闲的 KV 块" in reasons(found, "zh")


def test_static_against_chunked_names_the_late_request_and_why_it_waited() -> None:
    found = diff(make_run(static_scenario()), make_run(chunked_scenario()))
    late = next(one for one in told(found, "en") if one.request_id == "D")
    assert late.verdict == "better" and "the whole batch has to finish first" in late.why
    verdicts = [one.verdict for one in told(found, "en")]
    assert verdicts == sorted(verdicts, key=["worse", "better", "same"].index)
    assert summary(found, "en").startswith("Of 4 requests")
    assert first_difference(found, "en").startswith("The schedules part at step ")
    assert len(told_text(found, "zh").splitlines()) == 2 + 4


def test_two_runs_of_one_schedule_differ_in_nothing() -> None:
    found = diff(make_run(static_scenario()), make_run(static_scenario()))
    assert {one.verdict for one in told(found, "en")} == {"same"} and {one.why for one in told(found, "en")} == {""}
    assert first_difference(found, "en").startswith("Every step computed the same")


def test_preemptions_and_cache_hits_are_named() -> None:
    roomy = preempting_scenario()
    roomy["limits"] = {**roomy["limits"], "num_blocks": 512}
    found = diff(make_run(roomy), make_run(preempting_scenario()))
    assert "preemptions: 1 instead of 0" in told_text(found, "en")


def test_a_run_watched_from_outside_is_not_compared() -> None:
    ours, outside = make_run(static_scenario()), make_run(static_scenario())
    outside.header.observed = Observed(source="http://x", server="x", lacks=["steps"])
    with pytest.raises(WorkloadError, match="watched from outside"):
        diff(ours, outside)
