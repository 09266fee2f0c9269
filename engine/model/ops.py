"""The dense operations of the decoder, behind one small interface, so that faster kernels can take their place.

The decoder knows only ``Ops``. ``TorchOps`` is the readable implementation and the fallback everywhere; another one
(C++ on the CPU, Triton on a GPU) has to give the same numbers within rounding. Attention over the paged cache is the
other seam (``engine.runtime.attention``), because it depends on the cache layout and not on the weights.
Shapes: T tokens in the step, C hidden size, N outputs, K inputs, H heads, D head_dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F

from engine.model.rope import rotate_

Linear = Callable[[torch.Tensor], torch.Tensor]  # x: [T, K] -> [T, N]

HALF_UPCAST_ROWS = 8  # from here on a float32 product is faster than the CPU's float16 one, conversion included


class Ops(Protocol):
    """What the decoder needs. ``linear`` is called once per weight at loading; the rest run every step."""

    name: str

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """A function computing x @ weight.T + bias. May keep the weight in a layout of its own. weight: [N, K]."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x / rms(x) * weight over the last dimension. Pure."""
        ...

    def rope_(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Rotate x [T, H, D] by cos, sin [T, 1, D]. Effect: in place."""
        ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """gate_up [T, 2F], gate first -> silu(gate) * up [T, F]. Pure."""
        ...


class TorchOps:
    """Plain torch, on any device. On a CPU the weights are kept in oneDNN's blocked layout where torch offers it."""

    name = "torch"

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        if weight.device.type == "cpu" and weight.dtype == torch.float16:
            return lambda x: _half_linear(x, weight, bias)
        if weight.device.type == "cpu" and _can_prepack(weight):
            return _prepacked(weight, bias)
        return lambda x: F.linear(x, weight, bias)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, eps)

    def rope_(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return rotate_(x, cos, sin)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


def _can_prepack(weight: torch.Tensor) -> bool:
    if weight.dtype not in (torch.float32, torch.bfloat16) or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    return hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _prepacked(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """oneDNN product with the weight laid out once. F.linear lays it out again on every call, which at one row costs
    as much as the product itself (about twice the time per token)."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 1)
    product = torch.ops.mkldnn._linear_pointwise

    def linear(x: torch.Tensor) -> torch.Tensor:
        return product(x, packed, bias, "none", [], "")

    return linear


def _half_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """float16 on a CPU: fast for one row, very slow for many, where float32 arithmetic takes over."""
    if x.shape[0] < HALF_UPCAST_ROWS:
        return F.linear(x, weight, bias)
    wide_bias = None if bias is None else bias.float()
    return F.linear(x.float(), weight.float(), wide_bias).to(torch.float16)
