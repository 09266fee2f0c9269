"""The near-tie rule: when greedy tokens may differ from the oracle's without anything being wrong.

Rounding differs with the shape of a product, so where the oracle's two best logits lie closer than a stated tolerance
the other one may win; what follows is another text, so comparison of that answer ends there. How often that happened is
counted and bounded: if it were common, the rule would hide errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """What the oracle says after one prompt, and how clear each choice was (logit gap of its best two)."""

    prompt_token_ids: list[int]
    token_ids: list[int]
    gaps: list[float]


def count_near_ties(answers: Sequence[Answer], outputs: Sequence[Sequence[int]], tolerance: float) -> int:
    """How many outputs part from the oracle at a near tie. Raises: AssertionError if one parts at a clear choice."""
    near_ties = 0
    for index, (answer, ours) in enumerate(zip(answers, outputs, strict=True)):
        theirs = answer.token_ids[: len(ours)]
        differing = [i for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]]
        if differing:
            gap = answer.gaps[differing[0]]
            assert gap < tolerance, f"answer {index}: token {differing[0]} differs, the oracle's gap is {gap:.6f}"
            near_ties += 1
    return near_ties
