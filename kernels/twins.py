"""Torch twins of the Triton kernels: the same signatures, the same effects, written to be read.

A twin is the definition of what its kernel computes, and the tests hold every kernel against it. It works in float32
whatever comes in and rounds once, at the end. What does not differ between CPU and GPU is taken from
``kernels.reference``; here stand the forms that a GPU needs: a whole step's rows with their block tables as tensors.
Shapes: T tokens, R rows, C chunks or columns, Hq query heads, Hk KV heads, D head_dim, W blocks in a table's row.
"""

from __future__ import annotations

from itertools import pairwise

import torch

from kernels import reference
from kernels.packing import PackedInt4
from kernels.reference import INT8_MAX, Int8Weight


def store_kv(cache: torch.Tensor, kv: torch.Tensor, slots: torch.Tensor) -> None:
    """kv: [T, 2, Hk, D]; slots: [T] int64. Effect: row t goes to cache[slots[t]] [slots, 2, Hk, D]; -1: nowhere."""
    kept = slots >= 0
    cache[slots[kept]] = kv[kept]


def store_kv_int8(cache: torch.Tensor, scales: torch.Tensor, kv: torch.Tensor, slots: torch.Tensor) -> None:
    """kv: [T, 2, Hk, D]. Effect: slots[t] of cache [slots, 2, Hk, D] int8, scales [slots, 2, Hk] float32; -1: none."""
    kept = slots >= 0
    rows = kv[kept].float()
    largest = rows.abs().amax(-1)
    scale = torch.where(largest > 0, largest / INT8_MAX, 1.0)  # one per token, K or V, and head
    cache[slots[kept]] = (rows / scale[..., None]).round().to(torch.int8)  # to nearest, ties to even
    scales[slots[kept]] = scale


def paged_decode(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    block_size: int,
    num_splits: int = 1,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """q: [R, Hq, D], one token per request; cache: [slots, 2, Hk, D], one layer -> [R, Hq, D]. Pure.

    block_tables: [R, W] int32; context_lens: [R] int32, the row's own token included; 0 (padding) gives zeros.
    ``num_splits`` says how a kernel divides the work; it changes no result.
    """
    starts = torch.arange(q.shape[0] + 1, dtype=torch.int32)
    return paged_prefill(q, cache, block_tables, context_lens, starts, block_size, 1, scales)


def paged_prefill(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    query_starts: torch.Tensor,
    block_size: int,
    longest_chunk: int,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """q: [T, Hq, D]; chunk c is rows [query_starts[c], query_starts[c + 1]), the last ones of its context. Pure.

    Query i of n sees the first ``context - n + i + 1`` keys; a chunk with context 0 gives zeros. -> [T, Hq, D].
    """
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    group = q.shape[1] // cache.shape[2]
    starts = query_starts.tolist()
    assert max((b - a for a, b in pairwise(starts)), default=0) <= longest_chunk
    for c, context_len in enumerate(context_lens.tolist()):
        rows = slice(starts[c], starts[c + 1])
        num_queries = rows.stop - rows.start
        if context_len == 0 or num_queries == 0:
            continue
        position = torch.arange(context_len, device=q.device)
        slots = block_tables[c].long()[position // block_size] * block_size + position % block_size
        kv = cache[slots].float()  # [S, 2, Hk, D]
        if scales is not None:
            kv *= scales[slots][..., None]
        k, v = (part.repeat_interleave(group, dim=1) for part in kv.unbind(1))  # head h reads KV head h // G
        scores = torch.einsum("nhd,shd->hns", q[rows].float(), k) * q.shape[2] ** -0.5
        last_seen = context_len - num_queries + torch.arange(num_queries, device=q.device)
        scores.masked_fill_(position[None, :] > last_seen[:, None], float("-inf"))
        out[rows] = torch.einsum("hns,shd->nhd", scores.softmax(-1), v).to(q.dtype)
    return out


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x: [T, C]; weight: [C] -> x / sqrt(mean(x²) + eps) * weight [T, C]. Pure."""
    return reference.rms_norm(x, weight, eps).to(x.dtype)


def add_rms_norm_(x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x, delta: [T, C] -> the norm of x + delta [T, C]. Effect: x becomes x + delta."""
    x.copy_(x.float() + delta.float())
    return rms_norm(x, weight, eps)


def norm_rope_(
    heads: torch.Tensor,
    num_q_heads: int,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """heads: [T, H, D], query heads first, then key heads. Effect: normed and turned in place. Returns heads.

    cos, sin: [T, 1, D] (sin negated in its first half), both None where there is no RoPE; q_norm, k_norm: [D] or None.
    """
    x = heads.float()
    if q_norm is not None and k_norm is not None:
        q, k = x[:, :num_q_heads], x[:, num_q_heads:]
        x = torch.cat((reference.rms_norm(q, q_norm, eps), reference.rms_norm(k, k_norm, eps)), dim=1)
    if cos is not None and sin is not None:
        first, second = x.chunk(2, dim=-1)
        x = x * cos.float() + torch.cat((second, first), dim=-1) * sin.float()
    return heads.copy_(x)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up: [T, 2F], gates first -> silu(gate) * up [T, F]. Pure."""
    return reference.silu_mul(*gate_up.chunk(2, dim=-1)).to(gate_up.dtype)


def matvec(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, scale: torch.Tensor | None = None
) -> torch.Tensor:
    """x: [1, K]; weight: [N, K] in x's dtype, or int8 with scale [N] float32 -> x @ weight.T + bias [1, N]. Pure."""
    out = reference.linear(x, weight) if scale is None else reference.linear(x, Int8Weight(weight, scale).dequantize())
    return (out if bias is None else out + bias.float()).to(x.dtype)


def linear_int8(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """x: [M, K]; weight: [N, K] int8; scale: [N] float32; bias: [N] -> x @ (weight * scale).T + bias [M, N]. Pure."""
    return matvec(x, weight, bias, scale)


def linear_int4(x: torch.Tensor, weight: PackedInt4, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x: [M, K]; bias: [N] -> x @ weight.T + bias [M, N]. Pure."""
    return reference.linear(x, weight.dequantize(), bias).to(x.dtype)


def sample(logits: torch.Tensor, temperatures: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
    """logits: [R, V] float32; temperatures: [R] float32, 0 is greedy; seeds: [R] int64 -> token ids [R] int64. Pure.

    A row's seed must be new for every token drawn: the same seed gives the same noise.
    """
    column = torch.arange(logits.shape[1], device=logits.device)
    uniform = ((philox(seeds[:, None], column[None, :]) >> 9).float() + 0.5) * 2.0**-23  # never 0, never 1
    noisy = logits / temperatures.clamp(min=1e-30)[:, None] - (-uniform.log()).log()
    return torch.where(temperatures[:, None] > 0, noisy, logits).argmax(-1)


def philox(seeds: torch.Tensor, counters: torch.Tensor) -> torch.Tensor:
    """32 random bits for each (seed, counter), as int64. Pure. Philox 4x32, 10 rounds (Salmon et al., SC 2011).

    A block cipher on (counter, 0, 0, 0) with the seed as its key: any number of the stream at once, in any order.
    """
    mask = 0xFFFFFFFF
    c0, c1, c2, c3 = (counters + seeds * 0) & mask, *(torch.zeros_like(seeds + counters) for _ in range(3))
    low_key, high_key = seeds & mask, (seeds >> 32) & mask
    for _ in range(10):
        high_0, low_0 = _multiply(c0, 0xD2511F53)
        high_2, low_2 = _multiply(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high_2 ^ c1 ^ low_key, low_2, high_0 ^ c3 ^ high_key, low_0
        low_key, high_key = (low_key + 0x9E3779B9) & mask, (high_key + 0xBB67AE85) & mask
    return c0


def _multiply(a: torch.Tensor, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(upper, lower) 32 bits of a 64-bit product of two 32-bit numbers, in signed 64-bit arithmetic."""
    upper_half, lower_half = factor >> 16, factor & 0xFFFF
    return (a * upper_half + (a * lower_half >> 16)) >> 16, (a * factor) & 0xFFFFFFFF


def stream_read(x: torch.Tensor, num_programs: int) -> torch.Tensor:
    """x: [n] float32 -> each program's sum of its part [num_programs] float32. Pure."""
    blocks = torch.nn.functional.pad(x, (0, -x.shape[0] % 4096)).reshape(-1, 4096).sum(1)
    rounds = torch.nn.functional.pad(blocks, (0, -blocks.shape[0] % num_programs)).reshape(-1, num_programs)
    return rounds.sum(0)


def stream_copy(x: torch.Tensor) -> torch.Tensor:
    """x: [n] float32 -> a copy. Pure."""
    return x.clone()


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a: [M, K]; b: [K, N], both 16-bit -> a @ b [M, N]. Pure."""
    return (a.float() @ b.float()).to(a.dtype)


def fma_chain(x: torch.Tensor, num_rounds: int) -> torch.Tensor:
    """x: [n] float32 -> [n]: four chains of y * 0.5 + 0.25 from x, x + 1, x + 2, x + 3, added up. Pure."""
    chains = torch.stack([x + i for i in range(4)])
    for _ in range(num_rounds):
        chains = chains * 0.5 + 0.25
    return chains.sum(0)
