"""One decoder for the whole Llama family: what a family does differently is data in the ModelSpec, not code here.

It computes on the flat tokens of a step, whatever requests and phases they belong to, and knows nothing of blocks,
slots or requests: attention is handed in as a function. Logits are computed only for the rows that will be sampled.
Follows Llama (arXiv 2302.13971) and the flat-batch layout of vLLM and nano-vllm.
Shapes: T tokens in the step, C hidden size, Hq query heads, Hk KV heads, D head_dim, R rows that sample, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine.model.ops import Linear, Ops
from engine.model.rope import Rotary
from engine.model.spec import ModelSpec

# (layer, q [T, Hq, D], kv [T, 2, Hk, D] with keys first) -> [T, Hq * D]; stores kv in the cache and attends over it
Attend = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Layer:
    """One transformer layer's weights. Q, K and V are one product, gate and up are one product."""

    attention_norm: torch.Tensor  # [C]
    qkv: Linear  # [T, C] -> [T, (Hq + 2 Hk) * D]
    q_norm: torch.Tensor | None  # [D]
    k_norm: torch.Tensor | None  # [D]
    o: Linear  # [T, Hq * D] -> [T, C]
    mlp_norm: torch.Tensor  # [C]
    gate_up: Linear  # [T, C] -> [T, 2F]
    down: Linear  # [T, F] -> [T, C]
    uses_rope: bool


class Decoder:
    """Token ids and positions in, next-token logits out."""

    def __init__(
        self,
        spec: ModelSpec,
        embedding: torch.Tensor,  # [V, C]
        layers: list[Layer],
        final_norm: torch.Tensor,  # [C]
        head: Linear,  # [R, C] -> [R, V]
        ops: Ops,
    ) -> None:
        assert len(layers) == spec.num_layers, "one Layer per layer of the spec"
        self.spec = spec
        self.embedding = embedding
        self.layers = layers
        self.final_norm = final_norm
        self.head = head
        self.ops = ops
        self.rotary = Rotary(spec.rope, spec.head_dim, embedding.dtype, embedding.device)

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @torch.inference_mode()
    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, logit_rows: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """token_ids, positions: [T]; logit_rows: [R] -> logits [R, V] float32. Effect: only what ``attend`` does."""
        x = F.embedding(token_ids, self.embedding)  # [T, C]
        cos, sin = self.rotary.angles(positions)
        eps, delta = self.spec.rms_norm_eps, None
        for index, layer in enumerate(self.layers):
            # The residual x takes each part's output where the next part begins: addition and norm are one trip.
            normed = self.ops.add_rms_norm_(x, delta, layer.attention_norm, eps)
            delta = self._attention(index, layer, normed, cos, sin, attend)
            normed = self.ops.add_rms_norm_(x, delta, layer.mlp_norm, eps)
            delta = layer.down(self.ops.silu_mul(layer.gate_up(normed)))
        if logit_rows.shape[0] == 0:  # a step of partial chunks samples nothing: the head would be wasted
            return torch.empty((0, self.spec.vocab_size), dtype=torch.float32, device=x.device)
        rows = x.index_select(0, logit_rows) + delta.index_select(0, logit_rows)
        return self.head(self.ops.rms_norm(rows, self.final_norm, eps)).to(torch.float32)

    def _attention(
        self, index: int, layer: Layer, normed: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        spec = self.spec
        num_qk_heads = spec.num_heads + spec.num_kv_heads
        heads = layer.qkv(normed).unflatten(-1, (num_qk_heads + spec.num_kv_heads, spec.head_dim))
        angles = (cos, sin) if layer.uses_rope else (None, None)
        norms = (layer.q_norm, layer.k_norm)
        self.ops.norm_rope_(heads[:, :num_qk_heads], spec.num_heads, *angles, *norms, spec.rms_norm_eps)
        kv = heads[:, spec.num_heads :].unflatten(1, (2, spec.num_kv_heads))
        return layer.o(attend(index, heads[:, : spec.num_heads], kv))
