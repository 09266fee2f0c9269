"""Weights in int8 or int4 behind ``Ops.linear``: the decoder does not know that its weights are quantized.

Only the weights are quantized, activations stay as they are. int8 has one scale per output channel; int4 has a scale
and a minimum for every group of 32 (or 64) inputs of an output, the format of GGUF's Q4_1, so the layers of a model
that came as Q4_1 lose nothing. The LM head is int8 in both, as in most GGUF files: its errors go straight into the
logits (SmolLM2-135M: 23 times the divergence with an int4 head, for a ninth less to read). The embedding table stays as
it is, because a step reads single rows of it. Formats and rounding are those of ``kernels.reference``, which faster
kernels share.
Invariant: ``linear_bytes`` is what one product reads, scales included. Follows LLM.int8() (arXiv 2208.07339) in the
scale per channel and GPTQ, AWQ and llama.cpp in the groups.
Shapes: M rows, N outputs, K inputs, g inputs in a group.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from engine.model.ops import Linear, Ops, TorchOps
from engine.model.spec import ModelError
from kernels.reference import Int4Weight, Int8Weight, quantize_int4, quantize_int8

WEIGHT_FORMATS = ("int8", "int4")
INT4_GROUPS = (32, 64)
INT8_FUSED_ROWS = 6  # from here on widening a tile once for all rows is cheaper than once per row (measured, AVX-512)
INT4_FUSED_OUTPUTS = 16  # torch's int4 kernel wants a multiple of this
TILE_ELEMENTS = 1 << 20  # weights widened at a time on a CPU: they should still be in its cache when they are used


def ops_for(weights: str | None) -> Ops:
    """The torch operations for a Scenario's ``weights``. Pure. Raises: ModelError for a format there is not."""
    return TorchOps() if weights is None else QuantizedOps(weights)


class QuantizedOps(TorchOps):
    """Torch operations with quantized products. ``group`` counts for int4 only."""

    def __init__(self, weights: str, group: int = INT4_GROUPS[0]) -> None:
        """Raises: ModelError for a format or a group there is not."""
        if weights not in WEIGHT_FORMATS:
            raise ModelError(f"weights is {weights!r}; allowed: null, {', '.join(WEIGHT_FORMATS)}")
        if group not in INT4_GROUPS:
            raise ModelError(f"an int4 group is {group} inputs; allowed: {', '.join(map(str, INT4_GROUPS))}")
        self.name = f"torch {weights}"
        self.weights = weights
        self.group = group
        self._has_int8 = _agrees(Int8Product, quantize_int8)
        self._has_int4 = weights == "int4" and _agrees(Int4Product, lambda w: quantize_int4(w, group))

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        product = self.head(weight) if self.weights == "int8" else self._int4(weight)
        return product if bias is None else lambda x: product(x).add_(bias)

    def linear_bytes(self, num_outputs: int, num_inputs: int, dtype: torch.dtype) -> int:
        if self.weights == "int8":
            return self.head_bytes(num_outputs, num_inputs, dtype)
        num_groups = num_outputs * num_inputs // self.group
        return num_outputs * num_inputs // 2 + num_groups * 4  # scale and minimum, two bytes each

    def head(self, weight: torch.Tensor) -> Linear:
        return Int8Product(quantize_int8(weight), self._may_fuse(weight, self._has_int8))

    def head_bytes(self, vocab_size: int, hidden_size: int, dtype: torch.dtype) -> int:
        return vocab_size * hidden_size + vocab_size * 4  # a float32 scale per output

    def _int4(self, weight: torch.Tensor) -> Linear:
        self._require_groups(weight.shape[1])
        fused = self._may_fuse(weight, self._has_int4) and weight.shape[0] % INT4_FUSED_OUTPUTS == 0
        return Int4Product(quantize_int4(weight, self.group), fused)

    @staticmethod
    def _may_fuse(weight: torch.Tensor, has_kernel: bool) -> bool:
        return has_kernel and weight.device.type == "cpu" and weight.dtype == torch.bfloat16

    def _require_groups(self, num_inputs: int) -> None:
        if num_inputs % self.group:
            raise ModelError(
                f"int4 weights come in groups of {self.group} inputs and this model has a product of {num_inputs}; "
                "use int8"
            )


class Int8Product:
    """x @ weight.T with int8 weights. The scale belongs to an output, so the sums are scaled and not the weights."""

    def __init__(self, weight: Int8Weight, fused: bool) -> None:
        """``fused``: bfloat16 rows may use the CPU's own kernel, which widens weights in registers."""
        self.q = weight.q  # [N, K] int8
        self.scale = weight.scale  # [N] float32
        self._ones = torch.ones_like(self.scale, dtype=torch.bfloat16) if fused else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [M, K] -> [M, N] in x's dtype. Pure."""
        if self._ones is not None and x.shape[0] < INT8_FUSED_ROWS:
            sums = torch._weight_int8pack_mm(x.contiguous(), self.q, self._ones)
        else:
            sums = _in_tiles(x, self.q.shape, lambda rows, dtype: self.q[rows].to(dtype))
        return (sums * self.scale).to(x.dtype)


class Int4Product:
    """x @ weight.T with two int4 weights in a byte: the low halves hold the first half of a group of inputs.

    Where the CPU has a kernel for it, bfloat16 weights lie in that kernel's own order and only there: it is the fastest
    for few rows; for hundreds of rows widening in tiles would be, by up to 2, but would need the weights twice.
    """

    def __init__(self, weight: Int4Weight, fused: bool) -> None:
        """``fused``: bfloat16 rows use the CPU's own kernel."""
        self.shape = weight.q.shape
        self.group = weight.q.shape[1] // weight.scale.shape[1]
        self._fused = fused
        if fused:
            # This kernel's weight is (q - 8) * scale + zero.
            scale, minimum = weight.scale.float(), weight.minimum.float()
            self.packed = torch._convert_weight_to_int4pack_for_cpu(weight.q.to(torch.int32), 1)
            self._affine = torch.stack((scale, minimum + 8 * scale), dim=-1).transpose(0, 1).bfloat16().contiguous()
        else:
            halves = weight.q.unflatten(1, (-1, 2, self.group // 2))  # [N, K / g, 2, g / 2]
            self.packed = halves[:, :, 0] | (halves[:, :, 1] << 4)  # [N, K / g, g / 2] uint8
            self.scale = weight.scale[..., None]  # [N, K / g, 1] float16
            self.minimum = weight.minimum[..., None]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [M, K] -> [M, N] in x's dtype. Pure."""
        if self._fused:
            return torch._weight_int4pack_mm_for_cpu(x.contiguous(), self.packed, self.group, self._affine)
        return _in_tiles(x, self.shape, self._widened).to(x.dtype)

    def _widened(self, rows: slice, dtype: torch.dtype) -> torch.Tensor:
        packed = self.packed[rows]
        q = torch.cat((packed & 15, packed >> 4), dim=-1).to(dtype)  # [rows, K / g, g]
        return q.mul_(self.scale[rows]).add_(self.minimum[rows]).flatten(1)


def _in_tiles(
    x: torch.Tensor, shape: torch.Size, widened: Callable[[slice, torch.dtype], torch.Tensor]
) -> torch.Tensor:
    """x: [M, K] @ weight.T -> [M, N], a tile of outputs at a time; ``widened(rows, dtype)`` gives a tile [n, K]. Pure.

    float16 is widened to float32, which CPUs multiply much faster; the result then is float32 too.
    """
    num_outputs, num_inputs = shape
    dtype = torch.float32 if x.dtype == torch.float16 and x.device.type == "cpu" else x.dtype
    x = x.to(dtype)
    tile = max(TILE_ELEMENTS // num_inputs, 1) if x.device.type == "cpu" else num_outputs
    if tile >= num_outputs:
        return F.linear(x, widened(slice(None), dtype))
    out = x.new_empty((x.shape[0], num_outputs))
    for first in range(0, num_outputs, tile):
        rows = slice(first, min(first + tile, num_outputs))
        out[:, rows] = F.linear(x, widened(rows, dtype))
    return out


def _agrees(
    product: type[Int8Product] | type[Int4Product], quantize: Callable[[torch.Tensor], Int8Weight | Int4Weight]
) -> bool:
    """Whether torch's own kernel for this format is here and computes what we mean. Pure."""
    noise = torch.Generator().manual_seed(0)
    weight, x = torch.randn((64, 64), generator=noise), torch.randn((2, 64), generator=noise).bfloat16()
    quantized = quantize(weight)
    try:
        got = product(quantized, fused=True)(x)
    except (RuntimeError, AttributeError):  # another torch, or a CPU it has no such kernel for
        return False
    wanted = x.float() @ quantized.dequantize().T
    return bool((got.float() - wanted).abs().max() < 0.02 * wanted.abs().max())
