"""The figures of the chunked-prefill lesson: gaps over time, and the trade-off curve.

Pure functions of plain numbers; nothing is computed here but axes. Measured points are filled, modelled ones hollow on
a dashed line; the usual gap is dotted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from pages._ui import palette
from pages._ui.charts import frame

_LOOKS = (
    {"line": {"color": palette.GREY, "width": 2, "dash": "dot"}, "marker": {"size": 5, "symbol": "circle"}},
    {"line": {"color": palette.VERMILION, "width": 2}, "marker": {"size": 9, "symbol": "square"}},
    {"line": {"color": palette.BLUE, "width": 2}, "marker": {"size": 8, "symbol": "diamond"}},
)


@dataclass(frozen=True)
class GapLine:
    """One request's gaps: when each token came out (ms), and how long it had been waited for (ms)."""

    name: str
    t_ms: Sequence[float]
    gap_ms: Sequence[float]


def gaps(lines: Sequence[GapLine], arrival_ms: float, words: Mapping[str, str]) -> go.Figure:
    """Up to three lines, each with its own mark. ``words``: x, y, arrival."""
    figure = go.Figure()
    for line, look in zip(lines, _LOOKS, strict=False):
        figure.add_scatter(
            x=list(line.t_ms),
            y=list(line.gap_ms),
            mode="lines+markers",
            name=line.name,
            line_shape="vh",  # level for as long as the wait lasted
            cliponaxis=False,
            hovertemplate="%{x:.0f} ms: %{y:.3g} ms<extra>" + line.name + "</extra>",
            **look,
        )
    figure.add_vline(x=arrival_ms, line={"color": palette.GREY, "width": 2, "dash": "dash"})
    figure.add_annotation(
        x=arrival_ms, y=1, yref="paper", yanchor="top", xanchor="left", text=words["arrival"], showarrow=False,
        xshift=6, font={"size": 14},
    )  # fmt: skip
    frame(figure, height=380, x=words["x"], y=words["y"])
    highest = max((gap for line in lines for gap in line.gap_ms), default=1.0)
    figure.update_yaxes(range=[0, 1.2 * highest])  # the annotation stands above every line
    return figure


@dataclass(frozen=True)
class TradePoint:
    """One way to serve the long prompt. Modelled values are None without measured ceilings."""

    label: str
    ttft_ms: float
    gap_ms: float
    modelled_ttft_ms: float | None
    modelled_gap_ms: float | None


def trade_off(points: Sequence[TradePoint], usual_ms: float, chosen: int | None, words: Mapping[str, str]) -> go.Figure:
    """The others' worst gap over the long prompt's TTFT. ``words``: measured, modelled, usual, chosen, x, y."""
    figure = go.Figure()
    figure.add_scatter(
        x=[p.ttft_ms for p in points],
        y=[p.gap_ms for p in points],
        mode="lines+markers+text",
        text=[p.label for p in points],
        textposition="top right",
        textfont={"size": 14},
        name=words["measured"],
        line={"color": palette.DECODE, "width": 3},
        marker={"size": 12, "color": palette.DECODE},
        cliponaxis=False,
        hovertemplate="%{text}: %{x:.3g} ms, %{y:.3g} ms<extra></extra>",
    )
    modelled = [p for p in points if p.modelled_gap_ms is not None and p.modelled_ttft_ms is not None]
    if modelled:
        figure.add_scatter(
            x=[p.modelled_ttft_ms for p in modelled],
            y=[p.modelled_gap_ms for p in modelled],
            mode="lines+markers",
            name=words["modelled"],
            line={"color": palette.MODEL, "width": 3, "dash": "dash"},
            marker={"symbol": "circle-open", "size": 11, "color": palette.MODEL, "line": {"width": 2.5}},
            text=[p.label for p in modelled],
            cliponaxis=False,
            hovertemplate="%{text}: %{x:.3g} ms, %{y:.3g} ms<extra>" + words["modelled"] + "</extra>",
        )
    if chosen is not None:
        figure.add_scatter(
            x=[points[chosen].ttft_ms],
            y=[points[chosen].gap_ms],
            mode="markers",
            name=words["chosen"],
            marker={"symbol": "circle-open", "size": 24, "color": palette.VERMILION, "line": {"width": 3}},
            hoverinfo="skip",
            cliponaxis=False,
        )
    everything = [p.ttft_ms for p in points] + [p.modelled_ttft_ms for p in modelled]
    low, high = min(everything), max(everything)
    margin = 0.14 * max(high - low, 0.1 * high)
    figure.add_scatter(
        x=[low - margin, high + margin],
        y=[usual_ms, usual_ms],
        mode="lines",
        name=words["usual"],
        line={"color": palette.GREY, "width": 2, "dash": "dot"},
        hoverinfo="skip",
    )
    frame(figure, height=430, x=words["x"], y=words["y"])
    figure.update_xaxes(range=[low - margin, high + 1.6 * margin])
    figure.update_yaxes(range=[0, 1.14 * max(p.gap_ms for p in points)])  # room for the label of the highest
    return figure
