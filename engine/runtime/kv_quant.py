"""Keys and values in 8 or 4 bits: the arithmetic, the stored form, and why keys and values share scales differently.

A scale is shared by numbers that should be of one size. In keys a few channels (positions within a head) are often many
times larger than the rest, for every token; a scale per token would be set by them and wipe out the others. So keys
have a scale per channel, over the tokens of a block, the unit that fills and is shared. Values have no such channels,
and a weighted sum over tokens wants every token equally exact: a scale per token and head. See ``scale_axis``.
8 bits are symmetric around zero; 4 bits also have a minimum, since 15 steps are too few to waste half of them.
Follows KIVI (arXiv 2402.02750) and KVQuant (arXiv 2401.18079). Nothing here knows of slots or requests.
Shapes: B block size, Hk KV heads, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Axis = Literal["channel", "token"]
KV_BITS = {"int8": 8, "int4": 4}
SCALE_DTYPE = torch.float16
_LARGEST = torch.finfo(SCALE_DTYPE).max
_SMALLEST = torch.finfo(SCALE_DTYPE).smallest_normal * torch.finfo(SCALE_DTYPE).eps  # above 0


def scale_axis(part: Literal["keys", "values"]) -> Axis:
    """What shares a scale in a block [B, Hk, D]: of keys a channel (its B tokens), of values a token (its D). Pure."""
    return "channel" if part == "keys" else "token"


@dataclass(frozen=True)
class KVFormat:
    """How keys and values are stored. The axes are given, so that a test can show what the other choice costs."""

    bits: int  # 8 | 4
    keys: Axis
    values: Axis

    def width(self, head_dim: int) -> int:
        """Bytes of one head's codes. Pure."""
        return head_dim * self.bits // 8

    @property
    def num_per_scale(self) -> int:
        """Numbers stored beside the codes for each group: a scale, and with 4 bits a minimum."""
        return 1 if self.bits == 8 else 2

    def block_bytes(self, num_layers: int, block_size: int, num_kv_heads: int, head_dim: int) -> int:
        """Bytes of one block in all layers, scales included. Pure."""
        codes = 2 * block_size * num_kv_heads * self.width(head_dim)  # key + value
        groups = {"channel": num_kv_heads * head_dim, "token": block_size * num_kv_heads}
        scales = (groups[self.keys] + groups[self.values]) * self.num_per_scale * SCALE_DTYPE.itemsize
        return num_layers * (codes + scales)


def kv_format(kv_dtype: str) -> KVFormat:
    """The format of a Scenario's ``kv_dtype``, int8 or int4. Pure."""
    return KVFormat(KV_BITS[kv_dtype], scale_axis("keys"), scale_axis("values"))


@dataclass(frozen=True)
class Quantized:
    """x ≈ codes * scale, with 4 bits + minimum; two 4-bit codes in a byte, those of dimensions d and d + D/2."""

    codes: torch.Tensor  # [..., D] int8, or [..., D / 2] uint8
    scale: torch.Tensor  # broadcasts to [..., D], float16
    minimum: torch.Tensor | None

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """[..., D]. Pure. The product is made in float32: the scales have more digits than bfloat16 keeps."""
        if self.minimum is None:
            return (self.codes * self.scale.float()).to(dtype)
        codes = torch.cat((self.codes & 15, self.codes >> 4), dim=-1)
        return (codes * self.scale.float()).add_(self.minimum).to(dtype)


def quantize(x: torch.Tensor, bits: int, dim: int) -> Quantized:
    """x: [..., D]; numbers along ``dim`` share a scale. Each moves by at most half of it. Pure.

    8 bits: the largest magnitude becomes 127. 4 bits: the smallest becomes 0 and the largest 15.
    """
    x = x.float()
    if bits == 8:
        scale = _stored(x.abs().amax(dim, keepdim=True) / 127)
        codes = (x / _divisor(scale)).round_().clamp_(-127, 127)
        return Quantized(codes.to(torch.int8), scale, None)
    minimum = _stored(x.amin(dim, keepdim=True))
    scale = _stored((x.amax(dim, keepdim=True) - minimum.float()) / 15)
    codes = ((x - minimum.float()) / _divisor(scale)).round_().clamp_(0, 15).to(torch.uint8)
    first, second = codes.chunk(2, dim=-1)
    return Quantized(first | (second << 4), scale, minimum)


def _stored(values: torch.Tensor) -> torch.Tensor:
    """As it will be stored: codes are made with the rounded scale, so its rounding costs nothing."""
    return values.clamp(-_LARGEST, _LARGEST).to(SCALE_DTYPE)


def _divisor(scale: torch.Tensor) -> torch.Tensor:
    return scale.float().clamp_(min=_SMALLEST)  # a scale of 0 is that of numbers that are all alike
