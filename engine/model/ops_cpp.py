"""The decoder's weights for the C++ kernels of the CPU, and the whole decoder as one call into them.

``CppOps`` stands where ``TorchOps`` stands: a decoder built with it also runs operation by operation, which is what a
quantized KV cache needs. ``compiled`` gives the other form: every layer in one call, with the weights packed once in
the kernels' order, in one stretch of memory, and shared by both forms. What the kernels cannot do (float16, odd
shapes) stays with torch. Quantized weights are those of ``engine.model.quant``: same rounding, same int8 head.
Invariant: weights are held once; the tensors read from disk are let go as they are packed.
"""

from __future__ import annotations

import torch

from engine.model.decoder import Decoder, Layer
from engine.model.ops import Linear, TorchOps
from engine.model.quant import INT4_GROUPS, ops_for
from engine.model.rope import inverse_frequencies
from engine.model.spec import ModelSpec
from kernels.cpu import CpuDecoder, CpuLibrary, DecoderShape, LayerWeights, PackedWeight, WeightArena
from kernels.cpu.decoder import head_rows, interleave_gate_up, plain_gate_up, plain_head_columns
from kernels.cpu.pack import pack, pack_int4, pack_int8, packed_bytes
from kernels.reference import Int4Weight, Int8Weight, quantize_int4, quantize_int8
from kernels.reference import linear as plain_linear

NATIVE_DTYPES = (torch.float32, torch.bfloat16)


class CppOps(TorchOps):
    """``engine.model.ops.Ops`` on the C++ kernels. One belongs to one decoder."""

    def __init__(self, library: CpuLibrary, weights: str | None = None) -> None:
        """``weights``: None, int8 or int4. Raises: ModelError for another."""
        self._torch = ops_for(weights)  # what the kernels cannot do, and what weights cost to read
        self.name = "cpp" if weights is None else f"cpp {weights}"
        self.weights = weights
        self.library = library
        self._compiled: CpuDecoder | None = None
        self._is_packed = False

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """Raises: ModelError where int4 groups do not fit."""
        fits_groups = self.weights != "int4" or weight.shape[1] % INT4_GROUPS[0] == 0
        if not _is_native(weight) or not fits_groups:
            return self._torch.linear(weight, bias)
        if self.weights == "int8":
            return CppLinear(self.library, quantize_int8(weight), bias)
        if self.weights == "int4":
            return CppLinear(self.library, quantize_int4(weight, INT4_GROUPS[0]), bias)
        return CppLinear(self.library, weight, bias)

    def linear_bytes(self, num_outputs: int, num_inputs: int, dtype: torch.dtype) -> int:
        return self._torch.linear_bytes(num_outputs, num_inputs, dtype)

    def head(self, weight: torch.Tensor) -> Linear:
        if not _is_native(weight):
            return self._torch.head(weight)
        return CppLinear(self.library, quantize_int8(weight) if self.weights else weight, None)

    def head_bytes(self, vocab_size: int, hidden_size: int, dtype: torch.dtype) -> int:
        return self._torch.head_bytes(vocab_size, hidden_size, dtype)

    def why_not_compiled(self, decoder: Decoder) -> str:
        """ "" or one sentence saying why this decoder cannot run as one call. Pure."""
        if decoder.dtype not in NATIVE_DTYPES or decoder.device.type != "cpu":
            return f"the C++ kernels compute in float32 and bfloat16 on a CPU; this model is in {decoder.dtype}"
        return _shape(decoder.spec).unsupported()

    def compiled(self, decoder: Decoder) -> CpuDecoder | None:
        """The decoder as one call, None where it cannot be. Effect: packs its weights at the first call."""
        if not self._is_packed:
            self._is_packed = True
            if self.why_not_compiled(decoder):
                _pack_each(decoder)
            else:
                self._compiled = _compile(decoder, self.library)
        return self._compiled


class CppLinear:
    """x @ weight.T + bias. The weight is plain until it is packed, in whatever row order its place asks for."""

    def __init__(
        self, library: CpuLibrary, weight: torch.Tensor | Int8Weight | Int4Weight, bias: torch.Tensor | None
    ) -> None:
        self._library = library
        self._plain: torch.Tensor | Int8Weight | Int4Weight | None = weight
        self._bias = bias
        self._undo = lambda out: out
        self.packed: PackedWeight | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., K] -> [..., N] in x's dtype. Pure."""
        rows = x.reshape(-1, x.shape[-1])
        if self.packed is not None:
            out = self._undo(self._library.linear(rows, self.packed))
        else:
            out = plain_linear(rows, _dequantized(self._plain), self._bias)
        return out.to(x.dtype).unflatten(0, x.shape[:-1])

    def pack(self, arena: WeightArena | None = None, order=lambda rows: rows, undo=lambda out: out) -> PackedWeight:
        """``order`` rearranges the rows of a weight [N, ...], ``undo`` the columns of a result. Effect: once only."""
        plain, bias = self._plain, None if self._bias is None else order(self._bias)
        assert plain is not None, "a weight is packed once"
        if isinstance(plain, Int8Weight):
            self.packed = pack_int8(order(plain.q), order(plain.scale), bias, arena)
        elif isinstance(plain, Int4Weight):
            self.packed = pack_int4(order(plain.q), order(plain.scale), order(plain.minimum), bias, arena)
        else:
            self.packed = pack(order(plain), bias, arena)
        self._plain, self._bias, self._undo = None, None, undo
        return self.packed

    def packed_bytes(self, order=lambda rows: rows) -> int:
        """What ``pack`` takes of an arena. Pure."""
        plain = self._plain
        assert plain is not None, "a weight is packed once"
        if isinstance(plain, Int8Weight):
            return packed_bytes(*_ordered_shape(plain.q, order), "int8")
        if isinstance(plain, Int4Weight):
            group = plain.q.shape[1] // plain.scale.shape[1]
            return packed_bytes(*_ordered_shape(plain.q, order), "int4", group)
        kind = "float32" if plain.dtype == torch.float32 else "bfloat16"
        return packed_bytes(*_ordered_shape(plain, order), kind)


def _is_native(weight: torch.Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype in NATIVE_DTYPES and weight.shape[1] % 2 == 0


def _dequantized(weight: torch.Tensor | Int8Weight | Int4Weight) -> torch.Tensor:
    return weight if isinstance(weight, torch.Tensor) else weight.dequantize()


def _ordered_shape(weight: torch.Tensor, order) -> tuple[int, int]:
    """Shape of the rearranged weight, found without touching its elements."""
    return tuple(order(torch.empty(weight.shape, dtype=weight.dtype, device="meta")).shape)


def _shape(spec: ModelSpec) -> DecoderShape:
    return DecoderShape(
        hidden_size=spec.hidden_size,
        num_layers=spec.num_layers,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        intermediate_size=spec.intermediate_size,
        vocab_size=spec.vocab_size,
        norm_eps=spec.rms_norm_eps,
        rope_scale=inverse_frequencies(spec.rope, spec.head_dim)[1],
    )


def _pack_each(decoder: Decoder) -> None:
    """Every product by itself, for a decoder that runs operation by operation."""
    products = [getattr(layer, name) for layer in decoder.layers for name in ("qkv", "o", "gate_up", "down")]
    for product in (*products, decoder.head):
        if isinstance(product, CppLinear):
            product.pack()


def _compile(decoder: Decoder, library: CpuLibrary) -> CpuDecoder:
    spec = decoder.spec

    def by_head(rows: torch.Tensor) -> torch.Tensor:
        return head_rows(rows, spec.head_dim)

    def products(layer: Layer):
        yield "qkv", by_head, lambda out: plain_head_columns(out, spec.head_dim)
        yield "gate_up", interleave_gate_up, plain_gate_up
        yield "o", lambda rows: rows, lambda out: out
        yield "down", lambda rows: rows, lambda out: out

    num_bytes = decoder.head.packed_bytes() + sum(
        getattr(layer, name).packed_bytes(order) for layer in decoder.layers for name, order, _ in products(layer)
    )
    arena = WeightArena(num_bytes)
    layers = []
    for layer in decoder.layers:
        packed = {name: getattr(layer, name).pack(arena, order, undo) for name, order, undo in products(layer)}
        norms = {
            name: None if norm is None else norm.float().contiguous()
            for name in ("attention_norm", "mlp_norm", "q_norm", "k_norm")
            for norm in (getattr(layer, name),)
        }
        layers.append(LayerWeights(**packed, **norms, uses_rope=layer.uses_rope))
    return CpuDecoder(
        library,
        _shape(spec),
        decoder.embedding.contiguous(),
        inverse_frequencies(spec.rope, spec.head_dim)[0].float().contiguous(),
        layers,
        decoder.final_norm.float().contiguous(),
        decoder.head.pack(arena),
    )
