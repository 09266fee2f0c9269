"""The pictures of the disaggregation lesson, drawn from two Runs of one workload: one engine, and two workers.

Both stand on one clock, time 0 being the arrival of the chats. What is sent is counted, not estimated.
"""

from __future__ import annotations

import pandas as pd
import streamlit as st

from engine.lab.latency import token_times
from engine.lab.metrics import step_kind
from engine.lab.records import Run
from engine.lab.work import prefill_flops
from lessons.disaggregation.pair import Objective, Pair
from lessons.disaggregation.scenarios import CHATS, LATE
from pages._ui import charts, compare, session
from pages._ui import disaggregation_charts as figures
from pages._ui.badges import badge, note, provenance
from pages._ui.i18n import language, t
from pages._ui.units import byte_count, factor, milliseconds, number, percent, seconds

_NS = "disaggregation"


def knob_value(name: str, value: int) -> str:
    """The words for one value of a knob. Pure but for the language."""
    if name == "link":
        return t(f"{_NS}.link_value", n=value) if value else t(f"{_NS}.link_fast")
    if name == "budget":
        return t(f"{_NS}.budget_value_{value}", n=number(value, language()))
    return t(f"{_NS}.long_value", n=number(value, language()))


def model_line() -> None:
    """What a prediction of bytes needs: the model's shape and the block size."""
    device = session.device()
    model = (device or {}).get("default_model")
    if model:
        values = {k: model[k] for k in ("name", "num_layers", "num_kv_heads", "head_dim")}
        note(f":material/info: {t(f'{_NS}.model_line', **values)}")


# ------------------------------------------------------------------------------------------------- timeline
def timeline(pair: Pair) -> None:
    """Every pass of either system on one clock, and what was on the wire."""
    names = {lane: t(f"{_NS}.lane_{lane}") for lane in ("shared", "prefill", "wire", "decode")}
    bars = [_bar(names["shared"], step) for step in pair.shared.steps if step.scheduled]
    bars += [_bar(names[step.worker], step) for step in pair.split.steps if step.scheduled]
    for sent in pair.sent.values():
        text = t(f"{_NS}.hover_sent", request=sent.request_id, bytes=byte_count(sent.num_bytes, language()))
        bars.append(figures.Bar(names["wire"], "transfer", 1e3 * sent.t_begin_s, 1e3 * sent.t_end_s, text))
    table = pd.DataFrame(
        {
            t(f"{_NS}.col_lane"): [bar.lane for bar in bars],
            t(f"{_NS}.col_begin"): [round(bar.begin_ms, 2) for bar in bars],
            t(f"{_NS}.col_end"): [round(bar.end_ms, 2) for bar in bars],
            t(f"{_NS}.col_what"): [bar.text for bar in bars],
        }
    )
    words = {kind: t(f"{_NS}.kind_{kind}") for kind in figures.KINDS}
    charts.show(
        figures.lanes(bars, list(names.values()), {**words, "x": t(f"{_NS}.x_time")}),
        key="dg_timeline",
        title=t(f"{_NS}.timeline"),
        alt=t(
            f"{_NS}.timeline_alt",
            shared=len(pair.shared.steps),
            prefill=sum(step.worker == "prefill" for step in pair.split.steps),
            decode=sum(step.worker == "decode" for step in pair.split.steps),
            mixed=sum(step_kind(step) == "mixed" for step in pair.shared.steps),
        ),
        table=table,
        provenance=lambda: provenance(pair.shared, pair.split),
    )
    note(t(f"{_NS}.timeline_note"))


def _bar(lane: str, step) -> figures.Bar:
    kind = step_kind(step)
    text = t(f"{_NS}.hover_step", step=step.step, kind=t(f"{_NS}.kind_{kind}"), tokens=step.work.tokens)
    return figures.Bar(lane, kind, 1e3 * step.t_begin_s, 1e3 * step.t_end_s, text)


# ------------------------------------------------------------------------------------------------- gaps
def gaps(pair: Pair) -> None:
    """The gap before each token of the chat that was hit worst."""
    lang = language()
    chat = pair.worst_chat(pair.shared)
    series = {
        name: [(1e3 * token.t_s, 1e3 * token.latency_s) for token in token_times(run)[chat][1:]]
        for name, run in (("shared", pair.shared), ("split", pair.split))
    }
    rows = [(name, i + 1, *point) for name, points in series.items() for i, point in enumerate(points)]
    table = pd.DataFrame(
        {
            t(f"{_NS}.col_lane"): [t(f"{_NS}.part_{_role(row[0])}") for row in rows],
            t(f"{_NS}.col_token"): [row[1] for row in rows],
            t(f"{_NS}.x_time"): [round(row[2], 2) for row in rows],
            t(f"{_NS}.y_gap"): [round(row[3], 2) for row in rows],
        }
    )
    worst = {name: max(gap for _, gap in points) for name, points in series.items()}
    charts.show(
        figures.gaps(
            series,
            {
                "shared": t(f"{_NS}.part_shared"),
                "split": t(f"{_NS}.part_disaggregated"),
                "x": t(f"{_NS}.x_time"),
                "y": t(f"{_NS}.y_gap"),
            },
        ),
        key="dg_gaps",
        title=t(f"{_NS}.gaps", chat=chat),
        alt=t(
            f"{_NS}.gaps_alt",
            chat=chat,
            shared=milliseconds(worst["shared"], lang),
            split=milliseconds(worst["split"], lang),
        ),
        table=table,
        provenance=lambda: provenance(pair.shared, pair.split),
    )
    note(
        t(
            f"{_NS}.gaps_note",
            shared=pair.stalled(pair.shared),
            split=pair.stalled(pair.split),
            chats=len(CHATS),
        )
    )


def _role(name: str) -> str:
    return "shared" if name == "shared" else "disaggregated"


# ------------------------------------------------------------------------------------------------- intervals
def intervals(pair: Pair) -> None:
    """The four intervals of every request, in either system."""
    found = []
    for name in (*CHATS, *LATE):
        for role, run in (("shared", pair.shared), ("disaggregated", pair.split)):
            one = pair.intervals(run)[name]
            label = f"{name} · {t(f'{_NS}.short_{role}')}"
            found.append(figures.Life(label, 1e3 * one.arrival_s, tuple(1e3 * part for part in one.parts_s)))
    words = {part: t(f"{_NS}.interval_{part}") for part in figures.PARTS}
    table = pd.DataFrame(
        {t(f"{_NS}.col_request"): [life.label for life in found]}
        | {
            f"{words[part]} (ms)": [round(life.parts_ms[i], 2) for life in found]
            for i, part in enumerate(figures.PARTS)
        }
    )
    late = next(life for life in found if life.label.startswith(LATE[0]) and life.parts_ms[2] > 0)
    lang = language()
    charts.show(
        figures.lives(found, {**words, "x": t(f"{_NS}.x_time")}),
        key="dg_lives",
        title=t(f"{_NS}.intervals"),
        alt=t(
            f"{_NS}.intervals_alt",
            request=LATE[0],
            **{part: milliseconds(late.parts_ms[i], lang) for i, part in enumerate(figures.PARTS)},
        ),
        table=table,
        provenance=lambda: provenance(pair.shared, pair.split),
    )
    note(t(f"{_NS}.intervals_note"))


# ------------------------------------------------------------------------------------------------- objectives
def objectives(pair: Pair) -> None:
    """Goodput of both systems under two objectives."""
    lang = language()
    st.subheader(t(f"{_NS}.objectives"), anchor=False)
    st.markdown(t(f"{_NS}.objectives_are"))
    found, total = pair.objectives(), len(pair.shared.requests)
    frame = pd.DataFrame(
        {
            t(f"{_NS}.col_objective"): [t(f"{_NS}.objective_{one.name}") for one in found],
            t(f"{_NS}.col_limits"): [
                t(f"{_NS}.limits", ttft=seconds(one.ttft_s, lang), tpot=seconds(one.tpot_s, lang)) for one in found
            ],
            t(f"{_NS}.part_shared"): [_goodput(one, "shared", total) for one in found],
            t(f"{_NS}.part_disaggregated"): [_goodput(one, "split", total) for one in found],
        }
    )
    with st.container(key="dg_objectives"):
        st.table(frame, hide_index=True, border="horizontal", alt=t(f"{_NS}.objectives"))
    provenance(pair.shared, pair.split)


def _goodput(one: Objective, which: str, total: int) -> str:
    lang = language()
    good = getattr(one, which)
    words = t(
        f"{_NS}.goodput",
        n=good.num_within,
        total=total,
        share=percent(good.share, lang),
        rate=number(good.requests_per_s, lang),
    )
    return f"{words} {badge('measured')}"


# ------------------------------------------------------------------------------------------------- comparison
def comparison(pair: Pair) -> None:
    """Measured beside modelled: bytes, the wire, a long prefill on either system, the worst gap."""
    lang = language()
    sent = pair.sent[LATE[0]]
    blocks = -(-pair.long // pair.split.header.block_size)
    modelled_bytes = blocks * pair.block_bytes
    rows = [
        compare.Row(
            t(f"{_NS}.row_bytes", request=LATE[0]),
            sent.num_bytes,
            modelled_bytes,
            byte_count(sent.num_bytes, lang),
            byte_count(modelled_bytes, lang),
            t(
                f"{_NS}.formula_bytes",
                tokens=number(pair.long, lang),
                size=pair.split.header.block_size,
                blocks=blocks,
                block=byte_count(pair.block_bytes, lang),
                result=byte_count(modelled_bytes, lang),
            ),
        ),
        *([_wire_row(pair, pair.link_mb_per_s)] if pair.link_mb_per_s else []),  # an unpaced link has no model
        _prefill_row(pair, pair.shared, "shared"),
        _prefill_row(pair, pair.split, "disaggregated"),
        _gap_row(pair),
    ]
    compare.table(rows, pair.shared, pair.split, key="dg_compare")
    st.markdown(t(f"{_NS}.compare_note"))


def _wire_row(pair: Pair, rate: float) -> compare.Row:
    lang, sent = language(), pair.sent[LATE[0]]
    took = sent.t_end_s - sent.t_begin_s
    modelled = sent.num_bytes / (rate * 1e6)
    formula = t(
        f"{_NS}.formula_wire",
        bytes=byte_count(sent.num_bytes, lang),
        rate=number(rate, lang),
        result=seconds(modelled, lang),
    )
    return compare.Row(
        t(f"{_NS}.row_wire", request=LATE[0]), took, modelled, seconds(took, lang), seconds(modelled, lang), formula
    )


def _prefill_row(pair: Pair, run: Run, role: str) -> compare.Row:
    """A long prompt on all threads or on half of them: the measured rate of arithmetic is that of all."""
    lang, rate = language(), run.header.device.matmul_tflops
    flops = prefill_flops(run.header.model, pair.long)
    share = 1.0 if role == "shared" else run.header.workers[0].threads / run.header.device.threads
    modelled = flops / (rate * 1e12 * share) if rate else None
    measured = pair.prefill_s(run)
    formula = t(
        f"{_NS}.formula_prefill",
        flops=number(flops / 1e9, lang),
        rate=number(rate and 1e3 * rate * share, lang),
        share=percent(share, lang),
        result=seconds(modelled, lang),
    )
    return compare.Row(
        t(f"{_NS}.row_prefill_{role}"), measured, modelled, seconds(measured, lang), seconds(modelled, lang), formula
    )


def _gap_row(pair: Pair) -> compare.Row:
    """The worst gap of a chat in the shared engine: as long as a pass with as much prompt as the budget lets in."""
    lang, run = language(), pair.shared
    rate = run.header.device.matmul_tflops
    tokens = min(pair.long, pair.budget)
    flops = prefill_flops(run.header.model, tokens)
    step_s = pair.decode_step_s(run)
    modelled = step_s + flops / (rate * 1e12) if rate else None
    measured = pair.worst_gap(run)
    formula = t(
        f"{_NS}.formula_gap",
        step=seconds(step_s, lang),
        tokens=tokens,
        result=seconds(modelled, lang),
        ratio=factor(measured / step_s, lang),
    )
    return compare.Row(
        t(f"{_NS}.row_gap"), measured, modelled, seconds(measured, lang), seconds(modelled, lang), formula
    )
