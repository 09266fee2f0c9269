"""What guessing ahead was worth in a Run: guesses, right ones, and tokens per decode row, read from the records alone.

A decode row says how many of its tokens were guesses (``num_draft_tokens``), and its request's outputs of the step how
many of them were right: all but one, the token that the model gives in any case. Measures nothing, fills no gap.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from engine.lab.records import Run, StepRecord


@dataclass(frozen=True)
class DraftUse:
    """Rates are None while there was nothing to divide by."""

    num_draft_tokens: int
    num_accepted_tokens: int
    num_decode_rows: int  # a request in a decode step, with guesses or without
    num_decode_tokens: int  # what those rows gave

    @property
    def acceptance_rate(self) -> float | None:
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def tokens_per_decode_row(self) -> float | None:
        """1 without guesses; what a row with guesses costs more is in the work of its step."""
        return self.num_decode_tokens / self.num_decode_rows if self.num_decode_rows else None


def accepted_tokens(step: StepRecord) -> dict[str, int]:
    """For each request that guessed in the step, how many of its guesses were right. Pure."""
    outputs = Counter(output.request_id for output in step.outputs if output.token_id is not None)
    return {row.request_id: max(outputs[row.request_id] - 1, 0) for row in step.scheduled if row.num_draft_tokens}


def draft_use(run: Run) -> DraftUse:
    """Pure."""
    num_drafts = num_accepted = num_rows = num_tokens = 0
    for step in run.steps:
        outputs = Counter(output.request_id for output in step.outputs if output.token_id is not None)
        decoding = [row for row in step.scheduled if row.phase == "decode"]
        num_drafts += sum(row.num_draft_tokens for row in decoding)
        num_accepted += sum(accepted_tokens(step).values())
        num_rows += len(decoding)
        num_tokens += sum(outputs[row.request_id] for row in decoding)
    return DraftUse(num_drafts, num_accepted, num_rows, num_tokens)
