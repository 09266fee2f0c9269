"""The pictures of the chunked-prefill lesson, drawn from its Runs: two timelines, gaps over time, the trade-off.

Every budget is a Run of its own, so the curve grows point by point while the study goes on. Which budget stands beside
"in one go" is a choice of the reader; nothing is run for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import pandas as pd
import streamlit as st

from engine.lab.metrics import request_record
from engine.lab.records import Run
from engine.lab.stalls import token_gaps
from lessons.chunked_prefill.facts import facts
from lessons.chunked_prefill.points import Point, points, usual_gap_s
from lessons.chunked_prefill.scenarios import CHUNKED, LONG, WHOLE, WITHOUT
from lessons.facts_error import FactsError
from pages._ui import charts, chunked_prefill_charts, compare, session
from pages._ui.badges import note, provenance
from pages._ui.chunked_prefill_charts import GapLine, TradePoint
from pages._ui.i18n import language, t
from pages._ui.player import timeline_player
from pages._ui.units import byte_count, milliseconds, number

_NS = "chunked_prefill"
READER = "d1"  # all others decode alike; one of them stands for them


def name_of(point: Point) -> str:
    return t(f"{_NS}.in_one_go") if point.role == WHOLE else t(f"{_NS}.with_budget", budget=point.budget)


def player(runs: Mapping[str, Run], role: str) -> None:
    """The long prompt in one go and with the chosen budget, on one clock."""
    st.subheader(t(f"{_NS}.player"), anchor=False)
    pair = [point for point in points(runs) if point.role in (WHOLE, role)]
    spoken = [session.store().texts(point.run.run_id).pieces or None for point in pair]
    names = {"long": t(f"{_NS}.row_long")}
    timeline_player([(name_of(p), p.run) for p in pair], lang=language(), key="cp_player", texts=spoken, names=names)
    provenance(*(p.run for p in pair))


def gaps(runs: Mapping[str, Run], role: str) -> None:
    """The gaps of one of the others, undisturbed, in one go and with the chosen budget."""
    lang = language()
    found = {point.role: point for point in points(runs)}
    named = [(t(f"{_NS}.undisturbed"), runs[WITHOUT])]
    named += [(name_of(found[r]), runs[r]) for r in (WHOLE, role)]
    lines = [_gap_line(name, run) for name, run in named]
    arrival_ms = 1e3 * request_record(runs[WHOLE], LONG).arrival_s
    charts.show(
        chunked_prefill_charts.gaps(lines, arrival_ms, {n: t(f"{_NS}.gaps_{n}") for n in ("x", "y", "arrival")}),
        key="cp_gaps",
        title=t(f"{_NS}.gaps", name=READER),
        alt=t(
            f"{_NS}.gaps_alt",
            name=READER,
            usual=milliseconds(1e3 * usual_gap_s(runs), lang),
            whole=milliseconds(max(lines[1].gap_ms), lang),
            chunked=milliseconds(max(lines[2].gap_ms), lang),
            budget=found[role].budget,
        ),
        table=pd.DataFrame(
            {
                t(f"{_NS}.col_token"): range(2, len(lines[0].gap_ms) + 2),
                **{f"{line.name} (ms)": [round(gap, 1) for gap in line.gap_ms] for line in lines},
            }
        ),
        provenance=lambda: provenance(*(run for _, run in named)),
    )
    note(t(f"{_NS}.gaps_note", name=READER))


def _gap_line(name: str, run: Run) -> GapLine:
    found = token_gaps(run)[READER]
    return GapLine(name, [1e3 * gap.t_end_s for gap in found], [1e3 * gap.seconds for gap in found])


def so_far(runs: Mapping[str, Run]) -> None:
    """The trade-off curve with the points there are, while the study goes on."""
    with contextlib.suppress(FactsError):
        if points(runs):
            trade_off(runs, None, key="cp_live", title=t("study.so_far"))


def trade_off(runs: Mapping[str, Run], role: str | None, *, key: str = "cp_trade", title: str | None = None) -> None:
    """The long prompt's TTFT against the others' worst gap, for every budget."""
    lang = language()
    found = points(runs)
    usual_ms = 1e3 * usual_gap_s(runs)
    drawn = [
        TradePoint(
            label=t(f"{_NS}.in_one_go") if p.role == WHOLE else str(p.budget),
            ttft_ms=1e3 * p.ttft_s,
            gap_ms=1e3 * p.worst.seconds,
            modelled_ttft_ms=_ms(p.modelled_ttft_s()),
            modelled_gap_ms=_ms(p.modelled_gap_s()),
        )
        for p in found
    ]
    chosen = next((i for i, p in enumerate(found) if p.role == role), None)
    names = ("measured", "modelled", "usual", "chosen", "x", "y")
    charts.show(
        chunked_prefill_charts.trade_off(drawn, usual_ms, chosen, {n: t(f"{_NS}.trade_{n}") for n in names}),
        key=key,
        title=title or t(f"{_NS}.trade"),
        alt=t(
            f"{_NS}.trade_alt",
            n=len(drawn),
            first=drawn[0].label,
            first_gap=milliseconds(drawn[0].gap_ms, lang),
            first_ttft=milliseconds(drawn[0].ttft_ms, lang),
            last=drawn[-1].label,
            last_gap=milliseconds(drawn[-1].gap_ms, lang),
            last_ttft=milliseconds(drawn[-1].ttft_ms, lang),
        ),
        table=pd.DataFrame(
            {
                t(f"{_NS}.col_way"): [name_of(p) for p in found],
                t(f"{_NS}.col_ttft"): [round(p.ttft_ms, 1) for p in drawn],
                t(f"{_NS}.col_ttft_model"): [
                    None if p.modelled_ttft_ms is None else round(p.modelled_ttft_ms, 1) for p in drawn
                ],
                t(f"{_NS}.col_gap"): [round(p.gap_ms, 1) for p in drawn],
                t(f"{_NS}.col_gap_model"): [
                    None if p.modelled_gap_ms is None else round(p.modelled_gap_ms, 1) for p in drawn
                ],
                t(f"{_NS}.col_steps"): [p.num_chunks for p in found],
                t(f"{_NS}.col_between"): [p.worst.num_tokens for p in found],
                t(f"{_NS}.col_held"): [p.held_steps for p in found],
                t("study.column_run"): [p.run.run_id for p in found],
            }
        ),
        provenance=lambda: provenance(*(p.run for p in found), modelled=True),
    )
    note(t(f"{_NS}.trade_note"))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


# ------------------------------------------------------------------------------------------------- comparison
def comparison(runs: Mapping[str, Run], role: str) -> None:
    """Gap and TTFT beside the roofline, the number of chunks beside a division."""
    found = {point.role: point for point in points(runs)}
    whole, chosen = found[WHOLE], found[role]
    rows = [_gap_row(whole), _gap_row(chosen), _ttft_row(whole), _ttft_row(chosen), _steps_row(chosen)]
    compare.table(rows, whole.run, chosen.run, key="cp_compare")
    st.markdown(t(f"{_NS}.compare_note"))


def _gap_row(point: Point) -> compare.Row:
    lang = language()
    measured, modelled = 1e3 * point.worst.seconds, _ms(point.modelled_gap_s())
    formula = t(
        f"{_NS}.formula_gap",
        steps=len(point.worst.steps),
        tokens=point.worst.num_tokens,
        result=milliseconds(modelled, lang),
        **_ceilings(point),
    )
    shown = milliseconds(measured, lang), milliseconds(modelled, lang)
    return compare.Row(t(f"{_NS}.row_gap", way=name_of(point)), measured, modelled, *shown, formula)


def _ttft_row(point: Point) -> compare.Row:
    lang = language()
    measured, modelled = 1e3 * point.ttft_s, _ms(point.modelled_ttft_s())
    formula = t(
        f"{_NS}.formula_ttft",
        steps=point.num_chunks,
        wait=milliseconds(1e3 * point.queue_s, lang),
        weights=byte_count(point.weight_reads, lang),
        result=milliseconds(modelled, lang),
        **_ceilings(point),
    )
    shown = milliseconds(measured, lang), milliseconds(modelled, lang)
    return compare.Row(t(f"{_NS}.row_ttft", way=name_of(point)), measured, modelled, *shown, formula)


def _steps_row(point: Point) -> compare.Row:
    lang = language()
    others = len(point.run.requests) - 1
    chunk = point.budget - others
    modelled = -(-point.length // chunk)
    formula = t(
        f"{_NS}.formula_steps", length=point.length, budget=point.budget, others=others, chunk=chunk, result=modelled
    )
    shown = number(point.num_chunks, lang), number(modelled, lang)
    return compare.Row(t(f"{_NS}.row_steps", way=name_of(point)), point.num_chunks, modelled, *shown, formula)


def _ceilings(point: Point) -> dict[str, str]:
    device, lang = point.run.header.device, language()
    return {"read": number(device.read_gbps, lang), "matmul": number(device.matmul_tflops, lang)}


def complete(runs: Mapping[str, Run]) -> bool:
    """Whether the Runs are enough for the pictures and the explanation. Pure."""
    try:
        facts(runs)
    except FactsError:
        return False
    return WITHOUT in runs and all(role in runs for role in (WHOLE, *CHUNKED))


def settings_of(runs: Mapping[str, Run]) -> tuple[int, int]:
    """(others, length) of the Runs. Pure."""
    run = runs[WHOLE]
    return len(run.requests) - 1, request_record(run, LONG).num_prompt_tokens
