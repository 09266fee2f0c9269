"""Guessing ahead by looking back: the tokens that followed the same few tokens the last time are drafts for the next.

The model then computes a request's newest token and its drafts in one step, each at its position, and every draft that
is what the model itself would have said is kept: the output is that of greedy decoding without drafts, in fewer steps
where a text repeats itself. No second model is needed. This module only guesses; the scheduler fits the drafts into the
budget and the blocks that are left over, and drops the wrong ones at commit. Follows prompt lookup decoding (Saxena
2023) as the n-gram speculation of vLLM does it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.scheduling.requests import Request


@dataclass(slots=True)
class _Index:
    """Where each n-gram of a text ended last: its tokens -> the position after them. Grows with the text."""

    ends: dict[tuple[int, ...], int] = field(default_factory=dict)
    num_indexed: int = 0  # n-grams that end at or before this position are in ``ends``


class PromptLookup:
    """Drafts of up to ``num_draft_tokens`` tokens, found by the last ``ngram`` ones."""

    def __init__(self, ngram: int, num_draft_tokens: int) -> None:
        self.ngram = ngram
        self.num_draft_tokens = num_draft_tokens
        self._indexes: dict[str, _Index] = {}

    def propose(self, request: Request, most: int) -> list[int]:
        """At most ``most`` tokens that may come next; none if its last n-gram is new. Effect: indexes its new tokens.

        A text that has begun to repeat itself is continued as it repeats, beyond its own end.
        """
        tokens, n = request.token_ids, self.ngram
        index = self._indexes.setdefault(request.request_id, _Index())
        for end in range(max(index.num_indexed + 1, n), len(tokens)):
            index.ends[tuple(tokens[end - n : end])] = end
        index.num_indexed = len(tokens) - 1
        found = index.ends.get(tuple(tokens[-n:])) if len(tokens) >= n else None
        if found is None:
            return []
        period = len(tokens) - found
        return [tokens[found + i % period] for i in range(min(most, self.num_draft_tokens))]

    def forget(self, request_id: str) -> None:
        """Effect: the request's index is gone. None if there is none."""
        self._indexes.pop(request_id, None)
