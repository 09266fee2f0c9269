"""My device against the recorded one: the same figures of both, side by side, with their ratio and what explains it.

One click on every lesson, because ``explain.why`` draws it. The figures come from ``lessons.against``; here they are
only shown. A time is not a property of a lesson but of a device; what was decided is: that is what this is to teach.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from engine.lab.records import Run
from lessons import against, recorded
from lessons.against import Figure
from lessons.catalog import Lesson
from pages._ui import charts, palette, run_panel, session
from pages._ui.badges import badge, escape, provenance
from pages._ui.charts import frame
from pages._ui.i18n import language, t
from pages._ui.prediction_words import say
from pages._ui.units import factor, number, seconds

_NS = "against"
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
_ALIKE = 1.25  # ratios closer than this are called alike: runs of one device differ by as much


def panel(lesson: Lesson) -> None:
    """The click and, once clicked, the comparison; nothing where the learner or the lesson has no whole set of Runs."""
    roles = recorded.roles(lesson.id)
    mine = session.store().own_runs(session.learner(), lesson.id)
    if not roles or not roles <= set(mine):
        return
    box = st.expander(
        t(f"{_NS}.title"), icon=":material/compare_arrows:", key=f"against_{lesson.id}", on_change="rerun"
    )
    if box.open:
        with box:
            theirs = recorded.runs(lesson.id)
            draw(lesson, {role: mine[role] for role in theirs}, theirs)


def draw(lesson: Lesson, mine: Mapping[str, Run], theirs: Mapping[str, Run]) -> None:
    """Chart, table, explanation. Effect: Streamlit elements."""
    found = against.figures(lesson.id, mine, theirs)
    rows = [_row(lesson, figure) for figure in found]
    columns = [t(f"{_NS}.{name}") for name in ("figure", "mine", "recorded", "ratio")]
    # A question of the lesson is too long for an axis; it stands in the table.
    drawn = [
        (row[0], figure.ratio)
        for row, figure in zip(rows, found, strict=True)
        if figure.ratio is not None and figure.kind != "prediction"
    ]
    charts.show(
        _chart(drawn),
        key=f"against_chart_{lesson.id}",
        title=t(f"{_NS}.chart"),
        alt=t(f"{_NS}.alt", figures="; ".join(f"{name} {factor(ratio, language())}" for name, ratio in drawn)),
        table=pd.DataFrame(rows, columns=columns),
        provenance=lambda: provenance(*mine.values(), *theirs.values()),
    )
    here, there = next(iter(mine.values())), next(iter(theirs.values()))
    marks = ("", badge("measured", here), badge("measured", there), "")
    shown = pd.DataFrame(rows, columns=[f"{name} {mark}".strip() for name, mark in zip(columns, marks, strict=True)])
    with st.container(key=f"against_table_{lesson.id}"):
        st.table(shown, hide_index=True, border="horizontal", alt=t(f"{_NS}.table_alt"))
    st.markdown(f"**{t(f'{_NS}.why')}**")
    st.markdown("\n".join(f"- {line}" for line in _reasons(found, mine, theirs)))


def _row(lesson: Lesson, figure: Figure) -> list[str]:
    lang = language()
    if figure.kind == "prediction":
        asked = lesson.prediction(figure.name)
        same = t(f"{_NS}.same" if figure.mine == figure.recorded else f"{_NS}.other")
        shown = [say(asked, value) for value in (figure.mine, figure.recorded)]
        return [asked.prompt[lang], *shown, same if asked.kind == "choice" else factor(figure.ratio, lang)]
    role = "" if not figure.name or figure.name == "run" else run_panel.part_name(lesson.id, figure.name)
    name = t(f"{_NS}.{figure.kind}")
    units = {"tokens_per_s": "token/s", "read": "GB/s", "matmul": "TFLOP/s"}
    if figure.kind in units:
        shown = [f"{number(value, lang)} {units[figure.kind]}" for value in (figure.mine, figure.recorded)]
    else:
        shown = [seconds(value, lang) for value in (figure.mine, figure.recorded)]
    return [f"{role} · {name}" if role else name, *shown, factor(figure.ratio, lang)]


def _chart(drawn: Sequence[tuple[str, float]]) -> go.Figure:
    """A point per figure on a logarithmic axis of ratios; the line at 1 is where both devices do the same."""
    figure = go.Figure()
    figure.add_scatter(
        x=[ratio for _, ratio in drawn],
        y=[name.replace(" · ", "<br>") for name, _ in drawn],  # in two lines: a phone is narrow
        mode="markers+text",
        marker={"size": 13, "color": palette.BLUE},
        text=[factor(ratio, language()) for _, ratio in drawn],
        textposition="top center",
        cliponaxis=False,
        hovertemplate="%{y}: %{x:.3g}×<extra></extra>",
        showlegend=False,
    )
    figure.add_vline(x=1, line={"color": palette.GREY, "width": 2})
    frame(figure, height=110 + 48 * len(drawn), x=t(f"{_NS}.axis"), y="")
    reach = 1.5 * max([2.0, *(max(ratio, 1 / ratio) for _, ratio in drawn)])
    ticks = [tick for tick in _TICKS if 1 / reach <= tick <= reach]
    figure.update_xaxes(
        type="log",
        range=[-math.log10(reach), math.log10(reach)],
        tickvals=ticks,
        ticktext=[f"{tick:g}×" for tick in ticks],
    )
    figure.update_yaxes(autorange="reversed", type="category")
    return figure


# ------------------------------------------------------------------------------------------------- why they differ
def _reasons(found: list[Figure], mine: Mapping[str, Run], theirs: Mapping[str, Run]) -> list[str]:
    """What is the same whatever the device, then what explains the times, each with its numbers."""
    lang = language()
    here, there = next(iter(mine.values())).header, next(iter(theirs.values())).header
    lines = []
    if against.same_workload(mine, theirs):
        both = against.shared(mine, theirs)
        same = both.steps[0] == both.steps[1] and both.tokens[0] == both.tokens[1]
        key = "decided_same" if same else "decided_other"
        values = {"mine": both.steps[0], "recorded": both.steps[1], "tokens": number(both.tokens[0], lang)}
        lines.append(t(f"{_NS}.{key}", **values) + (" " + t(f"{_NS}.same_tokens") if both.same_tokens else ""))
    else:
        lines.append(t(f"{_NS}.other_workload"))
    for step, rate in (("decode_step", "read"), ("prefill_step", "matmul")):
        took, has = against.middle_ratio(found, step), against.middle_ratio(found, rate)
        if took is not None and has is not None:
            fits, damped = max(took * has, 1 / (took * has)) <= _ALIKE, abs(math.log(took)) < abs(math.log(has))
            values = {"has": factor(has, lang), "expected": factor(1 / has, lang), "took": factor(took, lang)}
            lines.append(
                t(f"{_NS}.because_{rate}", **values)
                + " "
                + t(f"{_NS}.{'fits' if fits else 'damped' if damped else 'leaves'}")
            )
        elif took is not None:
            lines.append(t(f"{_NS}.not_measured"))
    if here.device.name == there.device.name and here.device.threads == there.device.threads:
        lines.append(t(f"{_NS}.same_device"))
    else:
        lines.append(
            t(
                f"{_NS}.devices",
                mine=escape(here.device.name),
                mine_threads=here.device.threads,
                recorded=escape(there.device.name),
                recorded_threads=there.device.threads,
            )
        )
    odd = [
        name
        for name in sorted({*here.versions, *there.versions})
        if here.versions.get(name) != there.versions.get(name)
    ]
    if odd:
        told = ", ".join(f"{name} {here.versions.get(name, '–')} / {there.versions.get(name, '–')}" for name in odd)
        lines.append(t(f"{_NS}.versions", versions=escape(told)))
    return lines
