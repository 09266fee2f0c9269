"""The two Runs of the lesson side by side: gaps, waiting intervals, what was sent, and who met which objective.

It decides what is compared with what, from records alone. Invariant: both Runs served the same requests to their ends.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from engine.lab.handover import Intervals, block_bytes, intervals, stalled_steps, transfers
from engine.lab.latency import token_times
from engine.lab.metrics import Goodput, duration_s, goodput, step_kind
from engine.lab.records import Run, Transfer
from engine.lab.work import element_sizes, kv_bytes_per_token
from lessons.disaggregation.scenarios import CHATS, LATE, ROLES
from lessons.facts_error import FactsError

# Objectives as multiples of what the shared engine needs: (TTFT over one long prefill, TPOT over one decode step).
OBJECTIVES: Mapping[str, tuple[float, float]] = MappingProxyType({"smooth": (6.0, 2.5), "quick": (1.8, 20.0)})


@dataclass(frozen=True)
class Objective:
    """What a request has to keep to, in seconds, and how both Runs did."""

    name: str
    ttft_s: float
    tpot_s: float
    shared: Goodput
    split: Goodput


@dataclass(frozen=True)
class Pair:
    """The Runs, both complete."""

    shared: Run
    split: Run

    def gaps(self, run: Run) -> dict[str, list[float]]:
        """Seconds between neighbouring tokens, for each chat."""
        times = token_times(run)
        return {name: [token.latency_s for token in times[name][1:]] for name in CHATS}

    def worst_gap(self, run: Run) -> float:
        """The longest gap between two tokens of a chat."""
        return max(gap for gaps in self.gaps(run).values() for gap in gaps)

    def worst_chat(self, run: Run) -> str:
        """The chat that has it."""
        return max(CHATS, key=lambda name: max(self.gaps(run)[name]))

    def intervals(self, run: Run) -> dict[str, Intervals]:
        return {one.request_id: one for one in intervals(run)}

    def stalled(self, run: Run) -> int:
        """Decode steps of chats in which somebody's prompt tokens were computed too, all chats together."""
        return sum(stalled_steps(run)[name] for name in CHATS)

    def late_ttft_s(self, run: Run) -> float:
        """Mean time to first token of the long prompts."""
        found = self.intervals(run)
        return statistics.fmean(found[name].first_token_s - found[name].arrival_s for name in LATE)

    @property
    def sent(self) -> dict[str, Transfer]:
        return {transfer.request_id: transfer for transfer in transfers(self.split)}

    @property
    def block_bytes(self) -> int:
        return block_bytes(self.split.header)

    @property
    def position_bytes(self) -> float:
        return kv_bytes_per_token(self.split.header.model, element_sizes(self.split.header)[1])

    @property
    def long(self) -> int:
        """Tokens of a long prompt."""
        return next(r.num_prompt_tokens for r in self.split.requests if r.request_id == LATE[0])

    @property
    def budget(self) -> int:
        return int(self.split.header.scenario["limits"]["max_batch_tokens"])

    @property
    def link_mb_per_s(self) -> float | None:
        return self.split.header.scenario["disaggregated"]["link_mb_per_s"]

    def decode_step_s(self, run: Run) -> float:
        """Median duration of a step that decoded and did nothing else."""
        return statistics.median(duration_s(step) for step in run.steps if step_kind(step) == "decode")

    def prefill_s(self, run: Run) -> float:
        """Mean time of a long prompt from its first step to its first token."""
        found = self.intervals(run)
        return statistics.fmean(found[name].first_token_s - found[name].prefill_s for name in LATE)

    def objectives(self) -> list[Objective]:
        """Two service level objectives, in units of what the shared engine needs when nobody is in the way."""
        step_s, prefill_s = self.decode_step_s(self.shared), self.prefill_s(self.shared)
        found = []
        for name, (of_prefill, of_step) in OBJECTIVES.items():
            ttft_s, tpot_s = of_prefill * prefill_s, of_step * step_s
            both = (goodput(run, ttft_s, tpot_s) for run in (self.shared, self.split))
            found.append(Objective(name, ttft_s, tpot_s, *both))
        return found


def pair_of(runs: Mapping[str, Run]) -> Pair:
    """Raises: FactsError when one is missing, unfinished or of another workload."""
    missing = [role for role in ROLES if role not in runs]
    if missing:
        raise FactsError(f"there is no {' and no '.join(missing)} run yet; run both parts first")
    shared, split = (runs[role] for role in ROLES)
    if not split.header.scenario.get("disaggregated") or shared.header.scenario.get("disaggregated"):
        raise FactsError("the two runs are not one shared and one disaggregated engine; run both parts again")
    for run in (shared, split):
        if {r.request_id for r in run.requests} != {*CHATS, *LATE}:
            raise FactsError("the run served other requests than this lesson's; run both parts again")
        for record in run.requests:
            if record.completion_s is None or record.first_token_s is None or record.finish_reason == "abort":
                raise FactsError(f"request {record.request_id} did not finish; run both parts again")
    if len({r.num_prompt_tokens for run in (shared, split) for r in run.requests if r.request_id == LATE[0]}) > 1:
        raise FactsError("the two runs had prompts of different lengths; run both parts on one workload")
    return Pair(shared, split)
