"""The pictures of the batching lesson, drawn from the Runs of its study: what a batch gains, and what it costs.

Measured points come from step records, blocks and rows from the block pool and the scheduler; the dashed line is the
roofline with the ceilings that the Runs recorded. What would happen on a card of the catalogue is modelled.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import streamlit as st

from engine.lab.metrics import step_kind
from engine.lab.records import Run
from engine.lab.work import element_sizes, kv_bytes_per_token, kv_cache_bytes
from lessons.batch_size.facts import EIGHT, MOST, ONE, ceilings
from lessons.batch_size.points import BatchPoint, batch_points
from lessons.batch_size.scenarios import UNEVEN
from pages._ui import batch_size_charts as figures
from pages._ui import charts, compare
from pages._ui.badges import note, provenance
from pages._ui.i18n import language, t
from pages._ui.units import byte_count, factor, flop_count, milliseconds, number, percent

_NS = "batch_size"


def so_far(runs: Mapping[str, Run]) -> None:
    """The curves with the points there are, while the study goes on."""
    if batch_points(runs):
        gains(runs, key="bs_live", title=t("study.so_far"))


# ------------------------------------------------------------------------------------------------- what it gains
def gains(runs: Mapping[str, Run], *, key: str = "bs_gains", title: str | None = None) -> None:
    """Time per step and throughput over the batch, measured beside modelled."""
    lang = language()
    found = list(batch_points(runs).values())
    device = found[-1].run.header.device
    roof = (device.read_gbps, device.matmul_tflops) if device.read_gbps and device.matmul_tflops else None
    steps = [
        figures.Step(p.size, p.step_s * 1e3, p.low_s * 1e3, p.high_s * 1e3, p.modelled_s(*roof) * 1e3 if roof else None)
        for p in found
    ]
    words = {name: t(f"{_NS}.{name}") for name in ("measured", "modelled", "ideal", "x", "y_time", "y_rate")}
    table = pd.DataFrame(
        {
            t(f"{_NS}.x"): [p.size for p in found],
            t(f"{_NS}.col_ms"): [round(s.ms, 2) for s in steps],
            t(f"{_NS}.col_low"): [round(s.low_ms, 2) for s in steps],
            t(f"{_NS}.col_high"): [round(s.high_ms, 2) for s in steps],
            t(f"{_NS}.col_modelled"): [None if s.modelled_ms is None else round(s.modelled_ms, 2) for s in steps],
            t(f"{_NS}.y_rate"): [round(p.tokens_per_s, 1) for p in found],
            t(f"{_NS}.col_steps"): [p.count for p in found],
            t("study.column_run"): [p.run.run_id for p in found],
        }
    )
    first, last = found[0], found[-1]
    charts.show(
        figures.time_and_throughput(steps, words),
        key=key,
        title=title or t(f"{_NS}.gains"),
        alt=t(
            f"{_NS}.gains_alt",
            low=first.size,
            high=last.size,
            low_ms=milliseconds(first.step_s * 1e3, lang),
            high_ms=milliseconds(last.step_s * 1e3, lang),
            low_tps=number(first.tokens_per_s, lang),
            high_tps=number(last.tokens_per_s, lang),
        ),
        table=table,
        provenance=lambda: provenance(*(p.run for p in found), modelled=roof is not None),
    )
    note(t(f"{_NS}.how_to_read"))


def used(runs: Mapping[str, Run]) -> None:
    """Utilization of the arithmetic units over the batch; nothing to draw without measured ceilings."""
    lang, roof = language(), ceilings(runs)
    if roof is None:
        st.info(t(f"{_NS}.no_roof"), icon=":material/straighten:")
        return
    read, rate = roof
    found = list(batch_points(runs).values())
    measured = [100 * p.utilization(rate) for p in found]
    modelled = [100 * p.flops / p.modelled_s(read, rate) / (rate * 1e12) for p in found]
    table = pd.DataFrame(
        {
            t(f"{_NS}.x"): [p.size for p in found],
            "GFLOP": [round(p.flops / 1e9, 3) for p in found],
            "FLOP/byte": [round(p.intensity, 3) for p in found],
            t(f"{_NS}.col_util"): [round(value, 2) for value in measured],
            t(f"{_NS}.col_util_modelled"): [round(value, 2) for value in modelled],
            t("study.column_run"): [p.run.run_id for p in found],
        }
    )
    words = {
        "measured": t(f"{_NS}.measured"),
        "modelled": t(f"{_NS}.modelled"),
        "x": t(f"{_NS}.x"),
        "y": t(f"{_NS}.y_util"),
    }
    charts.show(
        figures.utilization([p.size for p in found], measured, modelled, words),
        key="bs_used",
        title=t(f"{_NS}.used"),
        alt=t(
            f"{_NS}.used_alt",
            low=found[0].size,
            high=found[-1].size,
            low_util=percent(measured[0] / 100, lang),
            high_util=percent(measured[-1] / 100, lang),
        ),
        table=table,
        provenance=lambda: provenance(*(p.run for p in found), modelled=True),
    )


# ------------------------------------------------------------------------------------------------- what it costs
def price(runs: Mapping[str, Run]) -> None:
    """KV memory and time to the first token over the batch, and the padding of the batch of unequal lengths."""
    _memory(list(batch_points(runs).values()))
    if UNEVEN in runs:
        _padding(runs[UNEVEN])


def _memory(found: list[BatchPoint]) -> None:
    lang = language()
    reserved, filled = [p.kv_bytes / 1e6 for p in found], [p.kv_filled_bytes / 1e6 for p in found]
    table = pd.DataFrame(
        {
            t(f"{_NS}.x"): [p.size for p in found],
            t(f"{_NS}.col_blocks"): [max(s.blocks.in_use for s in p.run.steps) for p in found],
            t(f"{_NS}.col_kv"): [round(value, 2) for value in reserved],
            t(f"{_NS}.col_filled"): [round(value, 2) for value in filled],
            t(f"{_NS}.col_ttft"): [round(p.ttft_s * 1e3, 1) for p in found],
            t("study.column_run"): [p.run.run_id for p in found],
        }
    )
    words = {name: t(f"{_NS}.{name}") for name in ("filled", "unused", "x")} | {"y": t(f"{_NS}.col_kv")}
    weights = found[-1].run.header.model.weight_bytes
    charts.show(
        figures.memory([p.size for p in found], reserved, filled, words),
        key="bs_memory",
        title=t(f"{_NS}.memory"),
        alt=t(
            f"{_NS}.memory_alt",
            size=found[-1].size,
            kv=byte_count(found[-1].kv_bytes, lang),
            weights=byte_count(weights, lang),
        ),
        table=table,
        provenance=lambda: provenance(*(p.run for p in found)),
    )
    note(
        t(
            f"{_NS}.memory_note",
            weights=byte_count(weights, lang),
            one=milliseconds(found[0].ttft_s * 1e3, lang),
            size=found[-1].size,
            most=milliseconds(found[-1].ttft_s * 1e3, lang),
        )
    )


def _padding(run: Run) -> None:
    lang = language()
    steps = [step for step in run.steps if step_kind(step) == "decode"]
    useful, padding = [s.work.tokens for s in steps], [s.work.padding_tokens for s in steps]
    if not sum(useful):
        return
    table = pd.DataFrame(
        {
            t(f"{_NS}.x_step"): range(1, len(steps) + 1),
            t(f"{_NS}.useful"): useful,
            t(f"{_NS}.padding"): padding,
        }
    )
    words = {
        "useful": t(f"{_NS}.useful"),
        "padding": t(f"{_NS}.padding"),
        "x": t(f"{_NS}.x_step"),
        "y": t(f"{_NS}.y_rows"),
    }
    charts.show(
        figures.rows_per_step(useful, padding, words),
        key="bs_padding",
        title=t(f"{_NS}.uneven"),
        alt=t(
            f"{_NS}.uneven_alt",
            n=len(run.requests),
            steps=len(steps),
            share=percent(sum(padding) / (sum(useful) + sum(padding)), lang),
        ),
        table=table,
        provenance=lambda: provenance(run),
    )


# ------------------------------------------------------------------------------------------------- comparison
def comparison(runs: Mapping[str, Run]) -> None:
    """Times, gain and KV memory beside what roofline and formula say."""
    found, roof = batch_points(runs), ceilings(runs)
    chosen = [found[size] for size in (ONE, EIGHT, MOST)]
    rows = [_time_row(point, roof) for point in chosen]
    rows += [_gain_row(found[ONE], found[EIGHT], roof), _memory_row(found[MOST])]
    compare.table(rows, *(p.run for p in chosen), key="bs_compare")
    st.markdown(t(f"{_NS}.compare_note"))


def _time_row(point: BatchPoint, roof: tuple[float, float] | None) -> compare.Row:
    lang = language()
    measured = point.step_s * 1e3
    modelled = point.modelled_s(*roof) * 1e3 if roof else None
    formula = t("compare.no_model")
    if roof:
        formula = t(
            f"{_NS}.formula_time",
            bytes=byte_count(point.num_bytes, lang),
            read=number(roof[0], lang),
            bytes_ms=milliseconds(point.num_bytes / roof[0] / 1e6, lang),
            flops=flop_count(point.flops, lang),
            rate=number(roof[1], lang),
            flops_ms=milliseconds(point.flops / roof[1] / 1e9, lang),
            result=milliseconds(modelled, lang),
        )
    name = t(f"{_NS}.row_one") if point.size == 1 else t(f"{_NS}.row_time", n=point.size)
    return compare.Row(name, measured, modelled, milliseconds(measured, lang), milliseconds(modelled, lang), formula)


def _gain_row(one: BatchPoint, eight: BatchPoint, roof: tuple[float, float] | None) -> compare.Row:
    lang = language()
    measured = eight.tokens_per_s / one.tokens_per_s
    modelled = eight.size * one.modelled_s(*roof) / eight.modelled_s(*roof) if roof else None
    formula = t("compare.no_model")
    if roof:
        formula = t(
            f"{_NS}.formula_gain",
            n=eight.size,
            one=milliseconds(one.modelled_s(*roof) * 1e3, lang),
            many=milliseconds(eight.modelled_s(*roof) * 1e3, lang),
            result=factor(modelled, lang),
        )
    name = t(f"{_NS}.row_gain", n=eight.size)
    return compare.Row(name, measured, modelled, factor(measured, lang), factor(modelled, lang), formula)


def _memory_row(point: BatchPoint) -> compare.Row:
    lang, header, record = language(), point.run.header, point.run.requests[0]
    positions = record.num_prompt_tokens + record.num_output_tokens - 1
    per_token = kv_bytes_per_token(header.model, element_sizes(header)[1])
    modelled = kv_cache_bytes(header.model, positions, element_sizes(header)[1], point.size)
    formula = t(
        f"{_NS}.formula_memory",
        n=point.size,
        positions=positions,
        per_token=byte_count(per_token, lang),
        result=byte_count(modelled, lang),
    )
    name = t(f"{_NS}.row_memory", n=point.size)
    return compare.Row(
        name, point.kv_bytes, modelled, byte_count(point.kv_bytes, lang), byte_count(modelled, lang), formula
    )
