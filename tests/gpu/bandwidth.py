"""Each kernel's rate as a share of what the same device copies, in the same session.

Bytes are what the call needs (``kernels.costs``), so reading something twice counts as slowness. The targets are
those of the kernels' notes: norm and SwiGLU 80 %, paged decode at 64 thousand KV tokens 70 %, bfloat16 matrix-vector
80 %, int8 70 %, int4 55 % of the measured copy. torch's own way of doing the same stands beside where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import kernels.triton
from kernels import costs
from kernels.costs import Cost
from kernels.packing import pack_int4
from kernels.reference import quantize_int4, quantize_int8
from kernels.triton import probes
from kernels.triton.decode import decode_splits
from tests.gpu.stage import Stage

Call = Callable[[], object]


@dataclass(frozen=True)
class Measured:
    """A call to measure: ``make(i)`` gives the i-th copy of it with inputs of its own."""

    name: str
    shape: str
    make: Callable[[int], Call]
    cost: Cost
    target: float | None = None  # share of the measured copy
    torchs: Callable[[int], Call] | None = None


def roofs(stage: Stage) -> dict[str, Any]:
    """The device's ceilings: read, copy, matrix product, and products and sums in registers."""
    elements = 4096 * 8 if stage.is_dry_run else 2**28
    size = 128 if stage.is_dry_run else 8192
    rows = [stage.randn(elements, dtype=torch.float32, seed=i) for i in range(2)]
    square = [stage.randn(size, size, seed=i) for i in range(2)]
    programs = 4 if stage.is_dry_run else 8 * torch.cuda.get_device_properties(stage.device).multi_processor_count
    small, rounds = rows[0][: 1024 * (2 if stage.is_dry_run else 2048)], 8 if stage.is_dry_run else 4096
    product = costs.linear(size, size, size, 2, 2 * size * size)
    cases = {
        "read": ([lambda x=x: probes.stream_read(x, programs) for x in rows], costs.stream(elements, copies=False)),
        "copy": ([lambda x=x: probes.stream_copy(x) for x in rows], costs.stream(elements, copies=True)),
        "copy (torch)": ([lambda x=x: x.clone() for x in rows], costs.stream(elements, copies=True)),
        "matmul bf16": ([lambda: probes.matmul(*square)], product),
        "matmul bf16 (torch)": ([lambda: torch.matmul(*square)], product),
        "fma float32": ([lambda: probes.fma_chain(small, rounds)], costs.fma_chain(small.shape[0], rounds)),
    }
    found = {}
    for name, (calls, cost) in cases.items():
        timing = stage.measure(calls)
        found[name] = {
            **timing.as_dict,
            "gbps": cost.num_bytes / timing.p50_ms / 1e6,
            "tflops": cost.flops / timing.p50_ms / 1e9,
        }
    return found


def shares(stage: Stage, copy_gbps: float) -> list[dict[str, Any]]:
    """Every kernel at sizes beyond the cache. ``copy_gbps``: the measured copy."""
    found = []
    for case in _cases(stage):
        if stage.time_left() < 30:
            found.append({"kernel": case.name, "shape": case.shape, "skipped": "out of time"})
            continue
        copies = stage.copies_for(case.cost.bytes_in)
        timing = stage.measure([case.make(i) for i in range(copies)])
        gbps = case.cost.num_bytes / timing.p50_ms / 1e6
        share = gbps / copy_gbps
        row = {"kernel": case.name, "shape": case.shape, "bytes": case.cost.num_bytes, "flops": case.cost.flops}
        row |= {**timing.as_dict, "gbps": gbps, "share_of_copy": share, "target": case.target}
        row["met"] = None if case.target is None or stage.is_dry_run else share >= case.target
        if case.torchs is not None:
            row["torch_p50_ms"] = stage.measure([case.torchs(i) for i in range(copies)]).p50_ms
        found.append(row)
        if not stage.is_dry_run:
            torch.cuda.empty_cache()
    return found


def _cases(stage: Stage) -> Iterator[Measured]:
    yield from _row_cases(stage)
    yield from _decode_cases(stage)
    yield from _linear_cases(stage)


def _row_cases(stage: Stage) -> Iterator[Measured]:
    rows, columns = (3, 256) if stage.is_dry_run else (8192, 4096)
    weight = stage.randn(columns)

    def add_norm(i: int) -> Call:
        x, delta = stage.randn(rows, columns, seed=i), stage.randn(rows, columns, seed=i + 1)
        return lambda: kernels.triton.add_rms_norm_(x, delta, weight, 1e-5)

    def torchs_add_norm(i: int) -> Call:
        x, delta = stage.randn(rows, columns, seed=i), stage.randn(rows, columns, seed=i + 1)
        return lambda: F.rms_norm(x.add_(delta), (columns,), weight, 1e-5)

    def swiglu(i: int) -> Call:
        x = stage.randn(rows, 2 * columns, seed=i)
        return lambda: kernels.triton.silu_mul(x)

    def torchs_swiglu(i: int) -> Call:
        x = stage.randn(rows, 2 * columns, seed=i)
        return lambda: F.silu(x[:, :columns]) * x[:, columns:]

    def rope(i: int) -> Call:
        heads = stage.randn(rows, 48, 128 if not stage.is_dry_run else 16, seed=i)
        angle = stage.randn(rows, 1, heads.shape[2], seed=i)
        return lambda: kernels.triton.norm_rope_(heads[:, :40], 32, angle, angle)

    def store(i: int) -> Call:
        kv, cache = stage.randn(rows, 2, 8, 128, seed=i), stage.randn(rows, 2, 8, 128, seed=i)
        slots = torch.randperm(rows, device=stage.device)
        return lambda: kernels.triton.store_kv(cache, kv, slots)

    shape = f"{rows} rows of {columns}"
    cost = costs.rms_norm(rows, columns, 2, with_addition=True)
    yield Measured("add + RMSNorm", shape, add_norm, cost, 0.8, torchs_add_norm)
    yield Measured("SwiGLU", shape, swiglu, costs.silu_mul(rows, columns, 2), 0.8, torchs_swiglu)
    head_dim = 16 if stage.is_dry_run else 128
    yield Measured("RoPE", f"{rows} tokens, 40 heads", rope, costs.norm_rope(rows, 40, head_dim, 2))
    yield Measured("store K/V", f"{rows} tokens, 8 heads", store, costs.store_kv(rows, 8, 128, 2))

    num_rows, vocab = (2, 3000) if stage.is_dry_run else (64, 128_256)

    def draw(i: int) -> Call:
        logits, rows = stage.randn(num_rows, vocab, dtype=torch.float32, seed=i), torch.arange(num_rows)
        temperatures, seeds = torch.ones(num_rows, device=stage.device), rows.to(stage.device)
        return lambda: kernels.triton.sample(logits, temperatures, seeds)

    yield Measured("sampling", f"{num_rows} rows of {vocab}", draw, costs.sample(num_rows, vocab))


def _decode_cases(stage: Stage) -> Iterator[Measured]:
    """64 thousand KV tokens in all, in few long contexts and in many short ones; heads of Llama-3.1-8B."""
    shapes = [(1, 48), (2, 20)] if stage.is_dry_run else [(1, 65_536), (8, 8192), (32, 2048), (128, 512)]
    num_heads, num_kv_heads, head_dim, block_size = (4, 2, 16, 16) if stage.is_dry_run else (32, 8, 128, 16)
    processors = 4 if stage.is_dry_run else torch.cuda.get_device_properties(stage.device).multi_processor_count
    for batch, context in shapes:
        for int8 in (False, True):

            def decode(i: int, batch: int = batch, context: int = context, int8: bool = int8) -> Call:
                q = stage.randn(batch, num_heads, head_dim, seed=i)
                width = -(-context // block_size)
                kv = stage.randn(batch * width * block_size, 2, num_kv_heads, head_dim, seed=i)
                scales = None
                if int8:
                    kv = (kv * 40).clamp(-127, 127).to(torch.int8)
                    scales = torch.full(kv.shape[:3], 0.025, device=stage.device)
                order = torch.randperm(batch * width, device=stage.device).to(torch.int32)
                tables = order.view(batch, width)
                contexts = torch.full((batch,), context, dtype=torch.int32, device=stage.device)
                splits = decode_splits(batch, num_kv_heads, context, processors)
                return lambda: kernels.triton.paged_decode(q, kv, tables, contexts, block_size, splits, scales)

            cost = costs.attention([(1, context)] * batch, num_heads, num_kv_heads, head_dim, 2, quantized=int8)
            name = "paged decode, int8 cache" if int8 else "paged decode"
            yield Measured(name, f"{batch} x {context}", decode, cost, None if int8 else 0.7)


def _linear_cases(stage: Stage) -> Iterator[Measured]:
    """The four products of a layer of Llama-3.1-8B at one row, and one of them at more."""
    shapes = (
        [(1, 48, 64), (3, 48, 64)]
        if stage.is_dry_run
        else [
            (1, 6144, 4096),
            (1, 4096, 4096),
            (1, 28_672, 4096),
            (1, 4096, 14_336),
            (8, 28_672, 4096),
            (32, 28_672, 4096),
        ]
    )
    for rows, n, k in shapes:

        def plain(i: int, n: int = n, k: int = k) -> Call:
            x, weight = stage.randn(1, k, seed=i), stage.randn(n, k, seed=i)
            return lambda: kernels.triton.matvec(x, weight)

        def torchs(i: int, rows: int = rows, n: int = n, k: int = k) -> Call:
            x, weight = stage.randn(rows, k, seed=i), stage.randn(n, k, seed=i)
            return lambda: F.linear(x, weight)

        def int8(i: int, rows: int = rows, n: int = n, k: int = k) -> Call:
            x, weight = stage.randn(rows, k, seed=i), quantize_int8(stage.randn(n, k, seed=i))
            return lambda: kernels.triton.linear_int8(x, weight.q, weight.scale)

        def int4(i: int, rows: int = rows, n: int = n, k: int = k) -> Call:
            x, weight = stage.randn(rows, k, seed=i), pack_int4(quantize_int4(stage.randn(n, k, seed=i), 32))
            return lambda: kernels.triton.linear_int4(x, weight)

        shape = f"{rows} row{'s' * (rows > 1)}, {k} to {n}"
        one = rows == 1
        if one:
            yield Measured("matvec bf16", shape, plain, costs.linear(1, n, k, 2, 2 * n * k), 0.8, torchs)
        cost = costs.linear(rows, n, k, 2, costs.int8_weight_bytes(n, k))
        yield Measured("linear int8", shape, int8, cost, 0.7 if one else None, torchs)
        cost = costs.linear(rows, n, k, 2, costs.int4_weight_bytes(n, k, 32))
        yield Measured("linear int4", shape, int4, cost, 0.55 if one else None, torchs)
