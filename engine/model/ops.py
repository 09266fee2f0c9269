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

    def linear_bytes(self, num_outputs: int, num_inputs: int, dtype: torch.dtype) -> int:
        """What one call of such a function reads of the weight in that dtype, scales included, bias aside. Pure."""
        ...

    def head(self, weight: torch.Tensor) -> Linear:
        """As ``linear`` for the LM head [V, C], which errs straight into the logits and may be kept more exactly."""
        ...

    def head_bytes(self, vocab_size: int, hidden_size: int, dtype: torch.dtype) -> int:
        """As ``linear_bytes`` for the LM head. Pure."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x / rms(x) * weight over the last dimension. Pure."""
        ...

    def add_rms_norm_(
        self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """The norm of x + delta, or of x where delta is None. Effect: x becomes x + delta."""
        ...

    def norm_rope_(
        self,
        heads: torch.Tensor,
        num_q_heads: int,
        cos: torch.Tensor | None,
        sin: torch.Tensor | None,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
    ) -> None:
        """heads [T, H, D], queries first: normed per head, then rotated by cos, sin [T, 1, D]; a None leaves it out.

        Effect: in place.
        """
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

    def linear_bytes(self, num_outputs: int, num_inputs: int, dtype: torch.dtype) -> int:
        return num_outputs * num_inputs * dtype.itemsize

    def head(self, weight: torch.Tensor) -> Linear:
        return self.linear(weight, None)

    def head_bytes(self, vocab_size: int, hidden_size: int, dtype: torch.dtype) -> int:
        return self.linear_bytes(vocab_size, hidden_size, dtype)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, eps)

    def add_rms_norm_(
        self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        return self.rms_norm(x if delta is None else x.add_(delta), weight, eps)

    def norm_rope_(
        self,
        heads: torch.Tensor,
        num_q_heads: int,
        cos: torch.Tensor | None,
        sin: torch.Tensor | None,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
    ) -> None:
        if q_norm is not None and k_norm is not None:
            q, k = heads[:, :num_q_heads], heads[:, num_q_heads:]
            q.copy_(self.rms_norm(q, q_norm, eps))
            k.copy_(self.rms_norm(k, k_norm, eps))
        if cos is not None and sin is not None:
            rotate_(heads, cos, sin)

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
