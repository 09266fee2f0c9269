"""Measured beside modelled for the PagedAttention lesson: the three ways in numbers, then what a model says of them.

What is modelled needs only lengths of prompts and answers, or the rates measured for the device; formulas are shown.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import streamlit as st

from engine.lab.metrics import makespan_s, run_metrics
from engine.lab.records import Run
from lessons.paged_attention.facts import Side, Three, limit_of, modelled_at_once
from pages._ui import compare
from pages._ui.badges import badge, provenance
from pages._ui.i18n import language, t
from pages._ui.units import byte_count, factor, milliseconds, number, percent, seconds

_NS = "paged_attention"


def comparison(found: Three) -> None:
    """The three ways in numbers, then what a model says of them."""
    lang, mark = language(), badge("measured")
    rows: list[tuple[str, Callable[[Side], str]]] = [
        ("peak", lambda s: number(s.peak, lang)),
        ("used", lambda s: percent(s.share_used, lang)),
        ("empty_mean", lambda s: byte_count(s.mean_empty_bytes, lang)),
        ("never", lambda s: byte_count(sum(s.never_used.values()) * s.position_bytes, lang)),
        ("preemptions", lambda s: number(len(s.losses), lang)),
        ("lost", lambda s: number(s.num_lost, lang)),
        ("computed", lambda s: number(s.num_computed, lang)),
        ("ttft", lambda s: seconds(run_metrics(s.run).ttft_s.mean, lang)),
        ("total", lambda s: seconds(makespan_s(s.run), lang)),
        ("steps", lambda s: number(len(s.run.steps), lang)),
    ]
    frame = pd.DataFrame(
        {t("compare.quantity"): [f"{t(f'{_NS}.row_{name}')} {mark}" for name, _ in rows]}
        | {t(f"{_NS}.part_{part}"): [say(s) for _, say in rows] for part, s in found.sides.items()}
    )
    st.table(frame, hide_index=True, border="horizontal", alt=t(f"{_NS}.table_alt"))
    runs: list[Run] = [side.run for side in found.sides.values()]
    provenance(*runs)
    compare.table([_fit_row(found), _empty_row(found), _time_row(found)], *runs, key="pa_compare")
    st.markdown(t(f"{_NS}.compare_note"))


def _fit_row(found: Three) -> compare.Row:
    lang, run = language(), found.orca.run
    prompt = sum(r.num_prompt_tokens for r in run.requests) / len(run.requests)
    modelled, size = modelled_at_once(run), run.header.block_size
    each = int(-(-(prompt + limit_of(run)) // size))
    return compare.Row(
        t(f"{_NS}.row_fit"), found.orca.peak, modelled, number(found.orca.peak, lang), number(modelled, lang),
        t(
            f"{_NS}.formula_fit",
            prompt=number(prompt, lang), limit=limit_of(run), size=size, each=each,
            blocks=run.header.num_blocks, requests=len(run.requests), result=modelled,
        ),
    )  # fmt: skip


def _empty_row(found: Three) -> compare.Row:
    lang, paged = language(), found.paged
    measured, modelled = sum(paged.never_used.values()) / len(paged.never_used), (paged.block_size - 1) / 2
    return compare.Row(
        t(f"{_NS}.row_last_block"), measured, modelled, number(measured, lang), number(modelled, lang),
        t(
            f"{_NS}.formula_last_block",
            size=paged.block_size, result=number(modelled, lang),
            bytes=byte_count(modelled * paged.position_bytes, lang),
        ),
    )  # fmt: skip


def _time_row(found: Three) -> compare.Row:
    lang = language()
    orca, paged = found.orca.modelled_s, found.paged.modelled_s
    modelled = orca / paged if orca and paged else None
    return compare.Row(
        t(f"{_NS}.row_sooner"), found.times_sooner, modelled, factor(found.times_sooner, lang), factor(modelled, lang),
        t(
            f"{_NS}.formula_sooner",
            orca=milliseconds(orca and 1e3 * orca, lang), paged=milliseconds(paged and 1e3 * paged, lang),
            result=factor(modelled, lang),
        ),
    )  # fmt: skip
