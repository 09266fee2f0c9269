"""Compile the kernels for a GPU that is not here, and read from the result what a machine would have to spend on them.

Triton needs a device only to launch. So a stand-in driver names the target, every launch is turned into a
compilation, and the launchers run on tensors without memory: what is compiled is exactly what the engine would
launch, with the specialisation that real pointers and strides get. This catches what the interpreter cannot: types
that change in a branch, tiles too small for a matrix product, registers that spill, shared memory that the chip does
not have. It says nothing about speed. A process that runs the interpreter cannot compile, so the two never meet in
one.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Shared memory that one block may ask for: CUDA programming guide, "technical specifications per compute capability".
SHARED_LIMIT_BYTES = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024, 120: 99 * 1024}


class AotError(RuntimeError):
    """Kernels cannot be compiled here, in one sentence."""


@dataclass(frozen=True)
class Compiled:
    """One kernel as one target would run it."""

    kernel: str
    arch: int
    num_warps: int
    registers: int
    spill_bytes: int
    shared_bytes: int
    widest_load_bytes: int
    uses_tensor_cores: bool
    loads_ahead: bool  # cp.async: the next tile travels while this one is computed
    double_precision: bool  # a Python float that crept in: 1/32 to 1/64 of the rate on most chips

    @property
    def fits(self) -> bool:
        """Whether the chip has the shared memory to launch it."""
        return self.shared_bytes <= SHARED_LIMIT_BYTES[self.arch]


def require_compiler() -> None:
    """Raises: AotError where there is no Triton, or where this process interprets its kernels."""
    try:
        import triton  # noqa: F401
    except ImportError:
        raise AotError("triton is not installed here; it exists for Linux (pip install triton)") from None
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        raise AotError("TRITON_INTERPRET is set, so kernels are interpreted and cannot be compiled; unset it")


class _StandIn:
    """What Triton asks of a driver before it launches anything."""

    def __init__(self, arch: int) -> None:
        self.arch = arch

    def get_current_device(self) -> int:
        return self.arch  # one cache of compiled kernels per target

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.arch, 32)

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("meta")


@contextlib.contextmanager
def launches_compile(arch: int, found: list[tuple[str, Any]]) -> Iterator[None]:
    """Within, ``kernel[grid](...)`` compiles for ``arch`` and appends (name, compiled kernel). Nothing is launched."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    def compile_instead(kernel: Any, grid: Any) -> Callable[..., None]:
        return lambda *args, **options: found.append((kernel.__name__, kernel.warmup(*args, grid=grid, **options)))

    inherited = JITFunction.__getitem__
    JITFunction.__getitem__ = compile_instead
    driver.set_active(_StandIn(arch))
    try:
        yield
    finally:
        JITFunction.__getitem__ = inherited
        with contextlib.suppress(RuntimeError):  # no GPU here to go back to
            driver.reset_active()


def compile_calls(arch: int, call: Callable[[], object]) -> list[Compiled]:
    """Compile all that ``call`` launches. Pure but for Triton's cache of compiled kernels. Raises: AotError."""
    require_compiler()
    found: list[tuple[str, Any]] = []
    with launches_compile(arch, found):
        call()
    return [_inspect(name, arch, kernel) for name, kernel in found]


def _inspect(name: str, arch: int, kernel: Any) -> Compiled:
    ptx = kernel.asm["ptx"]
    registers, stack_bytes = _resources(kernel.asm["cubin"])
    return Compiled(
        kernel=name.lstrip("_"),
        arch=arch,
        num_warps=kernel.metadata.num_warps,
        registers=registers,
        spill_bytes=stack_bytes,
        shared_bytes=kernel.metadata.shared,
        widest_load_bytes=widest_load_bytes(ptx),
        uses_tensor_cores=bool(re.search(r"\b(mma\.sync|wgmma\.mma_async|tcgen05\.mma)", ptx)),
        loads_ahead="cp.async.c" in ptx,
        double_precision=bool(re.search(r"\b(add|sub|mul|fma|div|cvt)[.\w]*\.f64", ptx)),
    )


def widest_load_bytes(ptx: str) -> int:
    """Bytes of the widest global load that one thread makes. 16 is as wide as it gets; 2 is a scalar bfloat16. Pure."""
    widths = [0]
    for modifiers in re.findall(r"\bld\.global([.\w:]*)", ptx):
        vector, bits = re.search(r"\.v(\d)", modifiers), re.search(r"\.[bsuf](\d+)$", modifiers)
        if bits:
            widths.append(int(bits[1]) // 8 * (int(vector[1]) if vector else 1))
    widths += [int(size, 0) for size in re.findall(r"\bcp\.async\.c[ag][^;]*?\],\s*(0x\w+|\d+)", ptx)]
    return max(widths)


def _resources(cubin: bytes) -> tuple[int, int]:
    """(registers per thread, bytes of stack per thread). A kernel of ours has a stack only where registers spill."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(path)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack, local = (re.search(rf"\b{name}:(\d+)", text) for name in ("REG", "STACK", "LOCAL"))
    assert registers and stack and local, f"cuobjdump answered: {text}"
    return int(registers[1]), int(stack[1]) + int(local[1])
