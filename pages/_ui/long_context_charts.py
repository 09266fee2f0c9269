"""Figures of the long-context lesson. Pure functions of plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pages._ui import palette
from pages._ui.charts import frame

_TICKS_GB = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1_000, 3_000)  # the usual ones of a logarithmic axis crowd each other


@dataclass(frozen=True)
class KindBars:
    """One kind of keys and values: bytes per token (kB), requests at once measured and by the formula."""

    name: str
    kb_per_token: float
    at_once: int
    modelled: int


def room(kinds: Sequence[KindBars], words: Mapping[str, str]) -> go.Figure:
    """Above, what a token takes; below, how many requests ran at once. ``words``: measured, modelled, y_kb, y_n."""
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.12, row_heights=[0.4, 0.6])
    names = [k.name for k in kinds]
    figure.add_bar(
        x=names,
        y=[k.kb_per_token for k in kinds],
        text=[f"{k.kb_per_token:.3g}" for k in kinds],
        textposition="outside",
        cliponaxis=False,
        marker={"color": palette.GREY},
        showlegend=False,
        hovertemplate="%{x}: %{y:.4g} kB<extra></extra>",
        row=1,
        col=1,
    )
    figure.add_bar(
        x=names,
        y=[k.at_once for k in kinds],
        name=words["measured"],
        marker={"color": palette.BLUE},
        hovertemplate="%{x}: %{y}<extra>" + words["measured"] + "</extra>",
        row=2,
        col=1,
    )
    figure.add_scatter(
        x=names,
        y=[k.modelled for k in kinds],
        mode="markers",
        name=words["modelled"],
        marker={"symbol": "diamond-open", "size": 14, "color": palette.MODEL, "line": {"width": 3}},
        hovertemplate="%{x}: %{y}<extra>" + words["modelled"] + "</extra>",
        row=2,
        col=1,
    )
    _counts(figure, kinds)
    frame(figure, height=520, x="", y="")
    figure.update_xaxes(showticklabels=True)
    figure.update_yaxes(
        title={"text": words["y_kb"]}, range=[0, 1.2 * max(k.kb_per_token for k in kinds)], row=1, col=1
    )
    tallest = max(max(k.at_once, k.modelled) for k in kinds)
    figure.update_yaxes(title={"text": words["y_n"]}, range=[0, 1.25 * tallest], row=2, col=1)
    return figure


def _counts(figure: go.Figure, kinds: Sequence[KindBars]) -> None:
    """The measured number over each bar, clear of the modelled mark, which is at the bar's end when the two agree."""
    figure.add_scatter(
        x=[k.name for k in kinds],
        y=[max(k.at_once, k.modelled) for k in kinds],
        mode="markers+text",
        text=[str(k.at_once) for k in kinds],
        textposition="top center",
        marker={"size": 18, "opacity": 0},
        cliponaxis=False,
        hoverinfo="skip",
        showlegend=False,
        row=2,
        col=1,
    )


def long_memory(
    sizes_gb: Mapping[str, Sequence[float]],
    names: Sequence[str],
    weights_gb: float,
    memory_gb: float,
    words: Mapping[str, str],
) -> go.Figure:
    """KV memory of one long request per kind of heads, grouped by bits; lines for the weights and the card.

    ``sizes_gb``: label of the bits -> GB in the order of ``names``. ``words``: weights, memory, y.
    """
    figure = go.Figure()
    looks = ((palette.BLUE, ""), (palette.SKY, "/"), (palette.ORANGE, "x"))
    for (label, values), (colour, shape) in zip(sizes_gb.items(), looks, strict=True):
        figure.add_bar(
            x=list(names),
            y=list(values),
            name=label,
            marker={"color": colour, "pattern": {"shape": shape, "solidity": 0.2}},
            hovertemplate="%{x}: %{y:.4g} GB<extra>" + label + "</extra>",
        )
    for value, name, dash, colour in (
        (weights_gb, words["weights"], "dot", palette.GREY),
        (memory_gb, words["memory"], "dash", palette.VERMILION),
    ):
        figure.add_scatter(
            x=list(names),
            y=[value] * len(names),
            mode="lines",
            name=name,
            line={"color": colour, "width": 3, "dash": dash},
            hovertemplate="%{y:.4g} GB<extra>" + name + "</extra>",
        )
    frame(figure, height=460, x="", y=words["y"])
    figure.update_layout(barmode="group")
    figure.update_yaxes(type="log", tickmode="array", tickvals=_TICKS_GB, ticktext=[f"{gb:,g}" for gb in _TICKS_GB])
    return figure
