"""The figures of the scheduling ladder: what each step of a Run held, and why one request waited under every policy.

Pure functions of plain numbers; nothing is computed here but axes. Phases and waiting look as they do everywhere:
prefill blue, decode orange, padding grey hatch, recompute blue hatch, waiting hollow or patterned by its reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
import streamlit as st

from pages._ui import palette
from pages._ui.charts import frame

PHASES = ("decode", "padding", "prefill", "recompute")
_PATTERN = {"padding": "/", "recompute": "\\"}
_HUE = {
    "decode": palette.DECODE,
    "padding": palette.PADDING,
    "prefill": palette.PREFILL,
    "recompute": palette.PREFILL,
}


def composition(
    numbers: Sequence[int], tokens: Mapping[str, Sequence[int]], budget: int, words: Mapping[str, str]
) -> go.Figure:
    """Tokens of each step by phase, stacked, under the budget. ``words``: the phases, budget, x, y."""
    figure = go.Figure()
    for phase in PHASES:
        if not any(tokens[phase]):
            continue
        marker: dict = {"color": _HUE[phase], "line": {"width": 0}}
        if phase in _PATTERN:
            marker["pattern"] = {
                "shape": _PATTERN[phase], "fillmode": "replace", "fgcolor": _HUE[phase], "solidity": 0.4, "size": 5,
            }  # fmt: skip
        figure.add_bar(
            x=list(numbers),
            y=list(tokens[phase]),
            name=words[phase],
            marker=marker,
            hovertemplate="%{x}: %{y}<extra>" + words[phase] + "</extra>",
        )
    figure.add_scatter(
        x=[numbers[0] - 0.5, numbers[-1] + 0.5],
        y=[budget, budget],
        mode="lines",
        name=words["budget"],
        line={"color": palette.GREY, "width": 2, "dash": "dash"},
        hoverinfo="skip",
    )
    frame(figure, height=330, x=words["x"], y=words["y"])
    figure.update_layout(barmode="stack", bargap=0.0)
    return figure


REASONS = ("batch_not_drained", "request_limit", "no_blocks", "token_budget", "other")
_REASON_LOOK = {
    "batch_not_drained": (palette.PURPLE, "x"),
    "request_limit": (palette.SKY, "/"),
    "no_blocks": (palette.VERMILION, "\\"),
    "token_budget": (palette.GREEN, "."),
    "other": (palette.GREY, "-"),
}


def waiting(rungs: Sequence[str], ms: Mapping[str, Sequence[float]], words: Mapping[str, str]) -> go.Figure:
    """One bar per policy: ms in which a request was there and did not run, by reason. ``words``: reasons, x."""
    ink = palette.ink(st.context.theme.type)
    figure = go.Figure()
    for reason in REASONS:
        if not any(ms[reason]):
            continue
        hue, shape = _REASON_LOOK[reason]
        figure.add_bar(
            x=list(ms[reason]),
            y=list(rungs),
            orientation="h",
            name=words[reason],
            marker={
                "color": hue,
                "line": {"color": ink, "width": 1.5},
                "pattern": {"shape": shape, "fillmode": "replace", "fgcolor": hue, "solidity": 0.35},
            },
            hovertemplate="%{y}: %{x:.0f} ms<extra>" + words[reason] + "</extra>",
        )
    frame(figure, height=330, x=words["x"], y="")
    figure.update_layout(barmode="stack", bargap=0.35)
    figure.update_yaxes(categoryorder="array", categoryarray=list(rungs)[::-1], type="category")
    figure.update_xaxes(rangemode="tozero")
    return figure
