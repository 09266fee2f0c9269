"""Readable torch twins of the kernels, with the same signatures: what each kernel computes, without how.

Every kernel is tested against its twin here, and where a kernel cannot run, the twin's arithmetic is the definition.
Twins compute in float32 and round once, at the end. They are slow and plain on purpose.
Shapes: T or M rows, N outputs, K inputs, Hq query heads, Hk KV heads, D head_dim, S context length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

INT8_MAX = 127
INT4_MAX = 15


class ContextChunk(Protocol):
    """Rows [first_row, first_row + num_rows) of a step: the last positions of one request's context."""

    first_row: int
    num_rows: int
    context_len: int
    block_ids: Sequence[int]


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x: [M, K]; weight: [N, K] -> x @ weight.T + bias [M, N] float32. Pure."""
    out = x.float() @ weight.float().T
    return out if bias is None else out + bias.float()


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) * weight over the last dimension, float32. Pure."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()


def rope(x: torch.Tensor, positions: torch.Tensor, inverse_frequencies: torch.Tensor, scale: float) -> torch.Tensor:
    """x: [T, H, D]; positions: [T] -> x rotated, dimension i together with i + D/2; float32. Pure."""
    angle = positions.float()[:, None] * inverse_frequencies  # [T, D / 2]
    cos, sin = angle.cos()[:, None] * scale, angle.sin()[:, None] * scale
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, float32. Pure."""
    gate = gate.float()
    return gate * torch.sigmoid(gate) * up.float()


def paged_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, block_size: int, chunks: Sequence[ContextChunk]
) -> torch.Tensor:
    """q: [T, Hq, D]; keys, values: [slots, Hk, D] -> [T, Hq, D] in q's dtype. Pure.

    Row i of a chunk of n rows in a context of S keys sees the first S - n + i + 1 of them. A row without context, and
    a row of no chunk, gives zeros. Query head h reads KV head h // (Hq / Hk).
    """
    out = torch.zeros_like(q)
    group = q.shape[1] // keys.shape[1]
    for chunk in chunks:
        if chunk.context_len == 0:
            continue
        positions = torch.arange(chunk.context_len)
        blocks = torch.tensor(list(chunk.block_ids), dtype=torch.int64)
        slots = blocks[positions // block_size] * block_size + positions % block_size
        k = keys[slots].float().repeat_interleave(group, dim=1)  # [S, Hq, D]
        v = values[slots].float().repeat_interleave(group, dim=1)
        rows = slice(chunk.first_row, chunk.first_row + chunk.num_rows)
        scores = torch.einsum("nhd,shd->hns", q[rows].float(), k) / q.shape[2] ** 0.5
        last_seen = chunk.context_len - chunk.num_rows + torch.arange(chunk.num_rows)
        scores.masked_fill_(positions[None, :] > last_seen[:, None], float("-inf"))
        out[rows] = torch.einsum("hns,shd->nhd", scores.softmax(-1), v).to(q.dtype)
    return out


def store_kv(keys: torch.Tensor, values: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
    """k, v: [T, Hk, D]; slots: [T]. Effect: row t goes to slots[t] of keys and values [slots, Hk, D]; -1: nowhere."""
    kept = slots >= 0
    keys[slots[kept]] = k[kept].to(keys.dtype)
    values[slots[kept]] = v[kept].to(values.dtype)


@dataclass(frozen=True)
class Int8Weight:
    """weight ≈ q * scale, one scale per output."""

    q: torch.Tensor  # [N, K] int8 in -127..127
    scale: torch.Tensor  # [N] float32

    def dequantize(self) -> torch.Tensor:
        """[N, K] float32. Pure."""
        return self.q.float() * self.scale[:, None]


@dataclass(frozen=True)
class Int4Weight:
    """weight ≈ q * scale + minimum, one scale and minimum per output and group of inputs."""

    q: torch.Tensor  # [N, K] uint8 in 0..15
    scale: torch.Tensor  # [N, K / group] float16
    minimum: torch.Tensor  # [N, K / group] float16

    def dequantize(self) -> torch.Tensor:
        """[N, K] float32. Pure."""
        group = self.q.shape[1] // self.scale.shape[1]
        spread = [values.float().repeat_interleave(group, dim=1) for values in (self.scale, self.minimum)]
        return self.q.float() * spread[0] + spread[1]


def quantize_int8(weight: torch.Tensor) -> Int8Weight:
    """weight: [N, K]. The largest magnitude of an output becomes 127. Pure."""
    weight = weight.float()
    scale = weight.abs().amax(dim=1) / INT8_MAX
    q = (weight / scale.clamp(min=1e-30)[:, None]).round().clamp(-INT8_MAX, INT8_MAX)
    return Int8Weight(q.to(torch.int8), scale)


def quantize_int4(weight: torch.Tensor, group: int) -> Int4Weight:
    """weight: [N, K], group divides K. Each group's smallest weight becomes 0, its largest 15. Pure."""
    grouped = weight.float().unflatten(1, (-1, group))  # [N, K / group, group]
    low, high = grouped.amin(-1), grouped.amax(-1)
    minimum, scale = low.to(torch.float16), ((high - low) / INT4_MAX).to(torch.float16)
    steps = (grouped - minimum.float()[..., None]) / scale.float().clamp(min=1e-8)[..., None]
    return Int4Weight(steps.round().clamp(0, INT4_MAX).to(torch.uint8).flatten(1), scale, minimum)


@dataclass(frozen=True)
class PlainLayer:
    """One decoder layer's weights as they are. Biases and head norms may be missing."""

    attention_norm: torch.Tensor  # [C]
    qkv: torch.Tensor  # [(Hq + 2 Hk) * D, C]
    o: torch.Tensor  # [C, Hq * D]
    mlp_norm: torch.Tensor  # [C]
    gate_up: torch.Tensor  # [2F, C], gates first
    down: torch.Tensor  # [C, F]
    q_norm: torch.Tensor | None = None  # [D]
    k_norm: torch.Tensor | None = None  # [D]
    qkv_bias: torch.Tensor | None = None
    o_bias: torch.Tensor | None = None
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None
    uses_rope: bool = True


@dataclass(frozen=True)
class PlainDecoder:
    """A whole decoder. ``embedding``'s dtype is the one that rows are rounded to before a product."""

    num_heads: int
    num_kv_heads: int
    norm_eps: float
    embedding: torch.Tensor  # [V, C]
    inverse_frequencies: torch.Tensor  # [D / 2]
    layers: Sequence[PlainLayer]
    final_norm: torch.Tensor  # [C]
    head: torch.Tensor  # [V, C]
    rope_scale: float = 1.0

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        chunks: Sequence[ContextChunk],
        logit_rows: torch.Tensor,
        keys: Sequence[torch.Tensor],
        values: Sequence[torch.Tensor],
        block_size: int,
    ) -> torch.Tensor:
        """token_ids, positions, slots: [T]; keys, values: per layer [slots, Hk, D] -> logits [R, V] float32.

        Effect: stores the rows' keys and values.
        """
        dtype = self.embedding.dtype
        x = self.embedding[token_ids].float()
        for layer, layer_keys, layer_values in zip(self.layers, keys, values, strict=True):
            normed = rms_norm(x, layer.attention_norm, self.norm_eps).to(dtype)
            q, k, v = self._heads(layer, normed, positions)
            store_kv(layer_keys, layer_values, k.to(dtype), v.to(dtype), slots)
            seen = paged_attention(q.to(dtype), layer_keys, layer_values, block_size, chunks)
            x = x + linear(seen.flatten(1), layer.o, layer.o_bias)
            normed = rms_norm(x, layer.mlp_norm, self.norm_eps).to(dtype)
            gate, up = linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
            x = x + linear(silu_mul(gate, up).to(dtype), layer.down, layer.down_bias)
        return linear(rms_norm(x[logit_rows], self.final_norm, self.norm_eps).to(dtype), self.head)

    def _heads(self, layer: PlainLayer, normed: torch.Tensor, positions: torch.Tensor) -> list[torch.Tensor]:
        """Queries [T, Hq, D], keys and values [T, Hk, D] of a layer, float32, normed and rotated where it says so."""
        sizes = [self.num_heads, self.num_kv_heads, self.num_kv_heads]
        heads = linear(normed, layer.qkv, layer.qkv_bias).unflatten(-1, (sum(sizes), -1))
        q, k, v = heads.split(sizes, dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = rms_norm(q, layer.q_norm, self.norm_eps), rms_norm(k, layer.k_norm, self.norm_eps)
        if layer.uses_rope:
            q, k = (rope(t, positions, self.inverse_frequencies, self.rope_scale) for t in (q, k))
        return [q, k, v]
