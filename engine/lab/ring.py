"""Ring attention in numbers: who has which positions, how many pairs each computes, how many bytes go round. No torch.

Each of n workers keeps the keys and values of its part of the positions. A layer is n rounds: with the part at hand it
computes what its own queries see of it, while it passes the part on to its neighbour. What these functions say before a
run, the records say after it, and ``check`` holds the two together. Follows ring attention (Liu et al. 2023); the
zigzag layout is that of its causal implementations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from engine.lab.records import ModelInfo, RingSpan, RingStep

Layout = Literal["contiguous", "zigzag"]
Pair = Literal["skip", "full", "causal"]


def fewest_tokens(num_workers: int, layout: str) -> int:
    """The shortest prompt that gives every worker something in every part. Pure."""
    return num_workers * (2 if layout == "zigzag" else 1)


def parts(num_tokens: int, num_workers: int, layout: str) -> list[list[range]]:
    """For each worker its own positions of a prompt, as ranges. Together they are [0, num_tokens). Pure."""
    num_pieces = fewest_tokens(num_workers, layout)
    edges = [i * num_tokens // num_pieces for i in range(num_pieces + 1)]
    pieces = [range(start, end) for start, end in pairwise(edges)]
    if layout == "zigzag":
        return [[pieces[i], pieces[num_pieces - 1 - i]] for i in range(num_workers)]
    return [[piece] for piece in pieces]


def pair_of(queries: range, keys: range) -> Pair:
    """What causal attention needs of two ranges out of one cut: nothing, everything, or the lower triangle. Pure."""
    if queries == keys:
        return "causal"
    return "full" if keys.stop <= queries.start else "skip"


def num_pairs(queries: Sequence[range], keys: Sequence[range]) -> int:
    """Query-key pairs that causal attention needs between the ranges of two workers, or of one with itself. Pure."""
    total = 0
    for own in queries:
        for other in keys:
            kind = pair_of(own, other)
            if kind == "full":
                total += len(own) * len(other)
            elif kind == "causal":
                total += len(own) * (len(own) + 1) // 2
    return total


def prompt_pairs(num_tokens: int, num_workers: int, layout: str) -> list[int]:
    """For each worker the pairs of one layer over a whole prompt. They sum to T (T + 1) / 2 under any layout. Pure."""
    owned = parts(num_tokens, num_workers, layout)
    return [sum(num_pairs(own, other) for other in owned) for own in owned]


def busy_share(pairs: Sequence[int]) -> float:
    """Mean over most: what part of the ring's attention time a worker has something to compute. Pure."""
    return sum(pairs) / (len(pairs) * max(pairs))


def position_bytes(model: ModelInfo, element_bytes: float) -> int:
    """Keys and values of one position in all layers. Pure."""
    return round(2 * model.num_layers * model.num_kv_heads * model.head_dim * element_bytes)


def prompt_sent_bytes(
    model: ModelInfo, num_tokens: int, num_workers: int, layout: str, element_bytes: float
) -> list[int]:
    """For each worker the bytes it passes on while a prompt is computed: every part but its neighbour's. Pure."""
    sizes = [sum(len(r) for r in own) for own in parts(num_tokens, num_workers, layout)]
    per_position = position_bytes(model, element_bytes)
    if num_workers == 1:
        return [0]
    return [(num_tokens - sizes[(rank + 1) % num_workers]) * per_position for rank in range(num_workers)]


def decode_sent_bytes(model: ModelInfo, num_workers: int) -> int:
    """Bytes each worker gives the others for one decoded token: each head's partial answer and its weight. Pure."""
    return (num_workers - 1) * model.num_layers * model.num_heads * (model.head_dim + 1) * 4  # float32


def owner(position: int, num_prompt_tokens: int, num_workers: int) -> int:
    """Which worker keeps a decoded position: they take turns. Pure."""
    return (position - num_prompt_tokens) % num_workers


def num_positions(num_tokens: int, num_prompt_tokens: int, num_workers: int, layout: str) -> list[int]:
    """How many of the positions [0, num_tokens) each worker keeps, the prompt's and the decoded ones. Pure."""
    counts = [sum(len(r) for r in own) for own in parts(num_prompt_tokens, num_workers, layout)]
    for position in range(num_prompt_tokens, num_tokens):
        counts[owner(position, num_prompt_tokens, num_workers)] += 1
    return counts


# ------------------------------------------------------------------------------------------------- what was told
@dataclass(frozen=True)
class Overlap:
    """One worker's attention over a prompt, all layers: seconds of arithmetic, of transfers, and of both at once."""

    worker: int
    compute_s: float
    send_s: float
    hidden_s: float

    @property
    def hidden_share(self) -> float | None:
        """The part of the transfers that cost no time of its own. None where nothing was sent."""
        return self.hidden_s / self.send_s if self.send_s else None


def overlaps(ring: RingStep) -> list[Overlap]:
    """For each worker how much of its transfers took place while it computed, from the spans of a prompt's pass. Pure.

    A transfer counts until its last byte has come in, so waiting for a neighbour that still computes is part of it.
    """
    found = []
    for worker in range(len(ring.positions)):
        computes, sends = (_spans(ring.spans, worker, op) for op in ("compute", "send"))
        hidden_s = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in sends for b in _near(computes, a))
        found.append(Overlap(worker, _seconds(computes), _seconds(sends), hidden_s))
    return found


def _spans(spans: Sequence[RingSpan], worker: int, op: str) -> list[tuple[float, float]]:
    return sorted((span.t_begin_s, span.t_end_s) for span in spans if span.worker == worker and span.op == op)


def _near(spans: Sequence[tuple[float, float]], other: tuple[float, float]) -> list[tuple[float, float]]:
    return [span for span in spans if span[0] < other[1] and span[1] > other[0]]


def _seconds(spans: Sequence[tuple[float, float]]) -> float:
    return sum(end_s - begin_s for begin_s, end_s in spans)


# ------------------------------------------------------------------------------------------------- modelled
def attention_flops(model: ModelInfo, num_tokens: int) -> int:
    """FLOP of causal attention over a prompt, all layers: 4 for each pair, head and number of a head. Pure."""
    return 4 * model.num_layers * model.num_heads * model.head_dim * (num_tokens * (num_tokens + 1) // 2)


def hiding_bytes_per_s(
    model: ModelInfo, num_tokens: int, num_workers: int, flops_per_s: float, element_bytes: float
) -> float:
    """The rate a link needs for a part to travel in the time a worker computes with one, the work shared evenly. Pure.

    Bytes of a part over the time of a round: rate x (KV heads / query heads) x element bytes / (tokens / n). So a
    longer part is easier to hide: its bytes grow with its length, the arithmetic with the square.
    """
    size = 2 * model.num_kv_heads * model.head_dim * element_bytes * num_tokens / num_workers
    round_s = attention_flops(model, num_tokens) / model.num_layers / num_workers**2 / flops_per_s
    return size / round_s
