"""The figures of the PagedAttention lesson: the pool over the steps, requests at once, what each request left empty.

Pure functions of plain numbers read from Runs elsewhere. Filled is solid, empty is hatched, a preemption is a cross,
and each run has a dash of its own, so that nothing hangs on colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pages._ui import palette
from pages._ui.charts import frame

COLOURS = {"orca": palette.PURPLE, "paged": palette.DECODE, "shared": palette.SKY}
DASHES = {"orca": "dot", "paged": "solid", "shared": "dash"}


@dataclass(frozen=True)
class PoolOverTime:
    """One run: megabytes after each step, and the steps in which somebody was preempted."""

    part: str
    steps: Sequence[int]
    filled: Sequence[float]
    held: Sequence[float]
    preempted: Sequence[int]


def pool(runs: Sequence[PoolOverTime], pool_mb: float, words: Mapping[str, str]) -> go.Figure:
    """Filled and held memory after each step, one row per run, all on the same axes. Pure."""
    figure = make_subplots(
        rows=len(runs),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.09,
        subplot_titles=[words[f"part_{run.part}"] for run in runs],
    )
    for row, run in enumerate(runs, start=1):
        place = {"row": row, "col": 1}
        shown = {"showlegend": row == 1}
        steps = list(run.steps)
        figure.add_scatter(
            x=steps, y=list(run.filled), mode="lines", line={"shape": "hv", "color": palette.DECODE, "width": 1.5},
            fill="tozeroy", fillcolor=palette.DECODE, name=words["filled"], legendgroup="filled",
            hovertemplate="%{x}: %{y:.3g} MB<extra>" + words["filled"] + "</extra>", **shown, **place,
        )  # fmt: skip
        figure.add_scatter(
            x=steps, y=list(run.held), mode="lines", line={"shape": "hv", "color": palette.GREY, "width": 1.5},
            fill="tonexty", fillcolor="rgba(0,0,0,0)",
            fillpattern={"shape": palette.HATCH, "fgcolor": palette.GREY, "size": 7, "solidity": 0.35},
            name=words["empty"], legendgroup="empty",
            hovertemplate="%{x}: %{y:.3g} MB<extra>" + words["held"] + "</extra>", **shown, **place,
        )  # fmt: skip
        figure.add_scatter(
            x=[0, max(max(r.steps) for r in runs)], y=[pool_mb] * 2, mode="lines", name=words["pool_line"],
            line={"color": palette.VERMILION, "width": 2, "dash": "dash"}, legendgroup="pool", hoverinfo="skip",
            **shown, **place,
        )  # fmt: skip
        figure.add_scatter(
            x=list(run.preempted), y=[pool_mb] * len(run.preempted), mode="markers", name=words["preempted"],
            marker={"symbol": "x", "size": 11, "color": palette.VERMILION, "line": {"width": 1, "color": "white"}},
            legendgroup="preempted", hovertemplate="%{x}<extra>" + words["preempted"] + "</extra>",
            showlegend=any(r.preempted for r in runs) and run is next(r for r in runs if r.preempted), **place,
        )  # fmt: skip
        figure.update_yaxes(range=[0, 1.15 * pool_mb], row=row, col=1)
    frame(figure, height=200 + 170 * len(runs), x="", y=words["y"])
    figure.update_xaxes(title_text=words["x"], row=len(runs), col=1)
    figure.update_layout(legend={"y": 1.06}, margin={"t": 60})
    return figure


def at_once(runs: Mapping[str, Sequence[int]], words: Mapping[str, str]) -> go.Figure:
    """Requests that held a place after each step. Pure."""
    figure = go.Figure()
    for part, running in runs.items():
        name = words[f"part_{part}"]
        figure.add_scatter(
            x=list(range(len(running))),
            y=list(running),
            mode="lines",
            name=name,
            line={"shape": "hv", "color": COLOURS[part], "width": 3, "dash": DASHES[part]},
            hovertemplate="%{x}: %{y}<extra>" + name + "</extra>",
        )
    frame(figure, height=320, x=words["x"], y=words["y_running"])
    figure.update_yaxes(rangemode="tozero")
    return figure


def left_empty(
    names: Sequence[str],
    filled: Mapping[str, Sequence[int]],
    empty: Mapping[str, Sequence[int]],
    words: Mapping[str, str],
) -> go.Figure:
    """What each request's blocks held at its end, and what stayed empty; one row per run, one axis. Pure."""
    figure = make_subplots(
        rows=len(filled),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.14,
        subplot_titles=[words[f"part_{part}"] for part in filled],
    )
    top = max(f + e for part in filled for f, e in zip(filled[part], empty[part], strict=True))
    for row, part in enumerate(filled, start=1):
        for kind, values in (("filled", filled[part]), ("empty", empty[part])):
            colour = palette.DECODE if kind == "filled" else palette.GREY
            pattern = {"shape": "" if kind == "filled" else palette.HATCH, "fillmode": "replace", "fgcolor": colour}
            figure.add_bar(
                x=list(names),
                y=list(values),
                name=words[kind],
                marker={"color": colour, "pattern": pattern, "line": {"color": colour, "width": 1.5}},
                hovertemplate="%{x}: %{y}<extra>" + words[kind] + "</extra>",
                legendgroup=kind,
                showlegend=row == 1,
                row=row,
                col=1,
            )
        figure.update_yaxes(range=[0, 1.08 * top], row=row, col=1)
    frame(figure, height=200 + 150 * len(filled), x="", y=words["y_positions"])
    figure.update_layout(barmode="stack", legend={"y": 1.08}, margin={"t": 60})
    figure.update_xaxes(type="category")
    figure.update_xaxes(title_text=words["x_request"], row=len(filled), col=1)
    return figure
