"""The cases of the report: each kernel as the engine launches it, at shapes of models that people run.

A case is one launcher at one shape, on tensors without memory. It carries what the call has to move and compute, and
what the kernel's own text claims of it, so that a claim that stops being true is a failing test and not an old
comment. Shapes are those of Llama-3.2-1B (C 2048, F 8192, 32 heads on 8, D 64) and Llama-3.1-8B (D 128), unless a
case says else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels import costs
from kernels.costs import Cost
from kernels.packing import PackedInt4

BF16, FP32, INT8 = torch.bfloat16, torch.float32, torch.int8


@dataclass(frozen=True)
class Case:
    """One launch. ``claims``: what the kernel's text says of it ("tensor cores", "loads ahead"), held by the tests."""

    name: str
    shape: str
    call: Callable[[], object]
    cost: Cost
    claims: tuple[str, ...] = ()
    widest_load_bytes: int = 16


def _empty(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def cases() -> list[Case]:
    """All of them, from those that only move to those that only compute. Pure."""
    return [*_memory_cases(), *_decode_cases(), *_prefill_cases(), *_linear_cases(), *_probe_cases()]


def _memory_cases() -> list[Case]:
    """Kernels that compute next to nothing."""
    from kernels import triton as kernels

    cache, kv, slots = _empty(16_384, 2, 8, 64), _empty(8, 2, 8, 64), _empty(8, dtype=torch.int64)
    scales = _empty(16_384, 2, 8, dtype=FP32)
    x, delta, weight = _empty(64, 2048), _empty(64, 2048), _empty(2048)
    qkv64, qkv128 = _empty(64, 48, 64), _empty(64, 48, 128)
    angle64, angle128, norm = _empty(64, 1, 64), _empty(64, 1, 128), _empty(128)
    logits = _empty(8, 128_256, dtype=FP32)
    draws = (_empty(8, dtype=FP32), _empty(8, dtype=torch.int64))
    quantized = cache.to(INT8)
    return [
        Case("store K/V", "8 tokens", lambda: kernels.store_kv(cache, kv, slots), costs.store_kv(8, 8, 64, 2)),
        Case(
            "store K/V int8",
            "8 tokens",
            lambda: kernels.store_kv_int8(quantized, scales, kv, slots),
            costs.store_kv(8, 8, 64, 2, quantized=True),
            widest_load_bytes=4,  # 64 numbers over 32 threads
        ),
        Case("RMSNorm", "64 rows", lambda: kernels.rms_norm(x, weight, 1e-5), costs.rms_norm(64, 2048, 2)),
        Case(
            "add + RMSNorm",
            "64 rows",
            lambda: kernels.add_rms_norm_(x, delta, weight, 1e-5),
            costs.rms_norm(64, 2048, 2, with_addition=True),
        ),
        Case(
            "RoPE",
            "64 tokens, D 64",
            lambda: kernels.norm_rope_(qkv64[:, :40], 32, angle64, angle64),
            costs.norm_rope(64, 40, 64, 2),
            widest_load_bytes=8,
        ),
        Case(
            "q/k norm + RoPE",
            "64 tokens, D 128",
            lambda: kernels.norm_rope_(qkv128[:, :40], 32, angle128, angle128, norm, norm, 1e-6),
            costs.norm_rope(64, 40, 128, 2, with_norm=True),
        ),
        Case("SwiGLU", "64 rows", lambda: kernels.silu_mul(_empty(64, 16_384)), costs.silu_mul(64, 8192, 2)),
        Case("sampling", "8 rows, V 128256", lambda: kernels.sample(logits, *draws), costs.sample(8, 128_256)),
    ]


def _decode_cases() -> list[Case]:
    from kernels import triton as kernels

    def case(
        note: str, heads: tuple[int, int, int], splits: int, dtype: torch.dtype = BF16, int8: bool = False
    ) -> Case:
        num_heads, num_kv_heads, head_dim = heads
        q = _empty(8, num_heads + 2 * num_kv_heads, head_dim, dtype=dtype)[:, :num_heads]
        cache = _empty(262_144, 2, num_kv_heads, head_dim, dtype=INT8 if int8 else dtype)
        scales = _empty(262_144, 2, num_kv_heads, dtype=FP32) if int8 else None
        tables, contexts = _empty(8, 512, dtype=torch.int32), _empty(8, dtype=torch.int32)
        return Case(
            "paged decode",
            f"8 x 8192 keys, D {head_dim}, group {num_heads // num_kv_heads}{note}",
            lambda: kernels.paged_decode(q, cache, tables, contexts, 16, splits, scales),
            costs.attention([(1, 8192)] * 8, *heads, dtype.itemsize, quantized=int8),
            ("loads ahead",) if dtype == FP32 else ("tensor cores", "loads ahead"),
        )

    return [
        case("", (32, 8, 64), 8),
        case(", unsplit", (32, 8, 64), 1),
        case("", (32, 8, 128), 8),
        case("", (32, 32, 80), 4),
        case(", int8 cache", (32, 8, 128), 8, int8=True),
        case(", float32", (9, 3, 64), 16, FP32),
        case(", float32", (32, 8, 128), 8, FP32),
    ]


def _prefill_cases() -> list[Case]:
    from kernels import triton as kernels

    def case(
        note: str, heads: tuple[int, int, int], num_tokens: int, dtype: torch.dtype = BF16, int8: bool = False
    ) -> Case:
        num_heads, num_kv_heads, head_dim = heads
        q = _empty(num_tokens, num_heads + 2 * num_kv_heads, head_dim, dtype=dtype)[:, :num_heads]
        cache = _empty(262_144, 2, num_kv_heads, head_dim, dtype=INT8 if int8 else dtype)
        scales = _empty(262_144, 2, num_kv_heads, dtype=FP32) if int8 else None
        tables, contexts = _empty(1, 512, dtype=torch.int32), _empty(1, dtype=torch.int32)
        starts = _empty(2, dtype=torch.int32)
        return Case(
            "paged prefill",
            f"{num_tokens} after 1024, D {head_dim}, group {num_heads // num_kv_heads}{note}",
            lambda: kernels.paged_prefill(q, cache, tables, contexts, starts, 16, num_tokens, scales),
            costs.attention([(num_tokens, num_tokens + 1024)], *heads, dtype.itemsize, quantized=int8),
            () if dtype == FP32 else ("tensor cores", "loads ahead"),
        )

    return [
        case("", (32, 8, 64), 2048),
        case("", (32, 8, 128), 2048),
        case("", (32, 8, 64), 7),
        case("", (28, 4, 128), 2048),
        case("", (32, 32, 80), 2048),
        case(", int8 cache", (32, 8, 128), 2048, int8=True),
        case(", float32", (9, 3, 64), 2048, FP32),
        case(", float32", (32, 8, 128), 2048, FP32),
    ]


def _linear_cases() -> list[Case]:
    from kernels import triton as kernels

    n, k, group = 8192, 2048, 32
    int8 = (_empty(n, k, dtype=INT8), _empty(n, dtype=FP32))
    halves = (_empty(k // group, n, dtype=torch.float16), _empty(k // group, n, dtype=torch.float16))
    int4 = PackedInt4(_empty(k // group, n, group // 2, dtype=torch.uint8), *halves)
    int8_bytes, int4_bytes = costs.int8_weight_bytes(n, k), costs.int4_weight_bytes(n, k, group)
    found = [
        Case(
            "matvec bf16",
            "1 row, 2048 to 8192",
            lambda: kernels.matvec(_empty(1, k), _empty(n, k)),
            costs.linear(1, n, k, 2, 2 * n * k),
            ("loads ahead",),
        )
    ]
    for rows in (1, 16, 64):
        x = _empty(rows, k)
        claims = ("loads ahead",) if rows == 1 else ("tensor cores", "loads ahead")
        cost8, cost4 = costs.linear(rows, n, k, 2, int8_bytes), costs.linear(rows, n, k, 2, int4_bytes)
        shape = f"{rows} row{'s' if rows > 1 else ''}, 2048 to 8192"
        found += [
            Case("linear int8", shape, lambda x=x: kernels.linear_int8(x, *int8), cost8, claims),
            Case("linear int4", shape, lambda x=x: kernels.linear_int4(x, int4), cost4, claims),
        ]
    return found


def _probe_cases() -> list[Case]:
    from kernels.triton import probes

    elements, row = 2**28, _empty(2**28, dtype=FP32)
    square = costs.linear(4096, 4096, 4096, 2, 2 * 4096 * 4096)
    return [
        Case("probe: read", "1 GiB", lambda: probes.stream_read(row, 1056), costs.stream(elements, copies=False)),
        Case("probe: copy", "1 GiB", lambda: probes.stream_copy(row), costs.stream(elements, copies=True)),
        Case(
            "probe: matmul",
            "4096 cubed",
            lambda: probes.matmul(_empty(4096, 4096), _empty(4096, 4096)),
            square,
            ("tensor cores", "loads ahead"),
        ),
        Case("probe: FMA", "1 Mi x 4096", lambda: probes.fma_chain(row[: 2**20], 4096), costs.fma_chain(2**20, 4096)),
    ]
