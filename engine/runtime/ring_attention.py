"""The arithmetic of ring attention: attention over a part of the keys, and how two such answers become one.

A softmax over all keys can be put together from softmaxes over parts of them, if each part also says what it weighs:
the logarithm of the sum of its exponentials (lse). Nothing is sent here and nothing is kept. Invariant: merging the
parts in any order gives attention over all of them, to the last bits. Online softmax: Milakov and Gimelshein 2018.
Shapes: n queries, m keys, Hq query heads, Hk KV heads, G = Hq / Hk, D head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.lab.ring import pair_of

Partial = tuple[torch.Tensor, torch.Tensor]  # out [n, Hq, D] float32, lse [n, Hq] float32


def partial_attention(q: torch.Tensor, kv: torch.Tensor, causal: bool) -> Partial:
    """q: [n, Hq, D]; kv: [m, 2, Hk, D] -> what the queries see of these keys, and its weight. Pure.

    ``causal``: queries and keys are the same positions, and none looks ahead.
    """
    num_queries, num_heads, head_dim = q.shape
    num_keys, num_kv_heads = kv.shape[0], kv.shape[2]
    grouped = q.float().view(num_queries, num_kv_heads, -1, head_dim).permute(1, 2, 0, 3)  # [Hk, G, n, D]
    k, v = kv.float().permute(1, 2, 0, 3).unbind(0)  # [Hk, m, D]
    scores = grouped @ k[:, None].transpose(-1, -2) * head_dim**-0.5  # [Hk, G, n, m]
    if causal:
        ahead = torch.ones((num_queries, num_keys), dtype=torch.bool, device=q.device).triu(1)
        scores.masked_fill_(ahead, float("-inf"))
    lse = scores.logsumexp(-1)
    out = scores.sub_(lse[..., None]).exp_() @ v[:, None]  # [Hk, G, n, D]
    return out.permute(2, 0, 1, 3).reshape(num_queries, num_heads, head_dim), lse.permute(2, 0, 1).flatten(1)


def merge(a: Partial, b: Partial) -> Partial:
    """Two partial answers of the same queries over different keys, as one. Pure.

    By the book: out = (e^lse_a out_a + e^lse_b out_b) / (e^lse_a + e^lse_b), lse = log(e^lse_a + e^lse_b). Written
    with a sigmoid of the difference, nothing overflows however large the logits are.
    """
    (out_a, lse_a), (out_b, lse_b) = a, b
    weight = torch.sigmoid(lse_b - lse_a)[..., None]
    return out_a + weight * (out_b - out_a), torch.logaddexp(lse_a, lse_b)


class Gathering:
    """The answer of a worker's own queries, growing round by round. Its queries are the rows of ``ranges``."""

    def __init__(self, q: torch.Tensor, ranges: Sequence[range]) -> None:
        self._queries = list(zip(ranges, q.split([len(r) for r in ranges]), strict=True))
        self._found: list[Partial | None] = [None] * len(ranges)

    def add(self, kv: torch.Tensor, ranges: Sequence[range]) -> int:
        """Take in the keys and values of a part. Effect: the answer grows. Returns the pairs that causality allows."""
        pairs = 0
        for keys, block in zip(ranges, kv.split([len(r) for r in ranges]), strict=True):
            for index, (queries, q) in enumerate(self._queries):
                kind = pair_of(queries, keys)
                if kind == "skip":
                    continue
                seen, before = partial_attention(q, block, kind == "causal"), self._found[index]
                self._found[index] = seen if before is None else merge(before, seen)
                causal_pairs = len(queries) * (len(queries) + 1) // 2
                pairs += causal_pairs if kind == "causal" else len(queries) * len(keys)
        return pairs

    def out(self) -> torch.Tensor:
        """[n, Hq, D] float32, once every part has come by. Pure."""
        assert all(found is not None for found in self._found), "every query sees at least itself"
        return torch.cat([found[0] for found in self._found if found is not None])
