"""The two Runs of the lesson side by side: one worker with the whole prompt, and a ring.

It decides what is compared with what, from records alone. Invariant: both Runs computed the same prompt to its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.lab.metrics import duration_s
from engine.lab.records import RingStep, Run, StepRecord
from engine.lab.ring import Overlap, busy_share, overlaps, parts, position_bytes
from engine.lab.work import element_sizes
from lessons.facts_error import FactsError
from lessons.ring_attention.scenarios import ROLES


@dataclass(frozen=True)
class Pair:
    """The Runs, both complete. ``prompt_step`` and ``first_decode`` are of the ring unless asked otherwise."""

    alone: Run
    ring: Run

    @property
    def length(self) -> int:
        return self.ring.requests[0].num_prompt_tokens

    @property
    def num_workers(self) -> int:
        return int(self.ring.header.scenario["ring"]["num_workers"])

    @property
    def layout(self) -> str:
        return str(self.ring.header.scenario["ring"]["layout"])

    @property
    def parts(self) -> list[list[range]]:
        return parts(self.length, self.num_workers, self.layout)

    @property
    def position_bytes(self) -> int:
        """Keys and values of one position in all layers."""
        return position_bytes(self.ring.header.model, element_sizes(self.ring.header)[1])

    @staticmethod
    def prompt_step(run: Run) -> StepRecord:
        return next(step for step in run.steps if step.scheduled and step.scheduled[0].start == 0)

    @staticmethod
    def decode_steps(run: Run) -> list[StepRecord]:
        return [step for step in run.steps if step.scheduled and step.scheduled[0].start > 0]

    def told(self, run: Run) -> RingStep:
        """What the workers told of the prompt's pass."""
        ring = self.prompt_step(run).ring
        assert ring is not None
        return ring

    @property
    def overlaps(self) -> list[Overlap]:
        return overlaps(self.told(self.ring))

    @property
    def busy(self) -> float:
        """Mean over most pairs of a worker."""
        return busy_share(self.told(self.ring).pairs)

    def prompt_s(self, run: Run) -> float:
        return duration_s(self.prompt_step(run))

    def decode_s(self, run: Run) -> float:
        """Mean duration of a decoded token."""
        steps = self.decode_steps(run)
        return sum(map(duration_s, steps)) / len(steps)

    @property
    def num_same_tokens(self) -> int:
        """Leading output tokens that both Runs have in common."""
        pairs = zip(self.alone.requests[0].output_token_ids, self.ring.requests[0].output_token_ids, strict=True)
        count = 0
        for one, other in pairs:
            if one != other:
                break
            count += 1
        return count


def pair_of(runs: Mapping[str, Run]) -> Pair:
    """Raises: FactsError when one is missing, unfinished or of another prompt."""
    missing = [role for role in ROLES if role not in runs]
    if missing:
        raise FactsError(f"there is no {' and no '.join(missing)} run yet; run both parts first")
    alone, ring = (runs[role] for role in ROLES)
    for run, least in ((alone, 1), (ring, 2)):
        asked = run.header.scenario.get("ring") or {}
        if int(asked.get("num_workers", 0)) < least or (least == 1 and asked["num_workers"] != 1):
            raise FactsError("the two runs are not one worker and a ring; run both parts again")
        record = run.requests[0]
        if record.completion_s is None or record.first_token_s is None or record.finish_reason == "abort":
            raise FactsError(f"request {record.request_id} did not finish; run both parts again")
    if alone.requests[0].num_prompt_tokens != ring.requests[0].num_prompt_tokens:
        raise FactsError("the two runs had prompts of different lengths; run both parts on one prompt")
    return Pair(alone, ring)
