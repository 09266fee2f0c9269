"""The figures of the roofline lesson: points under a roof, and the ridge points of many devices on one line.

Pure functions of plain numbers; nothing is computed here but axes. Ceilings are lines (solid where measured, dashed
where a datasheet says so), measured points are filled, modelled ones hollow, catalogue values crosses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
import streamlit as st

from pages._ui import palette
from pages._ui.charts import frame

_SYMBOL = {"prefill": "circle", "decode": "square"}
_COLOUR = {"prefill": palette.PREFILL, "decode": palette.DECODE}
_SLOPE_PLACE = {"prefill": "middle left", "decode": "middle right"}  # error bars go up and down
_FLAT_PLACE = {"prefill": "bottom right", "decode": "bottom center"}  # beside them runs the roof, and the next point
_BARE_PLACE = ("bottom right", "top left")  # by series: two roofs share their slope


@dataclass(frozen=True)
class Mark:
    """One step. ``x`` FLOP/byte, rates in TFLOP/s; ``y`` None if not measured, ``modelled`` None without a roof."""

    kind: str  # prefill | decode
    label: str
    x: float
    y: float | None = None
    low: float | None = None
    high: float | None = None
    modelled: float | None = None


@dataclass(frozen=True)
class Roof:
    """Two ceilings and where they meet. ``spec``: from a datasheet."""

    name: str
    gbps: float
    tflops: float
    spec: bool = False
    colour: str | None = None

    @property
    def ridge(self) -> float:
        return self.tflops * 1e3 / self.gbps

    def at(self, x: float) -> float:
        """The attainable rate in TFLOP/s. Pure."""
        return min(self.tflops, self.gbps * x / 1e3)


def roofline(
    series: Mapping[str, Sequence[Mark]], roofs: Sequence[Roof], words: Mapping[str, str], ridge_words: Sequence[str]
) -> go.Figure:
    """Points under roofs on logarithmic axes. ``series``: name of the modelled points -> marks, in order of ``roofs``.

    ``words``: prefill, decode, x, y_tera, y_giga. ``ridge_words``: what is said of each roof's corner.
    """
    marks = [mark for group in series.values() for mark in group]
    rates = [v for m in marks for v in (m.y, m.modelled) if v] + [roof.tflops for roof in roofs]
    unit, y_title = (1.0, words["y_tera"]) if max(rates) >= 1 else (1e3, words["y_giga"])
    xs = [m.x for m in marks] + [roof.ridge for roof in roofs]
    low, high = min(xs) / 2, max(xs) * 3
    figure = go.Figure()
    for roof, text in zip(roofs, ridge_words, strict=True):
        _roof(figure, roof, low, high, unit, text)
    for index, (name, group) in enumerate(series.items()):
        colour = (roofs[index].colour if index < len(roofs) else None) or palette.MODEL
        for kind in ("prefill", "decode"):
            chosen = [m for m in group if m.kind == kind]
            _modelled(figure, chosen, name, unit, colour, _BARE_PLACE[index % 2])
            _measured(figure, chosen, words[kind], unit, roofs[index].ridge if index < len(roofs) else math.inf)
    frame(figure, height=480, x=words["x"], y=y_title)
    bottom = min(min(rates), *(roof.at(low) for roof in roofs)) if roofs else min(rates)
    _log_axis(figure.update_xaxes, low, high)
    _log_axis(figure.update_yaxes, bottom * unit / 2, max(rates) * unit * 3)
    return figure


def _roof(figure: go.Figure, roof: Roof, low: float, high: float, unit: float, text: str) -> None:
    ink = roof.colour or palette.ink(st.context.theme.type)
    dash = "dash" if roof.spec else "solid"
    x = [low, roof.ridge, high] if low < roof.ridge < high else [low, high]
    figure.add_scatter(
        x=x,
        y=[roof.at(v) * unit for v in x],
        mode="lines",
        name=f"{roof.name} · {text}" if roof.spec else roof.name,
        line={"color": ink, "width": 3, "dash": dash},
        hoverinfo="skip",
    )
    if not low < roof.ridge < high:
        return
    if roof.spec:  # a value of the catalogue is a cross; its words are in the legend, for two roofs crowd the corner
        figure.add_scatter(
            x=[roof.ridge],
            y=[roof.tflops * unit],
            mode="markers",
            marker={"symbol": "x", "size": 13, "color": ink},
            hovertemplate=f"{text}<extra>{roof.name}</extra>",
            showlegend=False,
        )
        return
    figure.add_annotation(
        x=math.log10(roof.ridge),
        y=math.log10(roof.tflops * unit),
        text=text,
        showarrow=False,
        xanchor="center",
        yanchor="bottom",
        yshift=8,
        font={"size": 14},
    )


def _measured(figure: go.Figure, marks: Sequence[Mark], name: str, unit: float, ridge: float) -> None:
    marks = [m for m in marks if m.y is not None]
    if not marks:
        return
    kind = marks[0].kind
    figure.add_scatter(
        x=[m.x for m in marks],
        y=[m.y * unit for m in marks],
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [((m.high or m.y) - m.y) * unit for m in marks],
            "arrayminus": [(m.y - (m.low or m.y)) * unit for m in marks],
            "thickness": 1.5,
            "width": 4,
        },
        mode="markers+text",
        text=[m.label for m in marks],
        textposition=[_place(m, ridge) for m in marks],
        textfont={"size": 14},
        name=name,
        marker={"symbol": _SYMBOL[kind], "size": 12, "color": _COLOUR[kind]},
        cliponaxis=False,
        hovertemplate="%{text}: %{x:.3g} FLOP/byte, %{y:.3g}<extra>" + name + "</extra>",
    )


def _place(mark: Mark, ridge: float) -> str:
    """Where a label is clear of the roof: below it, or, for a point that lies above, on its other side. Pure."""
    if mark.modelled is not None and mark.y > mark.modelled:
        return "top center" if mark.x >= ridge else "middle left"
    return (_SLOPE_PLACE if mark.x < ridge else _FLAT_PLACE)[mark.kind]


def _modelled(figure: go.Figure, marks: Sequence[Mark], name: str, unit: float, colour: str, place: str) -> None:
    """Hollow points on the roof. They carry their labels only where no measured point below them does."""
    marks = [m for m in marks if m.modelled is not None]
    if not marks:
        return
    kind = marks[0].kind
    bare = all(m.y is None for m in marks)
    figure.add_scatter(
        x=[m.x for m in marks],
        y=[m.modelled * unit for m in marks],
        mode="markers+text" if bare else "markers",
        text=[m.label for m in marks],
        textposition=place,
        textfont={"size": 13},
        name=name,
        legendgroup=name,
        showlegend=kind == "decode",
        marker={"symbol": f"{_SYMBOL[kind]}-open", "size": 12, "color": colour, "line": {"width": 2.5}},
        cliponaxis=False,
        hovertemplate="%{text}: %{x:.3g} FLOP/byte, %{y:.3g}<extra>" + name + "</extra>",
    )


@dataclass(frozen=True)
class Ridge:
    """A ridge point. ``kind``: here (measured), vector, matrix."""

    device: str
    kind: str
    value: float


def ridges(rows: Sequence[Ridge], words: Mapping[str, str], claimed: float, claimed_word: str) -> go.Figure:
    """Ridge points of devices, one line each. ``words``: here, vector, matrix, x."""
    looks = {
        "here": ("circle", palette.VERMILION),
        "vector": ("x", palette.SKY),
        "matrix": ("cross", palette.PURPLE),
    }
    figure = go.Figure()
    for kind, (symbol, colour) in looks.items():
        chosen = [r for r in rows if r.kind == kind]
        if chosen:
            figure.add_scatter(
                x=[r.value for r in chosen],
                y=[r.device for r in chosen],
                mode="markers",
                name=words[kind],
                marker={"symbol": symbol, "size": 12, "color": colour},
                hovertemplate="%{y}: %{x:.3g} FLOP/byte<extra>" + words[kind] + "</extra>",
            )
    devices = list(dict.fromkeys(r.device for r in rows))
    figure.add_scatter(
        x=[claimed] * 2,
        y=[devices[0], devices[-1]],
        mode="lines",
        name=claimed_word,
        line={"color": palette.GREY, "width": 2, "dash": "dot"},
        hoverinfo="skip",
    )
    frame(figure, height=110 + 24 * len(devices), x=words["x"], y="")
    values = [r.value for r in rows] + [claimed]
    _log_axis(figure.update_xaxes, min(values) / 1.5, max(values) * 1.5)
    figure.update_yaxes(categoryorder="array", categoryarray=devices[::-1], type="category", tickfont={"size": 13})
    return figure


def _log_axis(update, low: float, high: float) -> None:
    """Decades where there is room for few labels, 1-2-5 where the span is short."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1,) if last - first > 3 else (1, 3) if last - first > 2 else (1, 2, 5)
    ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    ticks = [tick for tick in ticks if low <= tick <= high]
    update(
        type="log",
        range=[math.log10(low), math.log10(high)],
        tickvals=ticks,
        ticktext=[f"{tick:,.10g}" for tick in ticks],
    )
