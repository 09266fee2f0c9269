"""A whole decoder forward pass as one call into the C++ kernels.

It holds packed weights and no state of a run: the paged cache comes with every call, so runs may share a decoder, one
call at a time. Requirements beyond the torch decoder's are stated by ``DecoderShape.unsupported``.
Shapes: T rows in the step, C hidden size, Hq query heads, Hk KV heads, D head_dim, F intermediate size, V vocabulary.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kernels.cpu.library import (
    MAX_HEAD_DIM,
    CpuLibrary,
    RowChunk,
    _Weight,
    check_cache,
    check_chunk,
    check_types,
    chunk_arrays,
    pointer,
    weight_struct,
)
from kernels.cpu.pack import BLOCK, PackedWeight

LANES = 16
MAX_ROWS = 1 << 14  # pool.h: a phase, of heads times rows for attention, has fewer than 2^16 units
MAX_LAYERS = 400  # pool.h: phases of a pass


@dataclass(frozen=True)
class DecoderShape:
    """Sizes and constants of a Llama-family decoder."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    norm_eps: float
    rope_scale: float = 1.0

    def unsupported(self) -> str:
        """ "" or one sentence naming what the kernels cannot do. Pure."""
        for name in ("hidden_size", "head_dim", "intermediate_size"):
            if getattr(self, name) % LANES:
                return f"the C++ kernels need {name} to be a multiple of {LANES}; this model has {getattr(self, name)}"
        if self.num_layers > MAX_LAYERS:
            return f"the C++ kernels need at most {MAX_LAYERS} layers; this model has {self.num_layers}"
        if self.head_dim > MAX_HEAD_DIM:
            return f"the C++ kernels need a head_dim of at most {MAX_HEAD_DIM}; this model has {self.head_dim}"
        return ""


@dataclass(frozen=True)
class LayerWeights:
    """One layer. ``qkv`` and ``gate_up`` are packed in the order of ``head_rows`` and ``interleave_gate_up``."""

    attention_norm: torch.Tensor  # [C] float32
    qkv: PackedWeight
    o: PackedWeight
    mlp_norm: torch.Tensor  # [C] float32
    gate_up: PackedWeight
    down: PackedWeight
    q_norm: torch.Tensor | None = None  # [D] float32
    k_norm: torch.Tensor | None = None  # [D] float32
    uses_rope: bool = True


def head_rows(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows [heads * D, ...] of the fused QKV weight (or its bias) with every head padded to whole blocks. Pure."""
    missing = -head_dim % BLOCK
    if missing == 0:
        return rows
    heads = rows.reshape(-1, head_dim, *rows.shape[1:])
    padding = [0, 0] * (heads.dim() - 2) + [0, missing]
    return F.pad(heads, padding).flatten(0, 1)


def interleave_gate_up(rows: torch.Tensor) -> torch.Tensor:
    """Rows [2F, ...], gates first -> 16 gates, 16 ups, 16 gates ... Pure."""
    halves = rows.reshape(2, -1, LANES, *rows.shape[1:])
    return halves.transpose(0, 1).flatten(0, 2)


def plain_head_columns(out: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Undo ``head_rows`` on a result [M, heads * padded D] -> [M, heads * D]. Pure."""
    padded = head_dim + -head_dim % BLOCK
    return out.unflatten(1, (-1, padded))[:, :, :head_dim].flatten(1)


def plain_gate_up(out: torch.Tensor) -> torch.Tensor:
    """Undo ``interleave_gate_up`` on a result [M, 2F]. Pure."""
    return out.unflatten(1, (-1, 2, LANES)).transpose(1, 2).flatten(1)


class _Layer(ctypes.Structure):
    _fields_ = (
        ("attention_norm", ctypes.c_void_p),
        ("q_norm", ctypes.c_void_p),
        ("k_norm", ctypes.c_void_p),
        ("mlp_norm", ctypes.c_void_p),
        ("qkv", _Weight),
        ("o", _Weight),
        ("gate_up", _Weight),
        ("down", _Weight),
        ("rotates", ctypes.c_int32),
    )


class _Model(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("hidden_size", "num_layers", "query_heads", "kv_heads", "head_dim")),
        ("intermediate_size", ctypes.c_int32),
        ("vocab_size", ctypes.c_int32),
        ("norm_eps", ctypes.c_float),
        ("rope_scale", ctypes.c_float),
        ("inverse_frequencies", ctypes.c_void_p),
        ("embedding", ctypes.c_void_p),
        ("final_norm", ctypes.c_void_p),
        ("head", _Weight),
        ("layers", ctypes.c_void_p),
    )


class _CacheView(ctypes.Structure):
    _fields_ = (
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("slot_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
        ("block_size", ctypes.c_int32),
    )


class _Batch(ctypes.Structure):
    _fields_ = (
        ("num_rows", ctypes.c_int32),
        ("token_ids", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("num_chunks", ctypes.c_int32),
        ("chunks", ctypes.c_void_p),
        ("block_ids", ctypes.c_void_p),
        ("num_logit_rows", ctypes.c_int32),
        ("logit_rows", ctypes.c_void_p),
        ("logits", ctypes.c_void_p),
        ("cache", _CacheView),
    )


class CacheView:
    """Where a run's keys and values lie, prepared once per run."""

    def __init__(self, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor], block_size: int) -> None:
        """keys, values: per layer [slots, Hk, D], all of one layout."""
        for k, v in zip(keys, values, strict=True):
            check_cache(k, v, keys[0].dtype)
            assert k.stride() == keys[0].stride() and k.shape == keys[0].shape, "all layers have one layout"
        self.block_size = block_size
        self.num_slots, self.num_kv_heads, self.head_dim = keys[0].shape
        self.dtype, self.num_layers = keys[0].dtype, len(keys)
        self._keys = (ctypes.c_void_p * len(keys))(*(k.data_ptr() for k in keys))
        self._values = (ctypes.c_void_p * len(values))(*(v.data_ptr() for v in values))
        self._kept = (list(keys), list(values))
        self.struct = _CacheView(
            ctypes.addressof(self._keys),
            ctypes.addressof(self._values),
            keys[0].stride(0),
            keys[0].stride(1),
            block_size,
        )


class CpuDecoder:
    """Token ids and positions in, logits of the rows that sample out; keys and values go to the cache."""

    def __init__(
        self,
        library: CpuLibrary,
        shape: DecoderShape,
        embedding: torch.Tensor,  # [V, C] float32 or bfloat16: the dtype of rows and cache
        inverse_frequencies: torch.Tensor,  # [D / 2] float32
        layers: Sequence[LayerWeights],
        final_norm: torch.Tensor,  # [C] float32
        head: PackedWeight,  # [V, C]
    ) -> None:
        assert not shape.unsupported(), shape.unsupported()
        self.library = library
        self.shape = shape
        self.dtype = embedding.dtype
        self._kept = (embedding, inverse_frequencies, list(layers), final_norm, head)
        _check(shape, embedding, inverse_frequencies, layers, final_norm, head)
        structs = (_Layer * len(layers))(*(_layer_struct(layer) for layer in layers))
        self._model = _Model(
            shape.hidden_size,
            shape.num_layers,
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.intermediate_size,
            shape.vocab_size,
            shape.norm_eps,
            shape.rope_scale,
            pointer(inverse_frequencies),
            pointer(embedding),
            pointer(final_norm),
            weight_struct(head),
            ctypes.addressof(structs),
        )
        is_bf16 = int(self.dtype == torch.bfloat16)
        self._logits = torch.empty((0, shape.vocab_size), dtype=torch.float32)
        self._handle = library.functions.tbt_decoder_create(ctypes.byref(self._model), is_bf16)
        weakref.finalize(self, _destroy, library, self._handle, os.getpid()).atexit = False

    def forward(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        chunks: Sequence[RowChunk],
        logit_rows: Sequence[int],
        cache: CacheView,
    ) -> torch.Tensor:
        """token_ids, positions, slots: T each (slot -1: keep nowhere); logit_rows: R -> logits [R, V] float32.

        Every row belongs to one chunk. The logits lie in the decoder's own memory and are good until its next call:
        new memory costs more than filling it. Effect: writes keys and values of the rows to their slots.
        """
        self._check_step(token_ids, positions, slots, chunks, logit_rows, cache)
        ids, at, rows = (array("i", values) for values in (token_ids, positions, logit_rows))
        places = array("q", slots)
        chunk_array, block_ids = chunk_arrays(chunks)
        if len(rows) > len(self._logits):
            self._logits = torch.empty((len(rows), self.shape.vocab_size), dtype=torch.float32)
        logits = self._logits[: len(rows)]
        batch = _Batch(
            len(ids),
            ids.buffer_info()[0],
            at.buffer_info()[0],
            places.buffer_info()[0],
            len(chunks),
            ctypes.addressof(chunk_array),
            block_ids.buffer_info()[0],
            len(rows),
            rows.buffer_info()[0],
            logits.data_ptr(),
            cache.struct,
        )
        with self.library.pool() as pool:
            self.library.functions.tbt_decoder_forward(self._handle, pool, ctypes.byref(batch))
        return logits

    def _check_step(self, token_ids, positions, slots, chunks, logit_rows, cache: CacheView) -> None:
        """A wrong number would read or write foreign memory."""
        num_rows = len(token_ids)
        assert num_rows <= MAX_ROWS, "a step has at most 16384 rows"
        assert len(positions) == len(slots) == num_rows, "one position and slot per row"
        assert sum(chunk.num_rows for chunk in chunks) == num_rows, "every row belongs to one chunk"
        assert cache.dtype == self.dtype and cache.num_layers == self.shape.num_layers, "the cache fits the model"
        assert (cache.num_kv_heads, cache.head_dim) == (self.shape.num_kv_heads, self.shape.head_dim), "same heads"
        for chunk in chunks:
            check_chunk(chunk, num_rows, cache.num_slots, cache.block_size)
        assert _within(token_ids, self.shape.vocab_size), "ids in the vocabulary"
        assert max(slots, default=-1) < cache.num_slots, "slots lie in the cache"
        assert _within(logit_rows, num_rows), "logit rows lie in the step"


def _destroy(library: CpuLibrary, handle: int, process: int) -> None:
    """Free a decoder's buffers. Not in a forked child, which shares them with its parent."""
    if process == os.getpid():
        library.destroy_decoder(handle)


def _within(values: Sequence[int], end: int) -> bool:
    return not values or (min(values) >= 0 and max(values) < end)


def _layer_struct(layer: LayerWeights) -> _Layer:
    return _Layer(
        pointer(layer.attention_norm),
        pointer(layer.q_norm),
        pointer(layer.k_norm),
        pointer(layer.mlp_norm),
        weight_struct(layer.qkv),
        weight_struct(layer.o),
        weight_struct(layer.gate_up),
        weight_struct(layer.down),
        int(layer.uses_rope),
    )


def _check(shape: DecoderShape, embedding, frequencies, layers: Sequence[LayerWeights], final_norm, head) -> None:
    hidden, inner = shape.hidden_size, shape.intermediate_size
    padded_dim = -(-shape.head_dim // BLOCK) * BLOCK
    heads = shape.num_heads + 2 * shape.num_kv_heads
    assert embedding.shape == (shape.vocab_size, hidden) and len(layers) == shape.num_layers
    assert frequencies.shape == (shape.head_dim // 2,) and frequencies.dtype == torch.float32
    assert shape.num_heads % shape.num_kv_heads == 0
    for layer in layers:
        sizes = {
            "qkv": (heads * padded_dim, hidden),
            "o": (hidden, shape.num_heads * shape.head_dim),
            "gate_up": (2 * inner, hidden),
            "down": (hidden, inner),
        }
        for name, size in sizes.items():
            weight = getattr(layer, name)
            assert (weight.num_outputs, weight.num_inputs) == size, f"{name} has the model's size"
            check_types(embedding.dtype, weight)
        norms = (layer.attention_norm, layer.mlp_norm, layer.q_norm, layer.k_norm)
        assert all(norm is None or norm.dtype == torch.float32 for norm in norms), "norm weights are float32"
    assert (head.num_outputs, head.num_inputs) == (shape.vocab_size, hidden) and final_norm.dtype == torch.float32
    check_types(embedding.dtype, head)
