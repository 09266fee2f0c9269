"""The figures of the metrics lesson: lifelines, gaps, the throughput-latency curve, the sweep over load, goodput.

Pure functions of plain numbers; nothing is computed here but axes. Waiting is hollow, prefill blue, decode orange with
a tick per token; measured points are filled, modelled ones hollow or dashed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
import streamlit as st
from plotly.subplots import make_subplots

from pages._ui import palette
from pages._ui.charts import frame


@dataclass(frozen=True)
class Lifeline:
    """One request, in ms from its arrival. ``token_ms``: when each token came out."""

    name: str
    queue_ms: float
    token_ms: Sequence[float]

    @property
    def ttft_ms(self) -> float:
        return self.token_ms[0]

    @property
    def gaps_ms(self) -> list[float]:
        return [b - a for a, b in zip(self.token_ms, self.token_ms[1:], strict=False)]


def lifelines(lines: Sequence[Lifeline], words: Mapping[str, str]) -> go.Figure:
    """Each request's life as a bar: waiting, prefill, decode. ``words``: queue, prefill, decode, x, ttft, e2e."""
    ink = palette.ink(st.context.theme.type)
    figure = go.Figure()
    names = [line.name for line in lines]
    parts = (
        ("queue", [0.0] * len(lines), [x.queue_ms for x in lines], {"color": "rgba(0,0,0,0)", "line": _outline(ink)}),
        ("prefill", [x.queue_ms for x in lines], [x.ttft_ms - x.queue_ms for x in lines], {"color": palette.PREFILL}),
        ("decode", [x.ttft_ms for x in lines], [x.token_ms[-1] - x.ttft_ms for x in lines], {"color": palette.DECODE}),
    )
    for name, base, width, marker in parts:
        figure.add_bar(
            x=width,
            y=names,
            base=base,
            orientation="h",
            name=words[name],
            marker=marker,
            width=0.5,
            hovertemplate="%{y}: %{x:.3g} ms<extra>" + words[name] + "</extra>",
        )
    figure.add_scatter(
        x=[t for line in lines for t in line.token_ms],
        y=[line.name for line in lines for _ in line.token_ms],
        mode="markers",
        marker={"symbol": "line-ns", "size": 22, "line": {"width": 1.5, "color": ink}},
        hoverinfo="skip",
        showlegend=False,
    )
    for line in lines:
        for at, text, shift in ((line.ttft_ms, words["ttft"], -40), (line.token_ms[-1], words["e2e"], 40)):
            figure.add_annotation(
                x=at, y=line.name, text=text, showarrow=False, yshift=shift, xanchor="center", font={"size": 14}
            )
    frame(figure, height=150 + 100 * len(lines), x=words["x"], y="")
    figure.update_layout(barmode="overlay")
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_xaxes(rangemode="tozero")
    return figure


def _outline(ink: str) -> dict[str, object]:
    return {"color": ink, "width": 1.5}


def gaps(lines: Sequence[Lifeline], words: Mapping[str, str]) -> go.Figure:
    """The gap before each token of two requests, with the mean of each. ``words``: x, y, mean."""
    figure = go.Figure()
    looks = ((palette.SKY, "circle", "dash"), (palette.DECODE, "square", "dot"))
    for line, (colour, symbol, dash) in zip(lines, looks, strict=False):
        numbers = list(range(2, len(line.gaps_ms) + 2))
        figure.add_scatter(
            x=numbers,
            y=line.gaps_ms,
            mode="lines+markers",
            name=line.name,
            line={"color": colour, "width": 2},
            marker={"symbol": symbol, "size": 9, "color": colour},
            hovertemplate="%{x}: %{y:.3g} ms<extra>" + line.name + "</extra>",
        )
        mean = sum(line.gaps_ms) / len(line.gaps_ms)
        figure.add_scatter(
            x=[numbers[0], numbers[-1]],
            y=[mean, mean],
            mode="lines",
            name=f"{words['mean']} · {line.name}",
            line={"color": colour, "width": 3, "dash": dash},
            hovertemplate="%{y:.3g} ms<extra>" + words["mean"] + "</extra>",
        )
    frame(figure, height=340, x=words["x"], y=words["y"])
    figure.update_yaxes(rangemode="tozero")
    return figure


@dataclass(frozen=True)
class LoadPoint:
    """One load. Rates per second, times in ms; ``goodput`` requests per second within the objective."""

    label: str
    offered_rps: float
    requests_per_s: float
    tokens_per_s: float
    ttft_ms: float
    tpot_ms: float
    e2e_ms: float
    modelled_rps: float
    modelled_ttft_ms: float
    goodput_rps: float


def curve(
    points: Sequence[LoadPoint], knee: int | None, capacity_tps: float | None, words: Mapping[str, str]
) -> go.Figure:
    """Throughput to the right, latency upwards, one point per load. ``words``: measured, knee, capacity, x, y."""
    figure = go.Figure()
    if capacity_tps:
        top = max(p.e2e_ms for p in points) * 1.1
        figure.add_scatter(
            x=[capacity_tps, capacity_tps],
            y=[0, top],
            mode="lines",
            name=words["capacity"],
            line={"color": palette.MODEL, "width": 3, "dash": "dash"},
            hovertemplate="%{x:.3g}<extra>" + words["capacity"] + "</extra>",
        )
    figure.add_scatter(
        x=[p.tokens_per_s for p in points],
        y=[p.e2e_ms for p in points],
        mode="lines+markers+text",
        text=[f"{p.label}\u2002" for p in points],  # a space, so that the ring of the knee does not touch it
        textposition="top left",
        textfont={"size": 14},
        name=words["measured"],
        line={"color": palette.BLUE, "width": 2},
        marker={"size": 12, "color": palette.BLUE},
        cliponaxis=False,
        hovertemplate="%{text}: %{x:.3g}, %{y:.4g} ms<extra>" + words["measured"] + "</extra>",
    )
    if knee is not None:
        figure.add_scatter(
            x=[points[knee].tokens_per_s],
            y=[points[knee].e2e_ms],
            mode="markers",
            name=words["knee"],
            marker={"symbol": "circle-open", "size": 26, "color": palette.VERMILION, "line": {"width": 3}},
            hoverinfo="skip",
        )
    frame(figure, height=420, x=words["x"], y=words["y"])
    figure.update_xaxes(range=[0, max([capacity_tps or 0.0, *(p.tokens_per_s for p in points)]) * 1.12])
    figure.update_yaxes(rangemode="tozero")
    return figure


def over_load(points: Sequence[LoadPoint], capacity_rps: float, words: Mapping[str, str]) -> go.Figure:
    """Above, throughput over the load with what a plain queue would do; below, TTFT and TPOT on a logarithmic axis.

    ``words``: throughput, ttft, tpot, modelled, modelled_ttft, x, y_rate, y_ms.
    """
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.1)
    offered = [p.offered_rps for p in points]
    end = max(offered) * 1.08
    figure.add_scatter(
        x=[0, capacity_rps, max(end, capacity_rps)],
        y=[0, capacity_rps, capacity_rps],
        mode="lines",
        name=words["modelled"],
        line={"color": palette.MODEL, "width": 3, "dash": "dash"},
        hovertemplate="%{x:.3g}: %{y:.3g}<extra>" + words["modelled"] + "</extra>",
        row=1,
        col=1,
    )
    series = (
        ("throughput", [p.requests_per_s for p in points], palette.BLUE, "circle", 1),
        ("ttft", [p.ttft_ms for p in points], palette.BLUE, "diamond", 2),
        ("tpot", [p.tpot_ms for p in points], palette.DECODE, "square", 2),
    )
    for name, values, colour, symbol, row in series:
        figure.add_scatter(
            x=offered,
            y=values,
            mode="lines+markers",
            name=words[name],
            line={"color": colour, "width": 2},
            marker={"symbol": symbol, "size": 11, "color": colour},
            hovertemplate="%{x:.3g}: %{y:.4g}<extra>" + words[name] + "</extra>",
            row=row,
            col=1,
        )
    figure.add_scatter(
        x=offered,
        y=[p.modelled_ttft_ms for p in points],
        mode="markers",
        name=words["modelled_ttft"],
        marker={"symbol": "diamond-open", "size": 13, "color": palette.MODEL, "line": {"width": 2.5}},
        hovertemplate="%{x:.3g}: %{y:.4g} ms<extra>" + words["modelled_ttft"] + "</extra>",
        row=2,
        col=1,
    )
    frame(figure, height=560, x=words["x"], y="")
    figure.update_xaxes(title_text="", row=1, col=1)
    figure.update_xaxes(range=[0, end])
    figure.update_yaxes(title={"text": words["y_rate"]}, rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title={"text": words["y_ms"]}, type="log", dtick=1, row=2, col=1)
    return figure


def goodput(points: Sequence[LoadPoint], best: int | None, words: Mapping[str, str]) -> go.Figure:
    """Requests per second finished, and those of them within the objective. ``words``: all, good, best, x, y."""
    figure = go.Figure()
    offered = [p.offered_rps for p in points]
    for name, values, colour, symbol, dash in (
        ("all", [p.requests_per_s for p in points], palette.GREY, "circle", "dot"),
        ("good", [p.goodput_rps for p in points], palette.GREEN, "square", "solid"),
    ):
        figure.add_scatter(
            x=offered,
            y=values,
            mode="lines+markers",
            name=words[name],
            line={"color": colour, "width": 3, "dash": dash},
            marker={"symbol": symbol, "size": 11, "color": colour},
            cliponaxis=False,
            hovertemplate="%{x:.3g}: %{y:.3g}<extra>" + words[name] + "</extra>",
        )
    if best is not None:
        figure.add_scatter(
            x=[offered[best]],
            y=[points[best].goodput_rps],
            mode="markers",
            name=words["best"],
            marker={"symbol": "square-open", "size": 24, "color": palette.VERMILION, "line": {"width": 3}},
            hoverinfo="skip",
        )
    frame(figure, height=340, x=words["x"], y=words["y"])
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(range=[0, max(offered) * 1.08])
    return figure
