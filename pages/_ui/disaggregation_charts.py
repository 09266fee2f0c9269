"""The figures of the disaggregation lesson: passes of one engine and of two workers on one clock, gaps, intervals.

Pure functions of plain numbers; nothing is computed here but axes. Prefill is blue, decode orange, a pass that holds
both is blue with orange hatching, bytes on the wire are purple, waiting is hollow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from pages._ui import palette
from pages._ui.charts import frame

KINDS = ("prefill", "mixed", "decode", "transfer")
_FILL = {
    "prefill": {"color": palette.PREFILL},
    "decode": {"color": palette.DECODE},
    "transfer": {"color": palette.PURPLE},
    "mixed": {
        "color": palette.PREFILL,
        "pattern": {"shape": "/", "fgcolor": palette.DECODE, "bgcolor": palette.PREFILL, "solidity": 0.45, "size": 7},
    },
}


@dataclass(frozen=True)
class Bar:
    """Something that took place in [begin_ms, end_ms) on a lane. ``kind`` is one of KINDS."""

    lane: str
    kind: str
    begin_ms: float
    end_ms: float
    text: str


def lanes(bars: Sequence[Bar], order: Sequence[str], words: Mapping[str, str]) -> go.Figure:
    """Each lane a row, time to the right. ``words``: x, and one for each kind."""
    figure = go.Figure()
    for kind in KINDS:
        mine = [bar for bar in bars if bar.kind == kind]
        if mine:
            figure.add_bar(
                y=[bar.lane for bar in mine],
                x=[bar.end_ms - bar.begin_ms for bar in mine],
                base=[bar.begin_ms for bar in mine],
                orientation="h",
                name=words[kind],
                marker={**_FILL[kind], "line": {"width": 0.6, "color": "rgba(255,255,255,0.45)"}},
                customdata=[bar.text for bar in mine],
                hovertemplate="%{customdata}<extra></extra>",
            )
    frame(figure, height=130 + 62 * len(order), x=words["x"], y="")
    figure.update_layout(barmode="overlay", bargap=0.25)
    figure.update_yaxes(categoryorder="array", categoryarray=list(reversed(order)), title_text="")
    return figure


def gaps(series: Mapping[str, Sequence[tuple[float, float]]], words: Mapping[str, str]) -> go.Figure:
    """Gaps before each token over time, for both Runs. ``series``: shared and split -> [(t_ms, gap_ms)]."""
    figure = go.Figure()
    looks = {
        "shared": (palette.STATIC, "diamond-open", 2.0),
        "split": (palette.CONTINUOUS, "circle", 2.5),
    }
    for name, points in series.items():
        colour, symbol, width = looks[name]
        figure.add_scatter(
            x=[t for t, _ in points],
            y=[gap for _, gap in points],
            mode="lines+markers",
            name=words[name],
            line={"color": colour, "width": width},
            marker={"symbol": symbol, "size": 8, "color": colour},
            hovertemplate="%{x:.0f} ms: %{y:.3g} ms<extra>" + words[name] + "</extra>",
        )
    frame(figure, height=340, x=words["x"], y=words["y"])
    figure.update_yaxes(rangemode="tozero")
    return figure


PARTS = ("wait", "prefill", "handover", "decode")


@dataclass(frozen=True)
class Life:
    """One request in one Run: its label, its arrival and the lengths of its four intervals, in ms."""

    label: str
    arrival_ms: float
    parts_ms: tuple[float, float, float, float]


def lives(found: Sequence[Life], words: Mapping[str, str]) -> go.Figure:
    """The four intervals of each request as one bar from its arrival on. ``words``: x and one for each of PARTS."""
    ink = palette.GREY
    looks = {
        "wait": {"color": "rgba(0,0,0,0)", "line": {"color": ink, "width": 2}},
        "prefill": {"color": palette.PREFILL},
        "handover": {
            "color": palette.PURPLE,
            "pattern": {"shape": "x", "fillmode": "replace", "fgcolor": palette.PURPLE, "solidity": 0.4, "size": 6},
            "line": {"color": palette.PURPLE, "width": 1.5},
        },
        "decode": {"color": palette.DECODE},
    }
    figure = go.Figure()
    for index, part in enumerate(PARTS):
        figure.add_bar(
            y=[life.label for life in found],
            x=[life.parts_ms[index] for life in found],
            base=[life.arrival_ms + sum(life.parts_ms[:index]) for life in found],
            orientation="h",
            name=words[part],
            marker=looks[part],
            hovertemplate="%{y}: %{x:.3g} ms<extra>" + words[part] + "</extra>",
        )
    frame(figure, height=130 + 30 * len(found), x=words["x"], y="")
    figure.update_layout(barmode="overlay", bargap=0.3)
    figure.update_yaxes(autorange="reversed", title_text="")
    return figure


def needed_rates(names: Sequence[str], rates_gbps: Sequence[float], words: Mapping[str, str]) -> go.Figure:
    """What a link has to carry so that sending takes no longer than computing, over prompt lengths. Modelled."""
    figure = go.Figure()
    figure.add_bar(
        x=list(names),
        y=list(rates_gbps),
        marker={"color": "rgba(0,0,0,0)", "line": {"color": palette.MODEL, "width": 3}},
        text=[f"{rate:.3g}" for rate in rates_gbps],
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{x}: %{y:.3g} GB/s<extra></extra>",
        showlegend=False,
    )
    frame(figure, height=320, x=words["x"], y=words["y"])
    figure.update_xaxes(type="category")
    figure.update_yaxes(range=[0, 1.2 * max(rates_gbps)])
    return figure
