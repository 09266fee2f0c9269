"""The Plotly figures of the lessons, each with a name for screen readers and its numbers as a table.

Figures are pure functions of plain numbers that were read from a Run elsewhere; nothing is computed here but axes.
``show`` is the only way a figure reaches a page: it insists on the alternative text, the table and the provenance line.
Hues and patterns come from ``palette``; text and grid colours come from the theme, so both modes work.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from plotly.subplots import make_subplots

from pages._ui import palette, present
from pages._ui.i18n import t
from pages._ui.units import DASH

_TICK_SIZE = 14
_MARGIN = {"l": 8, "r": 8, "t": 34, "b": 8}


def show(
    figure: go.Figure, *, key: str, title: str, alt: str, table: pd.DataFrame, provenance: Callable[[], None]
) -> None:
    """Draw a figure with its title, provenance line, and its table one click away. Effect: Streamlit elements."""
    st.subheader(title, anchor=False)
    if present.on_stage():
        _enlarge(figure)
    st.plotly_chart(figure, key=key, alt=alt, config={"displayModeBar": False, "responsive": True, "scrollZoom": False})
    provenance()
    with st.expander(t("common.table_behind", title=title), icon=":material/table_rows:"):
        st.dataframe(
            table, hide_index=True, placeholder=DASH, key=f"{key}_table", alt=alt, column_config=_thousands(table)
        )


def _thousands(table: pd.DataFrame) -> dict[str, Any]:
    """Columns with numbers so large that they cannot be read without marks between the thousands. Pure."""
    large = [name for name in table.select_dtypes("number") if table[name].abs().max() >= 1_000]
    return {name: st.column_config.NumberColumn(format="localized") for name in large}


def _enlarge(figure: go.Figure) -> None:
    """Words in the picture as large as those at its axes, which ``frame`` has made so. Effect: changes the figure."""
    for words in (*figure.data, *figure.layout.annotations):
        font = "font" if isinstance(words, go.layout.Annotation) else "textfont"
        size = words[font].size if font in words else None
        if isinstance(size, int | float):
            words[font].size = round(size * present.CHART_SCALE)
    for axis in (*figure.select_xaxes(), *figure.select_yaxes()):
        if axis.tickfont.size and axis.tickfont.size < _TICK_SIZE:  # many names on one axis: smaller than the others
            axis.tickfont.size = round(axis.tickfont.size * present.CHART_SCALE)


def frame(figure: go.Figure, *, height: int, x: str, y: str) -> go.Figure:
    """Size, fonts and axes of every figure of the lab. Effect: changes the figure, which is returned.

    Plotly takes ten milliseconds to check these values and they are the same at every rerun, so they are kept checked.
    """
    scale = present.CHART_SCALE if present.on_stage() else 1
    before = json.dumps(figure.layout.to_plotly_json(), sort_keys=True)
    figure.layout = _checked(before, round(height * scale), x, y, palette.ink(st.context.theme.type), scale)
    return figure


@lru_cache(maxsize=256)
def _checked(before: str, height: int, x: str, y: str, ink: str, scale: float) -> go.Layout:
    """The layout ``before``, a JSON text, with the lab's own values. Nobody changes it: a figure takes a copy. Pure."""
    figure = go.Figure(layout=json.loads(before))
    figure.update_layout(
        height=height,
        margin=_MARGIN,
        font={"size": 15 * scale, "color": ink},
        bargap=0.12,
        dragmode=False,
        legend={
            "orientation": "h",
            "yanchor": "bottom",
            "y": 1.0,
            "xanchor": "left",
            "x": 0,
            "font": {"size": 14 * scale, "color": ink},
        },
        hoverlabel={"font": {"size": 14 * scale}},
    )
    tick_font = {"size": _TICK_SIZE * scale, "color": ink}
    shared = {"tickfont": tick_font, "automargin": True, "fixedrange": True, "separatethousands": True}
    figure.update_xaxes(title={"text": x, "font": {"size": 15 * scale, "color": ink}}, **shared)
    figure.update_yaxes(title={"text": y, "font": {"size": 15 * scale, "color": ink}}, **shared)
    return figure.layout


# ------------------------------------------------------------------------------------------------- one request
def token_latencies(
    ttft_ms: float, gaps_ms: Sequence[float], words: Mapping[str, str], modelled_gap_ms: float | None
) -> go.Figure:
    """Above, the request's life in true proportion; below, the wait before each token, the first one included.

    ``gaps_ms[i]`` is the time between token i + 1 and token i + 2. ``words`` are the labels, already in the language.
    """
    figure = make_subplots(rows=2, cols=1, row_heights=[0.2, 0.8], vertical_spacing=0.2)
    _lifeline(figure, ttft_ms, gaps_ms, words)
    numbers = list(range(1, len(gaps_ms) + 2))
    figure.add_bar(
        x=numbers[1:],
        y=list(gaps_ms),
        name=words["gap"],
        marker={"color": palette.DECODE},
        hovertemplate=words["hover_gap"],
        showlegend=False,
        row=2,
        col=1,
    )
    # A first token that waited ten times longer would flatten every other bar: it is cut, and the cut is written on it.
    cap = 4 * max(sorted(gaps_ms)[-max(1, len(gaps_ms) // 20)], 1e-9) if gaps_ms else ttft_ms
    cut = ttft_ms > cap
    figure.add_bar(
        x=[1],
        y=[cap if cut else ttft_ms],
        name=words["ttft"],
        marker={"color": palette.PREFILL},
        customdata=[ttft_ms],
        hovertemplate=words["hover_ttft"],
        showlegend=False,
        row=2,
        col=1,
    )
    figure.add_annotation(
        x=0.6,
        y=cap if cut else ttft_ms,
        text=f"{'↑ ' if cut else ''}TTFT {words['ttft_value']}",
        showarrow=False,
        xanchor="left",
        yanchor="bottom",
        font={"size": 15},
        row=2,
        col=1,
    )
    if modelled_gap_ms is not None and gaps_ms:
        figure.add_scatter(
            x=[1.5, numbers[-1] + 0.5],
            y=[modelled_gap_ms, modelled_gap_ms],
            mode="lines",
            name=words["model"],
            line={"color": palette.MODEL, "width": 3, "dash": "dash"},
            row=2,
            col=1,
        )
    frame(figure, height=430, x=words["x_token"], y=words["y_ms"])
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(title_text=words["x_time"], row=1, col=1)
    figure.update_yaxes(title_text="", showticklabels=False, showgrid=False, row=1, col=1)
    top = max([cap if cut else ttft_ms, modelled_gap_ms or 0.0, *gaps_ms])
    figure.update_yaxes(range=[0, top * 1.18], row=2, col=1)
    figure.update_xaxes(range=[0, len(numbers) + 1], row=2, col=1)
    return figure


def _lifeline(figure: go.Figure, ttft_ms: float, gaps_ms: Sequence[float], words: Mapping[str, str]) -> None:
    figure.add_bar(
        x=[ttft_ms],
        y=[""],
        orientation="h",
        name=words["ttft"],
        marker={"color": palette.PREFILL},
        hovertemplate=words["hover_ttft_line"],
        row=1,
        col=1,
    )
    figure.add_bar(
        x=[sum(gaps_ms)],
        base=[ttft_ms],
        y=[""],
        orientation="h",
        name=words["decode"],
        marker={"color": palette.DECODE},
        hovertemplate=words["hover_decode_line"],
        row=1,
        col=1,
    )
    ticks, at = [], ttft_ms
    for gap in gaps_ms:
        ticks.append(at)
        at += gap
    figure.add_scatter(
        x=[*ticks, at],
        y=[""] * (len(gaps_ms) + 1),
        mode="markers",
        marker={"symbol": "line-ns", "size": 14, "line": {"width": 1.5, "color": "black"}},
        hoverinfo="skip",
        showlegend=False,
        row=1,
        col=1,
    )


def two_rates(prefill_tps: float, decode_tps: float, labels: Mapping[str, str], x: str) -> go.Figure:
    """Tokens per second of prefill beside decode, as two bars from the same zero."""
    figure = go.Figure()
    rows = (("prefill", prefill_tps, palette.PREFILL), ("decode", decode_tps, palette.DECODE))
    for name, value, colour in reversed(rows):
        figure.add_bar(
            y=[labels[name]],
            x=[value],
            orientation="h",
            marker={"color": colour},
            text=[labels[f"{name}_value"]],
            textposition="auto",
            textfont={"size": 16},
            cliponaxis=False,
            hovertemplate=f"{labels[name]}: {labels[f'{name}_value']}<extra></extra>",
            showlegend=False,
        )
    frame(figure, height=210, x=x, y="")
    figure.update_xaxes(range=[0, max(prefill_tps, decode_tps) * 1.12])
    return figure


def kv_growth(
    positions: Sequence[int], pool_bytes: Sequence[float], formula_bytes: Sequence[float], words: Mapping[str, str]
) -> go.Figure:
    """KV bytes over positions: what the block pool holds (a staircase) and what the formula asks for (a line)."""
    unit, name = _byte_unit(max([*pool_bytes, *formula_bytes, 1.0]))
    figure = go.Figure()
    figure.add_scatter(
        x=list(positions),
        y=[b / unit for b in pool_bytes],
        mode="lines+markers",
        line={"shape": "hv", "color": palette.DECODE, "width": 3},
        marker={"size": 5},
        name=words["pool"],
        hovertemplate="%{x}: %{y:.3g} " + name + "<extra></extra>",
    )
    figure.add_scatter(
        x=list(positions),
        y=[b / unit for b in formula_bytes],
        mode="lines",
        line={"color": palette.MODEL, "width": 3, "dash": "dash"},
        name=words["formula"],
        hovertemplate="%{x}: %{y:.3g} " + name + "<extra></extra>",
    )
    frame(figure, height=340, x=words["x"], y=f"{words['y']} ({name})")
    figure.update_yaxes(rangemode="tozero")
    return figure


def _byte_unit(largest: float) -> tuple[float, str]:
    for size, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest >= size:
            return size, name
    return 1.0, "B"


# ------------------------------------------------------------------------------------------------- two policies
def per_request(
    request_ids: Sequence[str],
    static: Sequence[float | None],
    chunked: Sequence[float | None],
    words: Mapping[str, str],
) -> go.Figure:
    """One quantity per request under both policies, as paired bars. Pattern and colour both tell them apart."""
    figure = go.Figure()
    pairs = (
        ("static", static, palette.STATIC, palette.HATCH),
        ("chunked", chunked, palette.CONTINUOUS, ""),
    )
    for name, values, colour, shape in pairs:
        figure.add_bar(
            x=list(request_ids),
            y=list(values),
            name=words[name],
            marker={
                "color": colour,
                "line": {"color": colour, "width": 1.5},
                "pattern": {"shape": shape, "fillmode": "replace", "fgcolor": colour, "solidity": 0.4},
            },
            hovertemplate="%{x}: %{y:.3g} ms<extra>" + words[name] + "</extra>",
        )
    frame(figure, height=340, x=words["x"], y=words["y"])
    figure.update_layout(barmode="group")
    figure.update_xaxes(type="category")
    return figure
