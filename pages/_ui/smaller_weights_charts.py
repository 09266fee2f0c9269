"""Figures of the lesson on smaller weights. Pure functions of plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pages._ui import palette
from pages._ui.charts import frame
from pages._ui.i18n import t

_ERRORS = {"int8": (palette.SKY, "circle", "dash"), "int4": (palette.VERMILION, "square", "solid")}


@dataclass(frozen=True)
class FormBars:
    """One form: what a decode step moves (MB) and takes (ms), alone and with many. Modelled is None without a roof."""

    name: str
    moved_mb: float
    one_ms: float
    one_low_ms: float
    one_high_ms: float
    modelled_ms: float | None
    many_ms: float
    many_modelled_ms: float | None


def bytes_and_times(forms: Sequence[FormBars], words: Mapping[str, str]) -> go.Figure:
    """Above, the bytes a step moves; below, the time it takes, one request and many. ``words``: one, many, modelled,
    y_bytes, y_ms."""
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.1, row_heights=[0.35, 0.65])
    names = [f.name for f in forms]
    figure.add_bar(
        x=names,
        y=[f.moved_mb for f in forms],
        marker={"color": palette.GREY},
        showlegend=False,
        hovertemplate="%{x}: %{y:.4g} MB<extra></extra>",
        row=1,
        col=1,
    )
    figure.add_bar(
        x=names,
        y=[f.one_ms for f in forms],
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [f.one_high_ms - f.one_ms for f in forms],
            "arrayminus": [f.one_ms - f.one_low_ms for f in forms],
        },
        name=words["one"],
        marker={"color": palette.DECODE},
        hovertemplate="%{x}: %{y:.4g} ms<extra>" + words["one"] + "</extra>",
        row=2,
        col=1,
    )
    figure.add_bar(
        x=names,
        y=[f.many_ms for f in forms],
        name=words["many"],
        marker={"color": palette.BLUE, "pattern": {"shape": palette.HATCH, "solidity": 0.25}},
        hovertemplate="%{x}: %{y:.4g} ms<extra>" + words["many"] + "</extra>",
        row=2,
        col=1,
    )
    if all(f.modelled_ms is not None for f in forms):
        figure.add_scatter(
            x=names,
            y=[f.modelled_ms for f in forms],
            mode="markers",
            name=words["modelled"],
            marker={"symbol": "diamond-open", "size": 14, "color": palette.MODEL, "line": {"width": 3}},
            hovertemplate="%{x}: %{y:.4g} ms<extra>" + words["modelled"] + "</extra>",
            row=2,
            col=1,
        )
    frame(figure, height=520, x="", y="")
    figure.update_layout(barmode="group")
    figure.update_xaxes(showticklabels=True)
    figure.update_yaxes(title={"text": words["y_bytes"]}, rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title={"text": words["y_ms"]}, rangemode="tozero", row=2, col=1)
    return figure


def errors(
    series: Mapping[str, Sequence[float]], parts: Mapping[str, int | None], words: Mapping[str, str]
) -> go.Figure:
    """The largest logit error at each token; a ring where the text leaves the other's.

    ``words``: x, y, parts. ``parts``: 0-based place by form, None where the texts are the same.
    """
    figure = go.Figure()
    for name, values in series.items():
        colour, symbol, dash = _ERRORS[name]
        figure.add_scatter(
            x=list(range(1, len(values) + 1)),
            y=list(values),
            mode="lines+markers",
            name=name,
            line={"color": colour, "width": 2, "dash": dash},
            marker={"size": 7, "color": colour, "symbol": symbol},
            hovertemplate="%{x}: %{y:.3g}<extra>" + name + "</extra>",
        )
        place = parts.get(name)
        if place is not None and place < len(values):
            figure.add_scatter(
                x=[place + 1],
                y=[values[place]],
                mode="markers",
                name=t("common.said_of", name=name, said=words["parts"]),
                marker={"symbol": f"{symbol}-open", "size": 20, "color": palette.MODEL, "line": {"width": 3}},
                hoverinfo="skip",
            )
    frame(figure, height=360, x=words["x"], y=words["y"])
    figure.update_yaxes(rangemode="tozero")
    return figure
