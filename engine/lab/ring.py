"""Ring attention in numbers: who has which positions, how many pairs each computes, how many bytes go round. No torch.

Each of n workers keeps the keys and values of its part of the positions. A layer is n rounds: with the part at hand it
computes what its own queries see of it, while it passes the part on to its neighbour. What these functions say before a
run, the records say after it, and ``check`` holds the two together. Follows ring attention (Liu et al. 2023); the
zigzag layout is that of its causal implementations.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from engine.lab.records import ModelInfo

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
