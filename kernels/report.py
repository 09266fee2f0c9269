"""The report: every kernel as the engine launches it, on every target, with what it costs the chip and the bus.

The cases (``kernels.cases``) are compiled without a device (``kernels.aot``), so the table can be made anywhere
Triton is. ``python -m kernels report`` prints it; the tests hold every line of it: compiled, no spill, within the
chip's shared memory, loads as wide as the case claims.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from kernels.aot import SHARED_LIMIT_BYTES, Compiled, compile_calls
from kernels.cases import Case, cases

TARGETS = {80: "A100", 90: "H100, H200", 120: "RTX 50 series"}


@dataclass(frozen=True)
class Line:
    """A case on one target: the kernels it launched."""

    case: Case
    arch: int
    kernels: tuple[Compiled, ...]


def compile_report(targets: Sequence[int] = tuple(TARGETS)) -> list[Line]:
    """Every case for every target. Takes a minute the first time. Raises: kernels.aot.AotError."""
    return [
        Line(case, arch, tuple(compile_calls(arch, case.call)))
        for case in cases()
        for arch in targets
    ]  # fmt: skip


def problems(line: Line) -> list[str]:
    """What is wrong with a line, one sentence each; none is as it should be. Pure."""
    found = []
    for kernel in line.kernels:
        where = f"{kernel.kernel} ({line.case.name}, {line.case.shape}) on sm_{line.arch}"
        if kernel.spill_bytes:
            found.append(f"{where} spills {kernel.spill_bytes} bytes a thread at {kernel.registers} registers")
        if not kernel.fits:
            limit = SHARED_LIMIT_BYTES[line.arch]
            found.append(f"{where} needs {kernel.shared_bytes} bytes of shared memory; the chip has {limit}")
        if kernel.double_precision:
            found.append(f"{where} computes in double precision")
    first = line.kernels[0]
    if first.widest_load_bytes < line.case.widest_load_bytes:
        found.append(f"{line.case.name}: loads of {first.widest_load_bytes} bytes, not {line.case.widest_load_bytes}")
    if "tensor cores" in line.case.claims and not first.uses_tensor_cores:
        found.append(f"{line.case.name} ({line.case.shape}) uses no tensor cores on sm_{line.arch}")
    if "loads ahead" in line.case.claims and not first.loads_ahead:
        found.append(f"{line.case.name} ({line.case.shape}) does not load ahead on sm_{line.arch}")
    return found


def as_rows(lines: Sequence[Line]) -> list[dict[str, object]]:
    """The report as plain data, one row per compiled kernel. Pure."""
    return [
        {
            "case": line.case.name,
            "shape": line.case.shape,
            **dataclasses.asdict(kernel),
            "shared_limit_bytes": SHARED_LIMIT_BYTES[line.arch],
            "bytes_in": line.case.cost.bytes_in,
            "bytes_out": line.case.cost.bytes_out,
            "flops": line.case.cost.flops,
            "problems": problems(line),
        }
        for line in lines
        for kernel in line.kernels
    ]


def as_markdown(rows: Sequence[dict]) -> str:
    """The rows as a table: a row per case, a column per target with the figures of the case's main kernel. Pure."""
    by_case: dict[tuple[str, str], dict[int, dict]] = {}
    for row in rows:
        by_case.setdefault((row["case"], row["shape"]), {}).setdefault(row["arch"], row)  # the first is the main one
    targets = sorted({row["arch"] for row in rows})
    head = ["kernel", "call", "moves", "FLOP per byte", *(f"sm_{arch} ({TARGETS[arch]})" for arch in targets)]
    table = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for (name, shape), by_arch in by_case.items():
        row = next(iter(by_arch.values()))
        num_bytes = row["bytes_in"] + row["bytes_out"]
        cells = [name, shape, _bytes(num_bytes), _significant(row["flops"] / num_bytes)]
        table.append("| " + " | ".join(cells + [_cell(by_arch[arch]) for arch in targets]) + " |")
    return "\n".join(table)


def _cell(row: dict) -> str:
    shared = row["shared_bytes"]
    figures = f"{row['registers']} reg, {f'{shared / 1024:.3g} KiB' if shared >= 1024 else f'{shared} B'}"
    marks = ["mma"] * row["uses_tensor_cores"] + ["ahead"] * row["loads_ahead"]
    marks += [f"SPILLS {row['spill_bytes']} B"] * bool(row["spill_bytes"])
    marks += ["TOO LARGE"] * (shared > row["shared_limit_bytes"])
    return ", ".join([figures, f"{row['widest_load_bytes']} B", *marks])


def _bytes(number: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{_significant(number / size)} {unit}"
    return f"{number:.0f} B"


def _significant(number: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{number:.3g}" if number < 1000 else f"{float(f'{number:.3g}'):,.0f}".replace(",", " ")
