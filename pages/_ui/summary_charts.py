"""The figure of the last run: what each step took beside the least it could take, and the KV blocks that filled.

A pure function of plain numbers; nothing is computed here but axes. Measured is filled, modelled dashed and hollow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pages._ui import palette
from pages._ui.charts import frame
from pages._ui.roofline_charts import _log_axis as log_axis

_LOOKS = {"prefill": (palette.PREFILL, "circle"), "decode": (palette.DECODE, "square")}


@dataclass(frozen=True)
class StepBar:
    """One step. ``kind``: prefill (or mixed) or decode. ``modelled_ms`` is None without measured ceilings."""

    step: int
    kind: str
    ms: float
    modelled_ms: float | None
    blocks: int


def steps(bars: Sequence[StepBar], modelled_blocks: int, words: Mapping[str, str]) -> go.Figure:
    """Above, the time of every step; below, the blocks in use after it and what the formula says for the fullest.

    The times stand on a logarithmic axis: a prompt takes many times as long as a token.
    ``words``: prefill, decode, modelled, blocks, formula, x, y_time, y_blocks.
    """
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.1, row_heights=[0.58, 0.42])
    for kind, (colour, symbol) in _LOOKS.items():
        chosen = [bar for bar in bars if bar.kind == kind]
        if chosen:
            figure.add_scatter(
                x=[bar.step for bar in chosen],
                y=[bar.ms for bar in chosen],
                mode="markers",
                name=words[kind],
                marker={"color": colour, "symbol": symbol, "size": 9},
                hovertemplate="%{x}: %{y:.3g} ms<extra>" + words[kind] + "</extra>",
                row=1,
                col=1,
            )
    modelled = [bar for bar in bars if bar.modelled_ms is not None]
    if modelled:
        figure.add_scatter(
            x=[bar.step for bar in modelled],
            y=[bar.modelled_ms for bar in modelled],
            mode="lines+markers",
            name=words["modelled"],
            line={"color": palette.MODEL, "width": 2, "dash": "dash"},
            marker={"symbol": "circle-open", "size": 6, "color": palette.MODEL, "line": {"width": 2}},
            hovertemplate="%{x}: %{y:.3g} ms<extra>" + words["modelled"] + "</extra>",
            row=1,
            col=1,
        )
    figure.add_scatter(
        x=[bar.step for bar in bars],
        y=[bar.blocks for bar in bars],
        mode="lines",
        fill="tozeroy",
        name=words["blocks"],
        line={"shape": "hv", "color": palette.SKY, "width": 2.5},
        hovertemplate="%{x}: %{y}<extra>" + words["blocks"] + "</extra>",
        row=2,
        col=1,
    )
    figure.add_scatter(
        x=[bars[0].step, bars[-1].step],
        y=[modelled_blocks, modelled_blocks],
        mode="lines",
        name=words["formula"],
        line={"color": palette.VERMILION, "width": 2.5, "dash": "dash"},
        hovertemplate="%{y}<extra>" + words["formula"] + "</extra>",
        row=2,
        col=1,
    )
    frame(figure, height=560, x="", y="")
    figure.update_xaxes(title_text=words["x"], row=2, col=1)
    figure.update_xaxes(showticklabels=True, row=1, col=1)
    times = [ms for bar in bars for ms in (bar.ms, bar.modelled_ms) if ms]
    log_axis(lambda **axis: figure.update_yaxes(row=1, col=1, **axis), min(times) / 1.5, max(times) * 1.5)
    figure.update_yaxes(title_text=words["y_time"], row=1, col=1)
    figure.update_yaxes(title_text=words["y_blocks"], range=[0, 1.15 * max(modelled_blocks, 1)], row=2, col=1)
    return figure
