"""Weights in the order in which the kernels read them (kernels/cpu/src/linear.h says why).

A weight [N, K] becomes blocks of 32 outputs, each one contiguous stream with the inputs outermost. Outputs are padded
with zeros to a whole block. All packed weights of a model lie in one arena of huge memory pages: with 4 KB pages a core
spends part of its time looking up addresses (measured: 30 instead of 35 GB/s). (Memory pages, not KV blocks.)

Quantized formats: int8 has one scale per output, symmetric, values -127..127. int4 has groups of inputs, each with
a scale and a minimum per output in float16: weight = scale * q + minimum, q in 0..15 (as in GGUF's Q4_1).
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from dataclasses import dataclass

import torch
import torch.nn.functional as F

BLOCK = 32
HUGE_PAGE_BYTES = 2 << 20
KINDS = {"float32": 0, "bfloat16": 1, "int8": 2, "int4": 3}


@dataclass(frozen=True)
class PackedWeight:
    """One product's weight. ``data`` is bytes in the kernels' order; ``num_outputs`` counts without padding."""

    kind: str
    data: torch.Tensor  # uint8
    num_outputs: int
    num_inputs: int
    scale: torch.Tensor | None = None  # int8: [padded outputs] float32
    bias: torch.Tensor | None = None  # [padded outputs] float32
    group: int = 0

    @property
    def padded_outputs(self) -> int:
        return _padded(self.num_outputs)

    @property
    def num_bytes(self) -> int:
        """Bytes read when the product is computed once."""
        extras = [t.numel() * t.element_size() for t in (self.scale, self.bias) if t is not None]
        return self.data.numel() + sum(extras)


class WeightArena:
    """One stretch of memory for a model's packed weights, on huge pages where the system has them."""

    def __init__(self, num_bytes: int) -> None:
        self._memory = _private_memory(num_bytes + HUGE_PAGE_BYTES)
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._used = -self._bytes.data_ptr() % HUGE_PAGE_BYTES  # huge pages begin at multiples of their size
        self.capacity = num_bytes

    def keep(self, data: torch.Tensor) -> torch.Tensor:
        """A copy of ``data`` in the arena, in the order of its dimensions, as bytes. Effect: takes that much of it.

        Copied once, straight to its place: a contiguous copy on the way would cost as much again for new memory.
        """
        num_bytes = data.numel() * data.element_size()
        assert self._used + num_bytes <= self._bytes.numel(), "the arena was sized for other weights"
        place = self._bytes[self._used : self._used + num_bytes]
        place.view(data.dtype).view(data.shape).copy_(data)
        self._used += -(-num_bytes // 64) * 64
        return place


def _private_memory(num_bytes: int) -> mmap.mmap:
    """Zeroed memory, with the request for huge pages. Private: shared memory gets none."""
    if not hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, num_bytes)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system without huge pages: slower, not wrong
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def advise_huge_pages(tensor: torch.Tensor) -> None:
    """Ask for huge pages under a large tensor that has not been written yet. Effect: none where there are none."""
    start = -(-tensor.data_ptr() // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    end = (tensor.data_ptr() + tensor.numel() * tensor.element_size()) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    if hasattr(mmap, "MADV_HUGEPAGE") and end > start:
        advise = ctypes.CDLL(None).madvise
        advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), ctypes.c_int(mmap.MADV_HUGEPAGE))


def packed_bytes(num_outputs: int, num_inputs: int, kind: str, group: int = 32) -> int:
    """Bytes of ``PackedWeight.data``, rounded up to a cache line. Pure."""
    weights = _padded(num_outputs) * num_inputs
    if kind == "int4":
        num_bytes = weights // 2 + weights // group * 4
    else:
        num_bytes = weights * {"float32": 4, "bfloat16": 2, "int8": 1}[kind]
    return -(-num_bytes // 64) * 64


def pack(weight: torch.Tensor, bias: torch.Tensor | None = None, arena: WeightArena | None = None) -> PackedWeight:
    """weight: [N, K] float32, or bfloat16 with an even K; bias: [N]. Pure but for the arena."""
    num_outputs, num_inputs = weight.shape
    kind = {torch.float32: "float32", torch.bfloat16: "bfloat16"}[weight.dtype]
    pair = 1 if kind == "float32" else 2
    assert num_inputs % pair == 0, "bfloat16 inputs come in pairs"
    blocks = _pad_outputs(weight).reshape(-1, BLOCK, num_inputs // pair, pair).permute(0, 2, 1, 3)
    return PackedWeight(kind, _keep(blocks, arena), num_outputs, num_inputs, bias=_column(bias))


def pack_int8(
    q: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None, arena: WeightArena | None = None
) -> PackedWeight:
    """q: [N, K] int8 in -127..127, K even; scale: [N]; weight = q * scale. Pure but for the arena."""
    num_outputs, num_inputs = q.shape
    assert num_inputs % 2 == 0, "inputs come in pairs"
    q = _pad_outputs(q)
    sign_and_magnitude = q.abs().to(torch.uint8) | ((q < 0).to(torch.uint8) << 7)
    # [block, half, lane, i, pair, parity] -> [block, pair, lane, half, i, parity]: unpack.h's byte order
    blocks = sign_and_magnitude.reshape(-1, 2, 4, 4, num_inputs // 2, 2).permute(0, 4, 2, 1, 3, 5)
    return PackedWeight("int8", _keep(blocks, arena), num_outputs, num_inputs, _column(scale), _column(bias))


def pack_int4(
    q: torch.Tensor,
    scale: torch.Tensor,
    minimum: torch.Tensor,
    bias: torch.Tensor | None = None,
    arena: WeightArena | None = None,
) -> PackedWeight:
    """q: [N, K] uint8 in 0..15; scale, minimum: [N, K / group] float16; weight = q * scale + minimum.

    The group is a multiple of 16 that divides K. Pure but for the arena.
    """
    num_outputs, num_inputs = q.shape
    num_groups = scale.shape[1]
    group = num_inputs // num_groups
    assert num_inputs % num_groups == 0 and group % 16 == 0, "groups are equal and of 16, 32, 64 ... inputs"
    nibbles = _pad_outputs(q).to(torch.int64).reshape(-1, BLOCK, num_groups, group // 8, 4, 2)
    shift = 4 * torch.arange(4)[:, None] + 16 * torch.arange(2)[None, :]
    words = (nibbles << shift).sum((-2, -1))  # [block, output, group, word]
    words = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
    body = words.permute(0, 2, 3, 1).contiguous().view(torch.uint8).reshape(-1, num_groups, group // 8 * BLOCK * 4)
    heads = [
        _pad_outputs(values.to(torch.float16)).reshape(-1, BLOCK, num_groups).permute(0, 2, 1).contiguous()
        for values in (scale, minimum)
    ]
    blocks = torch.cat([*(head.view(torch.uint8) for head in heads), body], dim=-1)
    return PackedWeight("int4", _keep(blocks, arena), num_outputs, num_inputs, bias=_column(bias), group=group)


def _padded(num_outputs: int) -> int:
    return -(-num_outputs // BLOCK) * BLOCK


def _pad_outputs(rows: torch.Tensor) -> torch.Tensor:
    missing = _padded(rows.shape[0]) - rows.shape[0]
    return rows if missing == 0 else F.pad(rows, (0, 0, 0, missing))


def _column(values: torch.Tensor | None) -> torch.Tensor | None:
    if values is None:
        return None
    return F.pad(values.to(torch.float32), (0, _padded(values.shape[0]) - values.shape[0])).contiguous()


def _keep(blocks: torch.Tensor, arena: WeightArena | None) -> torch.Tensor:
    if arena is not None:
        return arena.keep(blocks)
    return blocks.contiguous().view(-1).view(torch.uint8)
