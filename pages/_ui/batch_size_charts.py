"""The figures of the batching lesson: time, throughput and utilization over the batch, and what the batch costs.

Pure functions of plain numbers; nothing is computed here but axes. Measured points are filled, modelled ones hollow on
a dashed line, limits dotted; padding is the grey hatch it is everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pages._ui import palette
from pages._ui.charts import frame

_DASHED = {"color": palette.MODEL, "width": 3, "dash": "dash"}
_HOLLOW = {"symbol": "circle-open", "size": 11, "color": palette.MODEL, "line": {"width": 2.5}}


@dataclass(frozen=True)
class Step:
    """One batch size: times in ms, rates in tokens/s. ``modelled_ms`` is None without measured ceilings."""

    size: int
    ms: float
    low_ms: float
    high_ms: float
    modelled_ms: float | None

    def rate(self, ms: float) -> float:
        """Tokens per second of all requests together. Pure."""
        return self.size / ms * 1e3


def time_and_throughput(steps: Sequence[Step], words: Mapping[str, str]) -> go.Figure:
    """Above, the time of a step over the batch; below, tokens per second, with the line of no cost at all.

    ``words``: measured, modelled, ideal, x, y_time, y_rate.
    """
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.1)
    sizes = [s.size for s in steps]
    spans = [(s.ms, s.low_ms, s.high_ms) for s in steps]
    _measured(figure, sizes, spans, words["measured"], 1)
    rates = [(s.rate(s.ms), s.rate(s.high_ms), s.rate(s.low_ms)) for s in steps]
    _measured(figure, sizes, rates, words["measured"], 2)
    modelled = [(s.size, s.modelled_ms, s.rate(s.modelled_ms)) for s in steps if s.modelled_ms]
    for row in (1, 2):
        if modelled:
            _modelled(figure, [m[0] for m in modelled], [m[row] for m in modelled], words["modelled"], row)
    ideal = [steps[0].rate(steps[0].ms) * size / sizes[0] for size in sizes]
    figure.add_scatter(
        x=sizes,
        y=ideal,
        mode="lines",
        name=words["ideal"],
        line={"color": palette.GREY, "width": 2, "dash": "dot"},
        hovertemplate="%{x}: %{y:.3g}<extra>" + words["ideal"] + "</extra>",
        row=2,
        col=1,
    )
    frame(figure, height=560, x="", y="")
    _size_axis(figure, sizes)
    figure.update_xaxes(title_text=words["x"], row=2, col=1)
    figure.update_xaxes(showticklabels=True, row=1, col=1)
    figure.update_yaxes(title_text=words["y_time"], rangemode="tozero", row=1, col=1)
    tops = [r[2] for r in rates] + [m[2] for m in modelled]
    figure.update_yaxes(title_text=words["y_rate"], range=[0, 1.15 * max(tops)], row=2, col=1)
    return figure


def _measured(figure: go.Figure, sizes: Sequence[int], spans: Sequence[tuple], name: str, row: int) -> None:
    figure.add_scatter(
        x=list(sizes),
        y=[value for value, _, _ in spans],
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [high - value for value, _, high in spans],
            "arrayminus": [value - low for value, low, _ in spans],
            "thickness": 1.5,
            "width": 4,
        },
        mode="lines+markers",
        name=name,
        showlegend=row == 1,
        line={"color": palette.DECODE, "width": 3},
        marker={"size": 11, "color": palette.DECODE},
        cliponaxis=False,
        hovertemplate="%{x}: %{y:.3g}<extra>" + name + "</extra>",
        row=row,
        col=1,
    )


def _modelled(figure: go.Figure, sizes: Sequence[int], values: Sequence[float], name: str, row: int) -> None:
    figure.add_scatter(
        x=list(sizes),
        y=list(values),
        mode="lines+markers",
        name=name,
        showlegend=row == 1,
        line=_DASHED,
        marker=_HOLLOW,
        cliponaxis=False,
        hovertemplate="%{x}: %{y:.3g}<extra>" + name + "</extra>",
        row=row,
        col=1,
    )


def _size_axis(figure: go.Figure, sizes: Sequence[int]) -> None:
    """Doublings stand at equal distances."""
    figure.update_xaxes(
        type="log",
        tickvals=list(sizes),
        ticktext=[str(size) for size in sizes],
        range=[math.log10(min(sizes) / 1.25), math.log10(max(sizes) * 1.25)],
    )


def utilization(
    sizes: Sequence[int], measured: Sequence[float], modelled: Sequence[float], words: Mapping[str, str]
) -> go.Figure:
    """Share of the arithmetic ceiling in per cent: measured bars, and beside each what the roofline allows, hollow.

    ``words``: measured, modelled, x, y.
    """
    figure = go.Figure()
    names = [str(size) for size in sizes]
    looks = (
        (words["measured"], measured, {"color": palette.DECODE}),
        (words["modelled"], modelled, {"color": "rgba(0,0,0,0)", "line": {"color": palette.MODEL, "width": 2.5}}),
    )
    for name, values, look in looks:
        figure.add_bar(
            x=names,
            y=list(values),
            name=name,
            marker=look,
            hovertemplate="%{x}: %{y:.3g} %<extra>" + name + "</extra>",
        )
    figure.data[0].update(
        text=[f"{value:.2g}" if value < 10 else f"{value:.0f}" for value in measured],
        textposition="outside",
        textfont={"size": 14},
        textangle=0,
        cliponaxis=False,
    )
    frame(figure, height=350, x=words["x"], y=words["y"])
    figure.update_layout(barmode="group", bargap=0.2)
    figure.update_xaxes(type="category")
    figure.update_yaxes(range=[0, max(112.0, 1.1 * max(measured))])
    return figure


def memory(
    sizes: Sequence[int], reserved_mb: Sequence[float], filled_mb: Sequence[float], words: Mapping[str, str]
) -> go.Figure:
    """KV memory at the fullest: what held something, and above it the unused ends of last blocks.

    ``words``: filled, unused, x, y.
    """
    figure = go.Figure()
    names = [str(size) for size in sizes]
    unused = [whole - part for whole, part in zip(reserved_mb, filled_mb, strict=True)]
    figure.add_bar(
        x=names,
        y=list(filled_mb),
        name=words["filled"],
        marker={"color": palette.DECODE},
        hovertemplate="%{x}: %{y:.3g} MB<extra>" + words["filled"] + "</extra>",
    )
    figure.add_bar(
        x=names,
        y=unused,
        name=words["unused"],
        marker=_hatched(palette.GREY),
        hovertemplate="%{x}: %{y:.3g} MB<extra>" + words["unused"] + "</extra>",
    )
    frame(figure, height=330, x=words["x"], y=words["y"])
    figure.update_layout(barmode="stack")
    figure.update_xaxes(type="category")
    return figure


def rows_per_step(useful: Sequence[int], padding: Sequence[int], words: Mapping[str, str]) -> go.Figure:
    """The rows of each decode step of one batch: tokens somebody wanted, and padding above them.

    ``words``: useful, padding, x, y.
    """
    figure = go.Figure()
    numbers = list(range(1, len(useful) + 1))
    figure.add_bar(
        x=numbers,
        y=list(useful),
        name=words["useful"],
        marker={"color": palette.DECODE},
        hovertemplate="%{x}: %{y}<extra>" + words["useful"] + "</extra>",
    )
    figure.add_bar(
        x=numbers,
        y=list(padding),
        name=words["padding"],
        marker=_hatched(palette.PADDING),
        hovertemplate="%{x}: %{y}<extra>" + words["padding"] + "</extra>",
    )
    frame(figure, height=300, x=words["x"], y=words["y"])
    figure.update_layout(barmode="stack", bargap=0.1)
    return figure


def _hatched(colour: str) -> dict:
    return {
        "color": colour,
        "line": {"color": colour, "width": 1},
        "pattern": {"shape": palette.HATCH, "fillmode": "replace", "fgcolor": colour, "solidity": 0.35},
    }


@dataclass(frozen=True)
class Limit:
    """A batch size at which something ends, with its words."""

    size: int
    text: str


def modelled_throughput(
    sizes: Sequence[int], rates: Sequence[float], limits: Sequence[Limit], words: Mapping[str, str]
) -> go.Figure:
    """Tokens per second over the batch on another device, all modelled, on logarithmic axes. ``words``: name, x, y."""
    figure = go.Figure()
    figure.add_scatter(
        x=list(sizes),
        y=list(rates),
        mode="lines+markers",
        name=words["name"],
        line=_DASHED,
        marker=_HOLLOW,
        hovertemplate="%{x}: %{y:,.3g}<extra>" + words["name"] + "</extra>",
    )
    for index, limit in enumerate(limits):
        figure.add_vline(x=limit.size, line={"color": palette.VERMILION, "width": 2, "dash": "dot"})
        figure.add_annotation(
            x=math.log10(limit.size),
            y=0.06 + 0.1 * index,
            yref="paper",
            text=limit.text,
            showarrow=False,
            xanchor="left" if limit.size < sizes[len(sizes) // 2] else "right",
            xshift=6 if limit.size < sizes[len(sizes) // 2] else -6,
            font={"size": 14},
        )
    frame(figure, height=380, x=words["x"], y=words["y"])
    _size_axis(figure, sizes)
    low, high = math.floor(math.log10(min(rates))), math.ceil(math.log10(max(rates)))
    ticks = [step * 10.0**power for power in range(low, high + 1) for step in (1, 3)]
    figure.update_yaxes(
        type="log",
        range=[math.log10(min(rates) / 1.6), math.log10(max(rates) * 1.6)],
        tickvals=ticks,
        ticktext=[f"{tick:,.10g}" for tick in ticks],
    )
    return figure
