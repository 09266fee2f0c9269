"""The dense operations on a GPU: Triton kernels where several torch operations become one trip through memory.

Plain products stay with cuBLAS, which is at home there; quantized ones are ours, because reading fewer bytes is the
point of them. Imported only after a GPU was chosen (``engine.runtime.kernels_choice``): importing it imports Triton.
The numbers are those of ``TorchOps`` within rounding; the twins in ``kernels.twins`` say what each kernel computes.
Shapes: T tokens in the step, C hidden size, N outputs, K inputs, H heads, D head_dim.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine.model.ops import Linear
from engine.model.spec import ModelError
from kernels import triton as kernels
from kernels.costs import int4_weight_bytes, int8_weight_bytes
from kernels.packing import pack_int4
from kernels.reference import quantize_int4, quantize_int8

INT4_GROUP = 32


class TritonOps:
    """``engine.model.ops.Ops`` with Triton kernels. ``weights``: None, int8 or int4."""

    def __init__(self, weights: str | None = None) -> None:
        assert weights in (None, "int8", "int4"), f"weights is {weights!r}"
        self.name = "triton" if weights is None else f"triton {weights}"
        self.weights = weights

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """Raises: ModelError where int4 groups do not fit."""
        if self.weights == "int8":
            return _linear_int8(weight, bias)
        if self.weights == "int4":
            if weight.shape[1] % INT4_GROUP:
                raise ModelError(
                    f"int4 weights come in groups of {INT4_GROUP} inputs and this model has a product of "
                    f"{weight.shape[1]}; use int8"
                )
            int4 = pack_int4(quantize_int4(weight, INT4_GROUP))
            return lambda x: kernels.linear_int4(x, int4, bias)
        return lambda x: F.linear(x, weight, bias)

    def linear_bytes(self, num_outputs: int, num_inputs: int, dtype: torch.dtype) -> int:
        """What one call of such a function reads of the weight, scales included, bias aside. Pure."""
        if self.weights == "int8":
            return int8_weight_bytes(num_outputs, num_inputs)
        if self.weights == "int4":
            return int4_weight_bytes(num_outputs, num_inputs, INT4_GROUP)
        return num_outputs * num_inputs * dtype.itemsize

    def head(self, weight: torch.Tensor) -> Linear:
        """The LM head errs straight into the logits, so it is int8 where the layers are int4. weight: [V, C]."""
        return _linear_int8(weight, None) if self.weights else self.linear(weight, None)

    def head_bytes(self, vocab_size: int, hidden_size: int, dtype: torch.dtype) -> int:
        """As ``linear_bytes`` for the LM head. Pure."""
        if self.weights:
            return int8_weight_bytes(vocab_size, hidden_size)
        return vocab_size * hidden_size * dtype.itemsize

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x [T, C] / rms(x) * weight. Pure."""
        return kernels.rms_norm(x, weight, eps)

    def add_rms_norm_(
        self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """The norm of x + delta [T, C]; of x where delta is None. Effect: x becomes x + delta."""
        return kernels.rms_norm(x, weight, eps) if delta is None else kernels.add_rms_norm_(x, delta, weight, eps)

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
        """heads [T, Hq + Hk, D], queries first: normed per head and turned, each where its tensors are given.

        Effect: in place. cos, sin: [T, 1, D].
        """
        kernels.norm_rope_(heads, num_q_heads, cos, sin, q_norm, k_norm, eps)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """gate_up [T, 2F], gate first -> silu(gate) * up [T, F]. Pure."""
        return kernels.silu_mul(gate_up)


def _linear_int8(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    int8 = quantize_int8(weight)
    return lambda x: kernels.linear_int8(x, int8.q, int8.scale, bias)
