"""Rotary position embedding: inverse frequencies of a RopeSpec, and the one rotation convention of this engine.

Half-split rotation, as in Hugging Face checkpoints: dimension i turns together with dimension i + D/2. (The interleaved
convention pairs 2i with 2i + 1; GGUF files of Llama store Q and K for that one and are brought back at loading.) Angles
are computed in float32 from the positions of the step, so there is no table that could be too short.
Scaling follows the papers' formulas: linear (position interpolation), llama3 (Llama 3.1), yarn (arXiv 2309.00071).
"""

from __future__ import annotations

import math

import torch

from engine.model.spec import ModelError, RopeSpec


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> tuple[torch.Tensor, float]:
    """(angle per position of each dimension pair, float32 [D / 2]; factor on cos and sin). Pure. Raises: ModelError."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    base = 1.0 / (rope.theta**exponents)
    if rope.kind == "default":
        return base, 1.0
    if rope.kind == "linear":
        return base / rope.factor, 1.0
    if rope.kind == "llama3":
        return _llama3(base, rope), 1.0
    if rope.kind == "yarn":
        return _yarn(base, rope, head_dim), _yarn_attention_factor(rope)
    if len(rope.factors) != head_dim // 2:
        raise ModelError(
            f"the model stores {len(rope.factors)} RoPE factors; a head of {head_dim} needs {head_dim // 2}"
        )
    return base / torch.tensor(rope.factors, dtype=torch.float32), 1.0


def _llama3(base: torch.Tensor, rope: RopeSpec) -> torch.Tensor:
    """Long waves are stretched by ``factor``, short ones kept, those between are blended."""
    turns = rope.original_max_positions * base / (2 * math.pi)  # rotations within the context seen in training
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * base / rope.factor + blend * base


def _yarn(base: torch.Tensor, rope: RopeSpec, head_dim: int) -> torch.Tensor:
    """Fast dimensions extrapolate (kept), slow ones interpolate (divided by ``factor``), with a ramp between."""

    def dimension_with(num_turns: float) -> float:
        waves = rope.original_max_positions / (num_turns * 2 * math.pi)
        return head_dim * math.log(waves) / (2 * math.log(rope.theta))

    low, high = dimension_with(rope.beta_fast), dimension_with(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # the ramp must have a width
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0.0, 1.0)
    return base / rope.factor * ramp + base * (1 - ramp)


def _yarn_attention_factor(rope: RopeSpec) -> float:
    if rope.attention_factor is not None:
        return float(rope.attention_factor)
    return 1.0 if rope.factor <= 1 else 0.1 * math.log(rope.factor) + 1.0


class Rotary:
    """cos and sin of a step's positions, ready for ``rotate_``."""

    def __init__(self, rope: RopeSpec, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        frequencies, self.scale = inverse_frequencies(rope, head_dim)
        self.inverse_frequencies = frequencies.to(device)  # [D / 2]
        self.dtype = dtype

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """positions [T] -> (cos, signed sin), each [T, 1, D]; the first half of sin is negated. Pure."""
        angle = positions.to(torch.float32)[:, None] * self.inverse_frequencies  # [T, D / 2]
        cos, sin = angle.cos() * self.scale, angle.sin() * self.scale
        cos = torch.cat((cos, cos), dim=-1).to(self.dtype)
        sin = torch.cat((-sin, sin), dim=-1).to(self.dtype)
        return cos[:, None, :], sin[:, None, :]


def rotate_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn x [T, H, D] by the angles of its positions. Effect: in place, because x is a slice of the fused QKV output.

    With x = (a, b) in halves: a' = a cos - b sin and b' = b cos + a sin; the minus sign lives in ``sin``.
    """
    first, second = x.chunk(2, dim=-1)
    swapped = torch.cat((second, first), dim=-1)
    return x.mul_(cos).addcmul_(swapped, sin)
