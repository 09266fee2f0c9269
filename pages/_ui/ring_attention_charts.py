"""The figures of the ring attention lesson: one layer's rounds, what each worker keeps, who computes what, the overlap.

Pure functions of plain numbers; nothing is computed here but axes. Arithmetic is blue, transfers purple with a pattern,
modelled values hollow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
import streamlit as st

from pages._ui import palette
from pages._ui.charts import frame

_SEND = {
    "color": palette.PURPLE,
    "pattern": {"shape": "/", "fillmode": "replace", "fgcolor": palette.PURPLE, "solidity": 0.4, "size": 6},
    "line": {"color": palette.PURPLE, "width": 1.5},
}
_COMPUTE = {"color": palette.PREFILL, "line": {"color": "white", "width": 1}}


@dataclass(frozen=True)
class Span:
    """Something that took place in [begin_ms, end_ms) in a lane; ``op`` is compute or send."""

    lane: str
    op: str
    begin_ms: float
    end_ms: float
    label: str
    text: str


def rounds(spans: Sequence[Span], order: Sequence[str], words: Mapping[str, str]) -> go.Figure:
    """One layer: for each worker a lane of arithmetic and a lane of transfers. ``words``: x, compute, send."""
    figure = go.Figure()
    for op, marker in (("compute", _COMPUTE), ("send", _SEND)):
        mine = [span for span in spans if span.op == op]
        if mine:
            figure.add_bar(
                y=[span.lane for span in mine],
                x=[span.end_ms - span.begin_ms for span in mine],
                base=[span.begin_ms for span in mine],
                orientation="h",
                name=words[op],
                marker=marker,
                text=[span.label for span in mine],
                textposition="inside" if op == "compute" else "none",
                insidetextanchor="middle",
                textfont={"size": 14},
                customdata=[span.text for span in mine],
                hovertemplate="%{customdata}<extra></extra>",
            )
    frame(figure, height=120 + 40 * len(order), x=words["x"], y="")
    figure.update_layout(barmode="overlay", bargap=0.2)
    figure.update_yaxes(categoryorder="array", categoryarray=list(reversed(order)), title_text="")
    return figure


def kept(
    names: Sequence[str], megabytes: Sequence[float], modelled: Sequence[float], words: Mapping[str, str]
) -> go.Figure:
    """Keys and values that each worker keeps, beside the formula. ``words``: y, measured, modelled."""
    figure = go.Figure()
    figure.add_bar(
        x=list(names),
        y=list(megabytes),
        name=words["measured"],
        marker={"color": palette.CONTINUOUS},
        text=[f"{value:.3g}" for value in megabytes],
        textposition="inside",
        insidetextanchor="middle",
        textfont={"size": 16, "color": "black"},
        hovertemplate="%{x}: %{y:.4g} MB<extra></extra>",
    )
    figure.add_scatter(
        x=list(names),
        y=list(modelled),
        mode="markers",
        name=words["modelled"],
        marker={"symbol": "circle-open", "size": 13, "color": palette.MODEL, "line": {"width": 3}},
        hovertemplate="%{x}: %{y:.4g} MB<extra></extra>",
    )
    frame(figure, height=340, x="", y=words["y"])
    figure.update_xaxes(type="category")
    figure.update_yaxes(range=[0, 1.18 * max(megabytes)])
    return figure


def pairs(
    names: Sequence[str], shares: Sequence[Sequence[float]], words: Mapping[str, str], say: Callable[[float], str]
) -> go.Figure:
    """Who computes with whose keys: shares of all pairs, queries down. ``words``: x, y; ``say``: a cell."""
    figure = go.Figure()
    figure.add_heatmap(
        x=list(names),
        y=list(names),
        z=[list(row) for row in shares],
        text=[[say(value) if value else "–" for value in row] for row in shares],
        texttemplate="%{text}",
        textfont={"size": 15, "color": palette.ink(st.context.theme.type)},
        colorscale=[[0, "rgba(0,114,178,0.04)"], [1, "rgba(0,114,178,0.5)"]],
        showscale=False,
        xgap=3,
        ygap=3,
        hovertemplate=words["y"] + " %{y}, " + words["x"] + " %{x}: %{z:.2f} %<extra></extra>",
    )
    frame(figure, height=150 + 58 * len(names), x=words["x"], y=words["y"])
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    figure.update_xaxes(type="category", showgrid=False)
    return figure


def overlap(
    names: Sequence[str],
    compute: Sequence[float],
    hidden: Sequence[float],
    exposed: Sequence[float],
    words: Mapping[str, str],
) -> go.Figure:
    """For each worker ms of arithmetic, and beside it ms of transfers, hidden and not. ``words``: y and the three."""
    figure = go.Figure()
    figure.add_bar(x=list(names), y=list(compute), name=words["compute"], offsetgroup="a", marker=_COMPUTE)
    figure.add_bar(
        x=list(names), y=list(hidden), name=words["hidden"], offsetgroup="b", marker={**_SEND, "opacity": 0.65}
    )
    figure.add_bar(
        x=list(names),
        y=list(exposed),
        base=list(hidden),
        name=words["exposed"],
        offsetgroup="b",
        marker={"color": palette.VERMILION},
    )
    figure.update_traces(hovertemplate="%{x}: %{y:.3g} ms<extra>%{fullData.name}</extra>")
    frame(figure, height=340, x="", y=words["y"])
    figure.update_layout(barmode="group")
    figure.update_xaxes(type="category")
    return figure


def devices(
    counts: Sequence[int], seconds: Sequence[float], fits: Sequence[bool], words: Mapping[str, str]
) -> go.Figure:
    """Modelled prefill over the number of devices, crossed out where memory does not suffice. ``words``: x, y, ..."""
    figure = go.Figure()
    for name, wanted, symbol in (("fits", True, "circle-open"), ("too_large", False, "x-thin-open")):
        mine = [i for i, fit in enumerate(fits) if fit == wanted]
        if mine:
            figure.add_scatter(
                x=[counts[i] for i in mine],
                y=[seconds[i] for i in mine],
                mode="markers+text",
                text=[f"{seconds[i]:.3g} s" for i in mine],
                textposition="top right",
                textfont={"size": 14},
                cliponaxis=False,
                name=words[name],
                marker={
                    "symbol": symbol,
                    "size": 14,
                    "color": palette.MODEL if wanted else palette.VERMILION,
                    "line": {"width": 3},
                },
                hovertemplate="%{x}: %{y:.3g} s<extra>" + words[name] + "</extra>",
            )
    frame(figure, height=340, x=words["x"], y=words["y"])
    figure.update_xaxes(type="log", tickvals=list(counts), ticktext=[str(n) for n in counts], range=[-0.1, 1.4])
    figure.update_yaxes(range=[0, 1.2 * max(seconds)])
    return figure
