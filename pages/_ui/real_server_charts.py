"""Figures of the real-server lesson: two sides under the same loads. Pure functions of plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pages._ui import palette
from pages._ui.charts import frame

_LOOKS = {"server": (palette.VERMILION, "square", "solid"), "ours": (palette.BLUE, "circle", "dash")}


@dataclass(frozen=True)
class SidePoint:
    """One load of one side. Times in ms, tokens per second of all requests together."""

    size: int
    tokens_per_s: float
    e2e_ms: float
    ttft_ms: float
    tpot_ms: float


Sides = Mapping[str, Sequence[SidePoint]]


def curve(sides: Sides, words: Mapping[str, str]) -> go.Figure:
    """Throughput to the right, latency upwards, one point per load. ``words``: server, ours, x, y."""
    figure = go.Figure()
    for side, points in sides.items():
        colour, symbol, dash = _LOOKS[side]
        figure.add_scatter(
            x=[p.tokens_per_s for p in points],
            y=[p.e2e_ms for p in points],
            mode="lines+markers+text",
            text=[f"{p.size}\u2002" if side == "server" else f"\u2002{p.size}" for p in points],
            textposition="top left" if side == "server" else "bottom right",  # the curves come close to each other
            textfont={"size": 14},
            name=words[side],
            line={"color": colour, "width": 2, "dash": dash},
            marker={"size": 12, "color": colour, "symbol": symbol},
            cliponaxis=False,
            hovertemplate="%{text}: %{x:.3g}, %{y:.4g} ms<extra>" + words[side] + "</extra>",
        )
    frame(figure, height=420, x=words["x"], y=words["y"])
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(rangemode="tozero")
    return figure


def over_size(sides: Sides, words: Mapping[str, str]) -> go.Figure:
    """TTFT above, TPOT below, over the number of requests. ``words``: server, ours, x, y_ttft, y_tpot."""
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.1)
    for side, points in sides.items():
        colour, symbol, dash = _LOOKS[side]
        for row, values in ((1, [p.ttft_ms for p in points]), (2, [p.tpot_ms for p in points])):
            figure.add_scatter(
                x=[p.size for p in points],
                y=values,
                mode="lines+markers",
                name=words[side],
                legendgroup=side,
                showlegend=row == 1,
                line={"color": colour, "width": 2, "dash": dash},
                marker={"size": 11, "color": colour, "symbol": symbol},
                cliponaxis=False,
                hovertemplate="%{x}: %{y:.4g} ms<extra>" + words[side] + "</extra>",
                row=row,
                col=1,
            )
    frame(figure, height=520, x=words["x"], y="")
    figure.update_xaxes(title_text="", row=1, col=1)
    figure.update_xaxes(tickvals=sorted({p.size for points in sides.values() for p in points}))
    figure.update_yaxes(title={"text": words["y_ttft"]}, rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title={"text": words["y_tpot"]}, rangemode="tozero", row=2, col=1)
    return figure


def gap_shares(gaps_ms: Mapping[str, Sequence[float]], words: Mapping[str, str]) -> go.Figure:
    """Which share of the gaps is at most so long, per side. ``words``: server, ours (or file), x, y."""
    figure = go.Figure()
    for side, gaps in gaps_ms.items():
        colour, _, dash = _LOOKS.get(side, _LOOKS["server"])
        ordered = sorted(gaps)
        figure.add_scatter(
            x=ordered,
            y=[100 * (index + 1) / len(ordered) for index in range(len(ordered))],
            mode="lines",
            name=words[side],
            line={"color": colour, "width": 3, "dash": dash, "shape": "hv"},
            hovertemplate="%{x:.4g} ms: %{y:.3g} %<extra>" + words[side] + "</extra>",
        )
    frame(figure, height=360, x=words["x"], y=words["y"])
    figure.update_yaxes(range=[0, 102])
    figure.update_xaxes(rangemode="tozero")
    return figure
