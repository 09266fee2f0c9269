"""A learner's Runs of a lesson beside the recorded ones: the same figures from both, their ratio, and what explains it.

It decides which figures are compared: what the lesson's predictions ask for, the time of the steps, the device's own
ceilings; and what two Runs of one experiment must share whatever the device: steps, tokens, blocks. It draws nothing.
All functions are pure; every figure is computed by the modules that compute it for the lesson's own pages.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from engine.lab.metrics import duration_s, run_metrics, step_kind
from engine.lab.records import Run
from engine.lab.scenario import Scenario, ScenarioError
from lessons.facts_error import FactsError
from lessons.run_facts import prediction_answers

Runs = Mapping[str, Run]
Kind = Literal["prediction", "prefill_step", "decode_step", "tokens_per_s", "total", "read", "matmul"]
FEW_ROLES = 3  # lessons with more parts compare one time of each


@dataclass(frozen=True)
class Figure:
    """One quantity of both. ``name`` is the prediction's id or the role of the Run; times are in seconds."""

    kind: Kind
    name: str
    mine: float | str | None
    recorded: float | str | None

    @property
    def ratio(self) -> float | None:
        """mine ÷ recorded; None for choices, and where one is missing or has no ratio."""
        if isinstance(self.mine, str) or isinstance(self.recorded, str) or not self.mine or not self.recorded:
            return None
        return self.mine / self.recorded if self.mine > 0 and self.recorded > 0 else None


@dataclass(frozen=True)
class Shared:
    """What both Runs decided, role by role summed: equal where the experiment is the same, whatever the device."""

    steps: tuple[int, int]
    tokens: tuple[int, int]
    peak_blocks: tuple[int, int]
    same_tokens: bool  # token by token


def figures(lesson_id: str, mine: Runs, recorded: Runs) -> list[Figure]:
    """All figures of the comparison, in reading order: the lesson's questions, the times, the device."""
    found = _asked(lesson_id, mine, recorded)
    roles = [role for role in reversed(list(recorded)) if role in mine]
    for role in roles:
        pair = (mine[role], recorded[role])
        times: dict[Kind, tuple[float | None, float | None]] = {
            "prefill_step": tuple(median_step_s(run, "prefill") for run in pair),
            "decode_step": tuple(median_step_s(run, "decode") for run in pair),
            "tokens_per_s": tuple(run_metrics(run).output_tokens_per_s for run in pair),
            "total": tuple(run_metrics(run).makespan_s for run in pair),
        }
        if len(roles) > FEW_ROLES:
            main: Kind = "decode_step" if all(times["decode_step"]) else "prefill_step"
            times = {main: times[main]}
        found += [Figure(kind, role, *values) for kind, values in times.items() if all(values)]
    here, there = (next(iter(runs.values())).header.device for runs in (mine, recorded))
    found.append(Figure("read", "", here.read_gbps, there.read_gbps))
    found.append(Figure("matmul", "", here.matmul_tflops, there.matmul_tflops))
    return found


def _asked(lesson_id: str, mine: Runs, recorded: Runs) -> list[Figure]:
    try:
        answers = [prediction_answers(lesson_id, dict(runs)) for runs in (mine, recorded)]
    except FactsError:
        return []
    return [
        Figure("prediction", name, answers[0][name], value) for name, value in answers[1].items() if name in answers[0]
    ]


def median_step_s(run: Run, kind: Literal["prefill", "decode"]) -> float | None:
    """The middle one of the steps that did nothing but this phase."""
    spans = [duration_s(step) for step in run.steps if step_kind(step) == kind]
    return statistics.median(spans) if spans else None


def middle_ratio(found: list[Figure], kind: Kind) -> float | None:
    """The middle one of the ratios of one kind."""
    ratios = [figure.ratio for figure in found if figure.kind == kind and figure.ratio is not None]
    return statistics.median(ratios) if ratios else None


def shared(mine: Runs, recorded: Runs) -> Shared:
    """What was decided and said, of the roles both have."""
    roles = [role for role in recorded if role in mine]
    both = [[run_metrics(runs[role]) for role in roles] for runs in (mine, recorded)]
    return Shared(
        steps=tuple(sum(m.num_steps for m in each) for each in both),
        tokens=tuple(sum(m.num_output_tokens for m in each) for each in both),
        peak_blocks=tuple(max(m.peak_blocks_in_use for m in each) for each in both),
        same_tokens=all(_said(mine[role]) == _said(recorded[role]) for role in roles),
    )


def same_workload(mine: Runs, recorded: Runs) -> bool:
    """Whether both are Runs of one experiment: all that was asked for is equal, arrival times aside.

    A sweep sizes its loads by the device, so its arrivals and the number of its requests differ by design.
    """
    if mine.keys() != recorded.keys():
        return False
    try:
        return all(_asked_for(mine[role]) == _asked_for(recorded[role]) for role in recorded)
    except ScenarioError:  # of a version that this one does not read
        return False


def _asked_for(run: Run) -> object:
    """The scenario without its name and arrival times; a field that came later has its default in an older file."""
    scenario = Scenario.parse(run.header.scenario).model_dump(mode="json", exclude={"name"})
    requests = [{k: v for k, v in request.items() if k != "arrival_s"} for request in scenario["requests"]]
    return {**scenario, "requests": requests}


def _said(run: Run) -> list[tuple[str, list[int]]]:
    return sorted((request.request_id, list(request.output_token_ids)) for request in run.requests)
