"""The bench as text: tables in Markdown, so that what is printed can be kept as it is. Pure.

A cell is ``median [lowest, highest]``. A system that was not measured is named with its reason, never left out. A
ratio is ours over theirs, turned round where less is better, so above 1 always means that ours is better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from engine.bench.plan import NAMES_IN, PRECISIONS
from engine.bench.results import Results, SuiteResult
from engine.bench.samples import LEAST_COUNT, Sample, Spread, of, ratio, read_gbps, share_of_roof, spread, tflops

TITLES = {
    "roofs": "Ceilings of this machine",
    "scheduler": "Scheduler: one decide + commit with 256 running requests",
    "start": "Time to ready, to the first token of a 20-token prompt after that, and most memory held",
    "decode": "Decode, one stream",
    "prefill": "Prefill, one prompt",
    "streams": "Decode, streams side by side at context 32 (tokens of all of them)",
    "mixed": "Mixed workload (output tokens of all requests)",
}


def render(results: Results) -> str:
    """Everything that was measured, suite by suite."""
    parts = [_head(results)]
    for suite, title in TITLES.items():
        found = results.suites.get(suite)
        if found is not None:
            tables = _mixed(found) if suite == "mixed" else _by_case(found)
            parts.append("\n".join([f"## {title}", "", _measured(found), "", *tables]))
    return "\n\n".join(parts) + "\n"


def _head(results: Results) -> str:
    lines = [f"- machine: {results.machine}"]
    lines += [f"- {system}: {about}" for system, about in results.systems.items()]
    lines += [f"- skipped: {system} ({why})" for system, why in results.skipped.items()]
    lines += [f"- {note}" for note in results.notes]
    return "\n".join(lines)


def _measured(suite: SuiteResult) -> str:
    line = f"{suite.measured_utc}, {suite.repeats} rounds, `{suite.command}`."
    line += f" {suite.about}" if suite.about else ""
    if suite.repeats < LEAST_COUNT:
        line += f" **Preliminary: fewer than {LEAST_COUNT} rounds.**"
    if suite.disturbed:
        line += f" **Disturbed: {len(suite.disturbed)} processes had company, as {suite.disturbed[0]}.**"
    return line


# ------------------------------------------------------------------------------------------------- one row per case
def _by_case(suite: SuiteResult) -> list[str]:
    """Ours, its share of the roof where there is one, then every peer and the ratio to it."""
    systems = [name for name in _unique(s.system for s in suite.samples) if name != "ours"]
    rate, roof, roof_name = _roof_of(suite.name)
    roofs = of(suite.roofs, roof, "ours", "bfloat16")
    rows = []
    for precision in PRECISIONS:
        for case in _unique(s.case for s in suite.samples if s.precision == precision):
            mine = of(suite.samples, case, "ours", precision)
            unit = next(s.unit for s in suite.samples if s.case == case)
            row = [f"{case}, {precision}" if suite.name == "decode" else case, unit, _cell(mine)]
            if rate:
                row.append(_share(share_of_roof(mine, roofs, rate)))
            for system in systems:
                theirs = of(suite.samples, case, system, precision)
                name = NAMES_IN.get(system, {}).get(precision, "")
                row += [_cell(theirs) + (f" {name}" if theirs and name else ""), _ratio(ratio(mine, theirs))]
            rows.append(row)
    head = ["case", "unit", "ours", *([f"share of {roof_name}"] if rate else [])]
    head += [part for system in systems for part in (system, "ratio")]
    return _table(head, rows)


def _roof_of(suite: str) -> tuple[Callable[[Sample], float | None] | None, str, str]:
    if suite == "decode":
        return read_gbps, "read", "read rate"
    if suite == "prefill":
        return tflops, "matmul", "matmul rate"
    return None, "", ""


# ------------------------------------------------------------------------------------------------- the workload
def _mixed(suite: SuiteResult) -> list[str]:
    """A row for each policy of ours and for each peer, each against our static and our chunked."""
    rows = []
    static, chunked = (of(suite.samples, f"mixed {name}", "ours", "bfloat16") for name in ("static", "chunked"))
    for system, case in _unique((s.system, s.case) for s in suite.samples):
        cell = of(suite.samples, case, system, "bfloat16")
        name = f"{system} {case.removeprefix('mixed').strip()}".strip()
        to_static = ratio(cell, static) if system == "ours" else None
        rows.append([name, cell[0].unit, _cell(cell), _ratio(to_static), _ratio(ratio(chunked, cell))])
    return _table(["system", "unit", "output", "over our static", "our chunked over it"], rows)


# ------------------------------------------------------------------------------------------------- parts
def _cell(samples: Sequence[Sample]) -> str:
    found = spread([sample.value for sample in samples])
    return "–" if found is None else _told(found, number)


def _ratio(found: Spread | None) -> str:
    return "–" if found is None else _told(found, lambda value: f"{value:.2f}")


def _share(found: Spread | None) -> str:
    return "–" if found is None else _told(found, lambda value: f"{100 * value:.0f} %")


def _told(found: Spread, write: Callable[[float], str]) -> str:
    return f"{write(found.median)} [{write(found.low)}, {write(found.high)}]"


def number(value: float) -> str:
    """Three significant digits, no exponent."""
    decimals = 2 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{value:.{min(max(decimals, 0), 6)}f}"


def _unique(items: Iterable) -> list:
    """Without repetition, in the order of first appearance."""
    return list(dict.fromkeys(items))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table whose columns are padded, so that it also reads in a terminal."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return [line(head), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *(line(row) for row in rows)]
