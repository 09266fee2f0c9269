"""The compiled library as Python sees it: loading, the self-test, and the two products on their own.

The C side knows pointers and sizes only; every shape, dtype and bound is checked here, because a wrong one there reads
foreign memory. ctypes releases the interpreter lock during a call.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.cpu.build import BuildError, build
from kernels.cpu.pack import KINDS, PackedWeight, pack, pack_int4, pack_int8
from kernels.reference import linear as reference_linear
from kernels.reference import paged_attention as reference_attention
from kernels.reference import quantize_int4, quantize_int8

MAX_HEAD_DIM = 512
MAX_PHASES = 1 << 12  # pool.h


class _Weight(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("kind", ctypes.c_int32),
        ("outputs", ctypes.c_int32),
        ("inputs", ctypes.c_int32),
        ("group", ctypes.c_int32),
    )


class _Chunk(ctypes.Structure):
    _fields_ = (
        ("first_row", ctypes.c_int32),
        ("num_rows", ctypes.c_int32),
        ("context", ctypes.c_int32),
        ("block_table", ctypes.c_int32),
    )


@dataclass(frozen=True)
class RowChunk:
    """Rows [first_row, first_row + num_rows) of a step: the last positions of one request.

    ``context_len`` counts the keys after this chunk, 0 for padding rows; ``block_ids`` cover them.
    """

    first_row: int
    num_rows: int
    context_len: int
    block_ids: Sequence[int]


def weight_struct(weight: PackedWeight) -> _Weight:
    """The C view of a packed weight; the tensors must outlive it."""
    return _Weight(
        pointer(weight.data),
        pointer(weight.scale),
        pointer(weight.bias),
        KINDS[weight.kind],
        weight.padded_outputs,
        weight.num_inputs,
        weight.group,
    )


def pointer(tensor: torch.Tensor | None) -> int | None:
    """Address of a contiguous CPU tensor, None for None."""
    if tensor is None:
        return None
    assert tensor.device.type == "cpu" and tensor.is_contiguous(), "kernels read contiguous CPU memory"
    return tensor.data_ptr()


def chunk_arrays(chunks: Sequence[RowChunk]) -> tuple[ctypes.Array, array]:
    """(chunks, block ids of all of them) as C arrays. Pure."""
    block_ids = array("i")
    rows = (_Chunk * max(len(chunks), 1))()
    for i, chunk in enumerate(chunks):
        rows[i] = _Chunk(chunk.first_row, chunk.num_rows, chunk.context_len, len(block_ids))
        block_ids.extend(chunk.block_ids)
    return rows, block_ids


class CpuLibrary:
    """The kernels with their pool of threads. Calls from several Python threads wait for each other."""

    def __init__(self, path: Path, num_threads: int) -> None:
        """num_threads: physical cores to use. Effect: starts num_threads - 1 threads, asleep between calls."""
        self._c = ctypes.CDLL(str(path))
        _declare(self._c)
        self.path = path
        self.num_threads = max(1, num_threads)
        self._start_pool()

    def _start_pool(self) -> None:
        self._pool = self._c.tbt_pool_create(self.num_threads)
        self._process = os.getpid()
        self._one_call = threading.Lock()

    @property
    def functions(self) -> ctypes.CDLL:
        return self._c

    @contextlib.contextmanager
    def pool(self) -> Iterator[int]:
        """The pool's handle, for one call. A forked child has none of its parent's threads and gets its own pool."""
        if self._process != os.getpid():
            self._start_pool()
        with self._one_call:
            yield self._pool

    @property
    def has_bf16_dot(self) -> bool:
        """Whether the CPU multiplies bfloat16 pairs in one instruction; elsewhere the same sums take more of them."""
        return bool(self._c.tbt_has_bf16_dot())

    def close(self) -> None:
        """Effect: ends the threads. The library must not be used afterwards."""
        if self._process == os.getpid():
            self._c.tbt_pool_destroy(self._pool)
            self._pool = None

    def destroy_decoder(self, handle: int) -> None:
        """Effect: frees a decoder's buffers, once no thread is on its way out of them.

        It waits for no other call, for it may come from the garbage collector in the middle of one.
        """
        pool = self._pool if self._process == os.getpid() else None
        self._c.tbt_decoder_destroy(handle, pool)

    def phase_times_ns(self) -> list[int]:
        """How long each phase of the last call took, in the order in which they came. Pure."""
        times = (ctypes.c_int64 * MAX_PHASES)()
        with self.pool() as pool:
            return list(times[: self._c.tbt_phase_times(pool, times, MAX_PHASES)])

    def linear(self, x: torch.Tensor, weight: PackedWeight) -> torch.Tensor:
        """x: [M, K] -> x @ weight.T + bias [M, N] float32. Twin: ``kernels.reference.linear``. Pure."""
        assert x.dim() == 2 and x.shape[1] == weight.num_inputs, "x has one column per input"
        check_types(x.dtype, weight)
        out = torch.empty((x.shape[0], weight.padded_outputs), dtype=torch.float32)
        if x.shape[0]:
            struct = weight_struct(weight)
            is_bf16 = int(x.dtype == torch.bfloat16)
            x = x.contiguous()
            with self.pool() as pool:
                self._c.tbt_linear(pool, ctypes.byref(struct), pointer(x), is_bf16, x.shape[0], pointer(out))
        return out[:, : weight.num_outputs]

    def paged_attention(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, block_size: int, chunks: Sequence[RowChunk]
    ) -> torch.Tensor:
        """q: [T, Hq, D]; keys, values: [slots, Hk, D] (any slot and head stride) -> [T, Hq, D]. Pure.

        Twin: ``kernels.reference.paged_attention``.
        """
        num_heads, head_dim = q.shape[1:]
        check_cache(keys, values, q.dtype)
        for chunk in chunks:
            check_chunk(chunk, q.shape[0], keys.shape[0], block_size)
        q, out = q.contiguous(), torch.zeros_like(q, memory_format=torch.contiguous_format)
        rows, block_ids = chunk_arrays(chunks)
        with self.pool() as pool:
            self._c.tbt_attention(
                pool,
                int(q.dtype == torch.bfloat16),
                num_heads,
                keys.shape[1],
                head_dim,
                q.data_ptr(),
                keys.data_ptr(),
                values.data_ptr(),
                keys.stride(0),
                keys.stride(1),
                block_size,
                rows,
                len(chunks),
                block_ids.buffer_info()[0],
                out.data_ptr(),
            )
        return out

    def argmax(self, values: torch.Tensor) -> list[int]:
        """values: [R, N] float32 -> for each row the index of its largest number, the first of equals. Pure."""
        assert values.dim() == 2 and values.dtype == torch.float32 and values.shape[1] > 0, "rows of float32 numbers"
        found = array("i", bytes(4 * values.shape[0]))
        self._c.tbt_argmax(pointer(values), *values.shape, found.buffer_info()[0])
        return found.tolist()

    def read(self, data: torch.Tensor) -> int:
        """Read every byte once with all threads (whole 64 KB). Pure. For measuring the bandwidth."""
        with self.pool() as pool:
            return self._c.tbt_read(pool, pointer(data), data.numel() * data.element_size())


def check_types(dtype: torch.dtype, weight: PackedWeight) -> None:
    """bfloat16 rows go with bfloat16, int8 and int4 weights; float32 rows with float32, int8 and int4."""
    other = {torch.bfloat16: "float32", torch.float32: "bfloat16"}
    assert dtype in other and weight.kind != other[dtype], f"{dtype} rows cannot meet {weight.kind} weights"


def check_cache(keys: torch.Tensor, values: torch.Tensor, dtype: torch.dtype) -> None:
    """keys, values: [slots, Hk, D] of one layout and of the rows' dtype."""
    assert keys.dtype == values.dtype == dtype, "keys and values have the dtype of the rows"
    assert keys.shape == values.shape and keys.stride() == values.stride() and keys.stride(2) == 1, "one layout"
    assert keys.shape[2] % 16 == 0 and keys.shape[2] <= MAX_HEAD_DIM, "head_dim is a multiple of 16 up to 512"


def check_chunk(chunk: RowChunk, num_rows: int, num_slots: int, block_size: int) -> None:
    """A chunk's rows and slots exist."""
    assert chunk.first_row >= 0 and chunk.first_row + chunk.num_rows <= num_rows, "rows lie in the step"
    assert chunk.context_len == 0 or chunk.context_len >= chunk.num_rows, "a chunk lies within its context"
    blocks = -(-chunk.context_len // block_size)
    assert len(chunk.block_ids) >= blocks, "block_ids cover the context"
    used = chunk.block_ids[:blocks]
    assert not used or (min(used) >= 0 and max(used) < num_slots // block_size), "blocks lie in the cache"


def load_library(cache_dir: Path, num_threads: int) -> tuple[CpuLibrary | None, str]:
    """(library, "") or (None, one sentence why not). Effect: compiles at the first call; tests itself."""
    try:
        library = CpuLibrary(build(cache_dir), num_threads)
    except (BuildError, OSError) as error:
        return None, str(error)
    wrong = self_test(library)
    if wrong:
        library.close()
        return None, f"the C++ kernels give wrong results on this CPU ({wrong})"
    return library, ""


def self_test(library: CpuLibrary) -> str:
    """Compare each kernel with its torch twin on small random input. "" or what differs. Pure."""
    noise = torch.Generator().manual_seed(0)
    dense = torch.randn((96, 64), generator=noise) / 8
    int8, int4 = quantize_int8(dense), quantize_int4(dense, 32)
    for rows in (1, 5, 33):
        x = torch.randn((rows, 64), generator=noise)
        half = x.to(torch.bfloat16)
        cases = {
            "float32": (x, dense, pack(dense)),
            "bfloat16": (half, dense.to(torch.bfloat16), pack(dense.to(torch.bfloat16))),
            "int8": (half, int8.dequantize(), pack_int8(int8.q, int8.scale)),
            "int4": (half, int4.dequantize(), pack_int4(int4.q, int4.scale, int4.minimum)),
        }
        for name, (rows_in, plain, packed) in cases.items():
            error = (library.linear(rows_in, packed) - reference_linear(rows_in, plain)).abs().max().item()
            if not error < (1e-4 if name == "float32" else 2e-2):
                return f"{name} product of {rows} rows"
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        cache = torch.randn((2, 320, 2, 64), generator=noise).to(dtype)
        q = torch.randn((8, 6, 64), generator=noise).to(dtype)
        chunks = [RowChunk(0, 7, 39, (3, 0, 7)), RowChunk(7, 1, 290, tuple(range(19)))]
        got = library.paged_attention(q, cache[0], cache[1], 16, chunks)
        wanted = reference_attention(q, cache[0], cache[1], 16, chunks)
        if not (got.float() - wanted.float()).abs().max().item() < tolerance:
            return f"attention in {dtype}"
    return ""


def _declare(c: ctypes.CDLL) -> None:
    pointer_type, whole, wide = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
    c.tbt_has_bf16_dot.restype = whole
    c.tbt_pool_create.restype, c.tbt_pool_create.argtypes = pointer_type, (whole,)
    c.tbt_pool_destroy.restype, c.tbt_pool_destroy.argtypes = None, (pointer_type,)
    c.tbt_linear.restype = None
    c.tbt_linear.argtypes = (pointer_type, pointer_type, pointer_type, whole, whole, pointer_type)
    c.tbt_attention.restype = None
    c.tbt_attention.argtypes = (
        *(pointer_type, whole, whole, whole, whole, pointer_type, pointer_type, pointer_type, wide, wide, whole),
        *(pointer_type, whole, pointer_type, pointer_type),
    )
    c.tbt_argmax.restype, c.tbt_argmax.argtypes = None, (pointer_type, whole, whole, pointer_type)
    c.tbt_decoder_create.restype = pointer_type
    c.tbt_decoder_create.argtypes = (pointer_type, whole)
    c.tbt_decoder_forward.restype, c.tbt_decoder_forward.argtypes = None, (pointer_type,) * 3
    c.tbt_decoder_destroy.restype, c.tbt_decoder_destroy.argtypes = None, (pointer_type,) * 2
    c.tbt_phase_times.restype, c.tbt_phase_times.argtypes = whole, (pointer_type, pointer_type, whole)
    c.tbt_read.restype, c.tbt_read.argtypes = ctypes.c_uint64, (pointer_type, pointer_type, ctypes.c_size_t)
