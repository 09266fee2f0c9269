"""Every kernel on the device against its twin on the CPU, with the cases of the interpreter's checks.

A proxy moves a launcher's tensors to the device with their strides, calls it, and brings results and changes back: so
the same checks run in the interpreter and here. What differs is said here: a GPU's exp, log and division are
approximate in the last bits, which moves a rounding or a draw that was a tie already.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

import kernels.triton
from kernels import twins
from kernels.triton import probes
from tests.gpu.stage import Stage
from tests.kernels.interpreted import check_decode, check_dense, check_linear, check_prefill, check_probes, check_store
from tests.kernels.interpreted import paged as paged_kit

GPU_TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 1.6e-2}
REPEATS = 50


class OnDevice:
    """A module of launchers whose tensors may lie on the CPU."""

    def __init__(self, module: types.ModuleType, device: torch.device) -> None:
        self._module, self._device = module, device
        self.is_dry_run = device.type == "cpu"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        launcher = getattr(self._module, name)

        def call(*arguments: Any) -> Any:
            moved = [self._moved(argument) for argument in arguments]
            out = launcher(*moved)
            for here, there in zip(arguments, moved, strict=True):
                if isinstance(here, torch.Tensor):
                    here.copy_(there)  # launchers whose name ends in _ , and stores, change what they were given
            return out.cpu() if isinstance(out, torch.Tensor) else out

        return call

    def _moved(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            base = value if value._base is None else value._base
            return base.to(self._device).as_strided(value.shape, value.stride(), value.storage_offset())
        if dataclasses.is_dataclass(value):
            fields = {field.name: self._moved(getattr(value, field.name)) for field in dataclasses.fields(value)}
            return type(value)(**fields)
        return value


def check_all(stage: Stage) -> dict[str, Any]:
    """(name, error or "") of every check. Effect: compiles each variant, which takes most of the time."""
    paged_kit.TOLERANCE.update(GPU_TOLERANCE)
    device = OnDevice(kernels.triton, stage.device)
    results, skipped = [], 0
    for name, check in _checks(device, stage):
        if stage.time_left() < 30:
            skipped += 1
            continue
        try:
            check()
            error = ""
        except Exception as wrong:
            error = f"{type(wrong).__name__}: {str(wrong).strip()[:600]}"
        results.append({"check": name, "error": error})
    failed = [result for result in results if result["error"]]
    return {"num_passed": len(results) - len(failed), "num_skipped_for_time": skipped, "failed": failed}


def _checks(device: OnDevice, stage: Stage) -> Iterator[tuple[str, Callable[[], None]]]:
    def few(grid: list[dict]) -> list[dict]:
        return grid[:1] if stage.is_dry_run else grid

    for case in few(check_decode.GRID):
        yield f"paged decode {case}", lambda case=case: _decode(device, case)
    for case in few(check_prefill.GRID):
        yield f"paged prefill {case}", lambda case=case: check_prefill.check(device, case)
    for case in few(check_store.GRID):
        yield f"store {case}", lambda case=case: check_store.assert_store(device, case)
        yield f"store int8 {case}", lambda case=case: _store_int8(device, case)
    for case in few(check_dense.SIZES):
        yield f"norm {case}", lambda case=case: check_dense.assert_norm(device, **case)
        yield f"swiglu {case}", lambda case=case: check_dense.assert_swiglu(device, **case)
    for case in few(check_dense.HEADS):
        yield f"rope {case}", lambda case=case: check_dense.assert_rope(device, **case)
    for case in few(check_linear.GRID):
        yield f"int8 {case}", lambda case=case: check_linear.assert_linear_int8(device, **case)
        yield f"matvec {case}", lambda case=case: check_linear.assert_matvec(device, **case)
    for case in few(check_linear.INT4):
        yield f"int4 {case}", lambda case=case: check_linear.assert_linear_int4(device, **case)
    yield "sampling", lambda: _sampling(device)
    yield "probes", lambda: check_probes.assert_probes(OnDevice(probes, stage.device))
    yield "fifty times the same bits", lambda: _repeats(stage)
    if not stage.is_dry_run:
        yield "a slot beyond 2^31 elements", lambda: _large_index(stage)


def _decode(device: OnDevice, case: dict) -> None:
    shape = {name: value for name, value in case.items() if name != "num_splits"}
    size = case["block_size"]
    contexts = [0, 1, size - 1, size, size + 1, 70 if device.is_dry_run else 1000]
    paged_kit.assert_decode(device, paged_kit.paged([(1, n) for n in contexts], **shape), case["num_splits"])


def _store_int8(device: OnDevice, case: dict) -> None:
    """A quotient a last bit away from the twin's may round to the neighbour: one step, for one number in a hundred."""
    kv, slots = check_store.rows(**case)
    codes = [torch.full((40, *kv.shape[1:]), 99, dtype=torch.int8) for _ in "ab"]
    scales = [torch.full((40, *kv.shape[1:3]), -1.0) for _ in "ab"]
    device.store_kv_int8(codes[0], scales[0], kv, slots)
    twins.store_kv_int8(codes[1], scales[1], kv, slots)
    steps = (codes[0].int() - codes[1].int()).abs()
    assert steps.max() <= 1 and (steps > 0).float().mean() <= 0.01, f"{(steps > 0).sum()} codes differ"
    torch.testing.assert_close(scales[0], scales[1], atol=0, rtol=1e-6)


def _sampling(device: OnDevice) -> None:
    """Greedy rows to the token; drawn ones but for ties in the last bit of a logarithm."""
    count = 8 if device.is_dry_run else 256
    logits, rows = torch.randn(count, 5000, generator=torch.Generator().manual_seed(0)) * 3, torch.arange(count)
    seeds = rows * 7919 + 13
    for temperature, ties in ((0.0, 0), (1.0, 0 if device.is_dry_run else 4)):
        temperatures = torch.full((count,), temperature)
        differ = (device.sample(logits, temperatures, seeds) != twins.sample(logits, temperatures, seeds)).sum()
        assert differ <= ties, f"{differ} of {count} tokens differ at temperature {temperature}"


def _repeats(stage: Stage) -> None:
    """A race would show as a bit that changes from one call to the next."""
    times = 2 if stage.is_dry_run else REPEATS
    case = paged_kit.paged([(1, 90 if stage.is_dry_run else 900), (1, 33)], dtype=torch.float16)
    device = OnDevice(kernels.triton, stage.device)
    first = device.paged_decode(*case.decode_arguments, 8)
    assert all(torch.equal(device.paged_decode(*case.decode_arguments, 8), first) for _ in range(times))
    chunk = paged_kit.paged([(70, 100)], dtype=torch.float16)
    first = device.paged_prefill(*chunk.prefill_arguments)
    assert all(torch.equal(device.paged_prefill(*chunk.prefill_arguments), first) for _ in range(times))


def _large_index(stage: Stage) -> None:
    """Offsets are 64 bits wide: the last blocks of a cache of more than 2^31 elements, among noise of ±100."""
    num_slots, head_dim = 2**31 // (2 * 8 * 128) + 64, 128
    cache = torch.full((num_slots, 2, 8, head_dim), 100.0, dtype=torch.float16, device=stage.device)
    last = num_slots // 16 - 1
    kv = stage.randn(16, 2, 8, head_dim, dtype=torch.float16)
    kernels.triton.store_kv(cache, kv, torch.arange(last * 16, last * 16 + 16, device=stage.device))
    q = stage.randn(1, 32, head_dim, dtype=torch.float16)
    tables = torch.tensor([[last]], dtype=torch.int32, device=stage.device)
    contexts = torch.tensor([16], dtype=torch.int32, device=stage.device)
    got = kernels.triton.paged_decode(q, cache, tables, contexts, 16)
    wanted = twins.paged_decode(q.cpu(), kv.cpu(), torch.zeros((1, 1), dtype=torch.int32), contexts.cpu(), 16)
    paged_kit.assert_same(got.cpu(), wanted)
