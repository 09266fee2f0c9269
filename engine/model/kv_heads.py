"""A model with another number of KV heads: its own repeated for more of them, averaged for fewer.

With more, every group of query heads gets copies of the keys and values it had: the same function with a larger cache,
up to multi-head attention. With fewer, the heads of a group become their mean, as GQA (Ainslie et al. 2023,
arXiv 2305.13245) begins its conversion; without the training that follows there the text suffers, which is the point
to see. Only the projections of keys and values change; nothing is written to disk.
Shapes: Hk KV heads, D head_dim, d hidden size.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from engine.model.spec import ModelError, ModelSpec
from engine.model.weights import Shape, TensorSource

_PROJECTIONS = (".self_attn.k_proj.", ".self_attn.v_proj.")


def with_num_kv_heads(spec: ModelSpec, num_kv_heads: int) -> ModelSpec:
    """The spec with so many KV heads. Pure. Raises: ModelError for a number that cannot be reached."""
    own = spec.num_kv_heads
    reachable = [n for n in range(1, spec.num_heads + 1) if spec.num_heads % n == 0 and (n % own == 0 or own % n == 0)]
    if num_kv_heads not in reachable:
        raise ModelError(
            f"num_kv_heads is {num_kv_heads}; the model has {own} for {spec.num_heads} query heads, so allowed: "
            f"{', '.join(map(str, reachable))}"
        )
    return replace(spec, num_kv_heads=num_kv_heads)


class RegroupedHeads:
    """The tensors of a model as one with ``num_kv_heads`` KV heads has them. See the module."""

    def __init__(self, source: TensorSource, spec: ModelSpec, num_kv_heads: int) -> None:
        self._source = source
        self._own, self._wanted, self._head_dim = spec.num_kv_heads, num_kv_heads, spec.head_dim

    def shapes(self) -> dict[str, Shape]:
        return {name: self._shape(name, shape) for name, shape in self._source.shapes().items()}

    def read(self, name: str) -> torch.Tensor:
        """[Hk * D, d] weight or [Hk * D] bias of a projection, regrouped; any other tensor as it is."""
        tensor = self._source.read(name)
        if not self._is_projection(name):
            return tensor
        heads = tensor.unflatten(0, (self._own, self._head_dim))  # [Hk, D, ...]
        if self._wanted >= self._own:
            return heads.repeat_interleave(self._wanted // self._own, dim=0).flatten(0, 1)
        groups = heads.float().unflatten(0, (self._wanted, self._own // self._wanted))
        return groups.mean(dim=1).to(tensor.dtype).flatten(0, 1)

    def _shape(self, name: str, shape: Shape) -> Shape:
        if not self._is_projection(name):
            return shape
        return (shape[0] // self._own * self._wanted, *shape[1:])

    @staticmethod
    def _is_projection(name: str) -> bool:
        return any(part in name for part in _PROJECTIONS)
