"""What if: the same workload under another policy or other limits, and what that changed for each request, and why.

``vary`` makes the Scenario to run again; ``diff`` compares the two Runs. A request's end-to-end time is split without
remainder into the time it was computed (``computing``) and its waits by the scheduler's own reasons, so a difference in
time is explained by the parts that changed, and nothing is guessed. Pure and torch-free; nothing is measured here. Two
Runs are two measurements: seconds differ a little even where the schedules do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from engine.lab.latency import Wait, WaitReason, all_waits, request_metrics
from engine.lab.metrics import makespan_s
from engine.lab.records import RequestRecord, Run, StepRecord
from engine.lab.scenario import Limits, PolicyName, Scenario, ScenarioError

SAME_S = 1e-6  # differences below this are rounding of the clock's numbers

Part = WaitReason | Literal["computing"]


class WorkloadError(ValueError):
    """Two Runs that cannot be compared, because they did not serve the same requests. One sentence."""


def vary(run: Run, policy: PolicyName | None = None, limits: Limits | Mapping[str, object] | None = None) -> Scenario:
    """The Run's scenario with another policy, other limits (all of them, or some by name), or both. Pure.

    Raises: ScenarioError for a value that is not allowed, or if nothing would change.
    """
    before = Scenario.parse(run.header.scenario)
    data = before.model_dump(mode="json")
    if policy is not None:
        data["policy"] = policy
    if limits is not None:
        data["limits"] |= limits.model_dump() if isinstance(limits, Limits) else dict(limits)
    after = Scenario.parse(data)
    if after == before:
        raise ScenarioError("the scenario is the same as before; change the policy or a limit", "policy")
    return after


@dataclass(frozen=True)
class Change:
    """A value in the first and in the second Run; None where it is undefined."""

    before: float | None
    after: float | None

    @property
    def delta(self) -> float | None:
        """Second minus first: below 0 the second Run has less of it."""
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(frozen=True)
class RequestDiff:
    """One request in both Runs. ``parts_s``: where its end-to-end seconds went; in each Run they sum to ``e2e_s``.

    Empty where a Run has no end-to-end time for it, because it was aborted there.
    """

    request_id: str
    queue_s: Change
    ttft_s: Change
    e2e_s: Change
    parts_s: Mapping[Part, Change]
    num_preemptions: Change
    num_cached_tokens: Change
    same_tokens: bool  # as far as both go

    @property
    def causes(self) -> tuple[tuple[Part, float], ...]:
        """The parts that changed, with their seconds, the largest first."""
        deltas = [(part, change.delta or 0.0) for part, change in self.parts_s.items()]
        return tuple(sorted((d for d in deltas if abs(d[1]) > SAME_S), key=lambda d: -abs(d[1])))


@dataclass(frozen=True)
class FirstDifference:
    """The first step at which the two schedules part. ``only_before`` and ``only_after`` are rows of one Run alone."""

    step: int
    only_before: tuple[str, ...]  # "request_id [start, end) phase"
    only_after: tuple[str, ...]


@dataclass(frozen=True)
class RunDiff:
    """Two Runs of one workload. ``first_difference`` is None if every step computed the same."""

    requests: tuple[RequestDiff, ...]
    first_difference: FirstDifference | None
    num_steps: Change
    makespan_s: Change
    num_computed_tokens: Change  # real rows of all steps: less where a prefix was found, more where work was done again

    def better(self) -> tuple[RequestDiff, ...]:
        """Requests that were over sooner, the largest gain first. Pure."""
        return tuple(sorted((r for r in self.requests if (r.e2e_s.delta or 0) < 0), key=lambda r: r.e2e_s.delta or 0))

    def worse(self) -> tuple[RequestDiff, ...]:
        """Requests that were over later, the largest loss first. Pure."""
        return tuple(
            sorted((r for r in self.requests if (r.e2e_s.delta or 0) > 0), key=lambda r: -(r.e2e_s.delta or 0))
        )


def diff(before: Run, after: Run) -> RunDiff:
    """Compare two Runs of one workload, request by request. Pure.

    Raises: WorkloadError if the workloads differ, or if the steps of one are not known.
    """
    for run in (before, after):
        if run.header.observed is not None:
            raise WorkloadError(
                f"{run.run_id} was watched from outside, so its steps and waits are not known; "
                "compare two Runs of this engine"
            )
    first, second = ({r.request_id: r for r in run.requests} for run in (before, after))
    _require_same_workload(first, second)
    waits = all_waits(before), all_waits(after)
    return RunDiff(
        requests=tuple(_request_diff(first[name], second[name], waits[0][name], waits[1][name]) for name in first),
        first_difference=_first_difference(before.steps, after.steps),
        num_steps=Change(len(before.steps), len(after.steps)),
        makespan_s=Change(makespan_s(before), makespan_s(after)),
        num_computed_tokens=Change(_num_computed(before), _num_computed(after)),
    )


def _require_same_workload(first: Mapping[str, RequestRecord], second: Mapping[str, RequestRecord]) -> None:
    if first.keys() != second.keys():
        odd = sorted(first.keys() ^ second.keys())[0]
        raise WorkloadError(f"request {odd} is in one Run only; compare two Runs of the same workload")
    for name, record in first.items():
        lengths = record.num_prompt_tokens, second[name].num_prompt_tokens
        if lengths[0] != lengths[1]:
            raise WorkloadError(
                f"the prompt of {name} has {lengths[0]} tokens in one Run and {lengths[1]} in the other; "
                "compare two Runs of the same workload"
            )


def _request_diff(
    first: RequestRecord, second: RequestRecord, waits_before: tuple[Wait, ...], waits_after: tuple[Wait, ...]
) -> RequestDiff:
    one, two = request_metrics(first), request_metrics(second)
    parts = _parts(one.e2e_s, waits_before), _parts(two.e2e_s, waits_after)
    names = dict.fromkeys([*parts[0], *parts[1]]) if parts[0] and parts[1] else ()
    num_common = min(first.num_output_tokens, second.num_output_tokens)
    return RequestDiff(
        request_id=first.request_id,
        queue_s=Change(one.queue_s, two.queue_s),
        ttft_s=Change(one.ttft_s, two.ttft_s),
        e2e_s=Change(one.e2e_s, two.e2e_s),
        parts_s={name: Change(parts[0].get(name, 0.0), parts[1].get(name, 0.0)) for name in names},
        num_preemptions=Change(one.num_preemptions, two.num_preemptions),
        num_cached_tokens=Change(one.num_cached_tokens, two.num_cached_tokens),
        same_tokens=first.output_token_ids[:num_common] == second.output_token_ids[:num_common],
    )


def _parts(e2e_s: float | None, waits: tuple[Wait, ...]) -> dict[Part, float]:
    """Seconds of a request by what it was doing; empty where its end-to-end time is undefined (an abort)."""
    if e2e_s is None:
        return {}
    parts: dict[Part, float] = {"computing": e2e_s}
    for wait in waits:
        parts[wait.why] = parts.get(wait.why, 0.0) + wait.seconds
        parts["computing"] -= wait.seconds
    return parts


def _first_difference(before: list[StepRecord], after: list[StepRecord]) -> FirstDifference | None:
    for index in range(max(len(before), len(after))):
        one, two = (_rows(steps[index]) if index < len(steps) else () for steps in (before, after))
        if one != two:
            return FirstDifference(
                index, tuple(row for row in one if row not in two), tuple(row for row in two if row not in one)
            )
    return None


def _rows(step: StepRecord) -> tuple[str, ...]:
    return tuple(sorted(f"{r.request_id} [{r.start}, {r.start + r.num_tokens}) {r.phase}" for r in step.scheduled))


def _num_computed(run: Run) -> int:
    return sum(row.num_tokens for step in run.steps for row in step.scheduled if row.phase != "padding")
