"""Two Runs of one workload, request by request: who ended sooner or later, and what the time went into.

The reasons are the scheduler's recorded ones (``engine.lab.counterfactual``), the sentences those of the command line
(``engine.lab.diff_words``). Nothing is computed here but axes.
"""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from engine.lab.counterfactual import RunDiff, WorkloadError, diff
from engine.lab.diff_words import first_difference, summary, told
from engine.lab.records import Run
from pages._ui import charts, palette
from pages._ui.badges import badge, escape, note, provenance
from pages._ui.charts import frame
from pages._ui.i18n import language, t
from pages._ui.units import DASH, seconds

_NS = "run_diff"
MOST_ROWS = 32  # more requests than this do not fit a chart that is read from the back row
PARTS = {
    "computing": (palette.ORANGE, ""),
    "no_blocks": (palette.VERMILION, "x"),
    "token_budget": (palette.BLUE, "/"),
    "request_limit": (palette.PURPLE, "\\"),
    "batch_not_drained": (palette.GREY, "-"),
    "not_its_turn": (palette.SKY, "."),
    "step_running": (palette.GREEN, "|"),
}


def draw(before: Run, after: Run, *, key: str) -> None:
    """The comparison, or one sentence why there is none. Effect: Streamlit elements."""
    try:
        found = diff(before, after)
    except WorkloadError:
        outside = any(run.header.observed is not None for run in (before, after))
        st.info(t(f"{_NS}.{'outside' if outside else 'other_workload'}"), icon=":material/info:")
        return
    lang = language()
    st.subheader(t(f"{_NS}.title"), anchor=False)
    st.markdown(f"{escape(summary(found, lang))} {badge('measured')}")
    note(escape(first_difference(found, lang)))
    _chart(found, before, after, key)
    _table(found, key)


def _chart(found: RunDiff, before: Run, after: Run, key: str) -> None:
    """For each request what it gained and lost, by cause; the mark is the sum."""
    lang = language()
    order = [one.request_id for one in told(found, lang) if one.verdict != "unknown"][:MOST_ROWS]
    by_id = {request.request_id: request for request in found.requests}
    shown = [by_id[name] for name in order]
    if not shown:
        note(t(f"{_NS}.nothing_to_draw"))
        return
    figure = go.Figure()
    table: dict[str, list[object]] = {t(f"{_NS}.request"): order}
    for part, (colour, shape) in PARTS.items():
        values = [(r.parts_s[part].delta or 0.0) * 1e3 if part in r.parts_s else 0.0 for r in shown]
        if not any(values):
            continue
        name = t(f"{_NS}.part_{part}")
        table[f"{name} (ms)"] = [round(value, 2) for value in values]
        figure.add_bar(
            y=order,
            x=values,
            name=name,
            orientation="h",
            marker={
                "color": colour,
                "line": {"color": colour, "width": 1},
                "pattern": {"shape": shape, "fillmode": "replace", "fgcolor": colour, "solidity": 0.4},
            },
            hovertemplate="%{y}: %{x:.3g} ms<extra>" + name + "</extra>",
        )
    sums = [(r.e2e_s.delta or 0.0) * 1e3 for r in shown]
    ink = palette.ink(st.context.theme.type)
    figure.add_scatter(
        y=order,
        x=sums,
        mode="markers",
        name=t(f"{_NS}.sum"),
        marker={"symbol": "diamond", "size": 12, "color": ink},
        hovertemplate="%{y}: %{x:.3g} ms<extra>" + t(f"{_NS}.sum") + "</extra>",
    )
    table[f"{t(f'{_NS}.sum')} (ms)"] = [round(value, 2) for value in sums]
    frame(figure, height=190 + 34 * len(order), x=t(f"{_NS}.axis"), y="")
    figure.update_layout(barmode="relative", margin={"t": 96})
    figure.update_xaxes(zeroline=True, zerolinewidth=2, zerolinecolor=ink)
    figure.update_yaxes(type="category", autorange="reversed")
    gained, lost = min(sums), max(sums)
    charts.show(
        figure,
        key=f"{key}_causes",
        title=t(f"{_NS}.causes"),
        alt=t(
            f"{_NS}.causes_alt",
            n=len(order),
            gained=seconds(max(-gained, 0) / 1e3, lang),
            lost=seconds(max(lost, 0) / 1e3, lang),
        ),
        table=pd.DataFrame(table),
        provenance=lambda: provenance(before, after),
    )


def _table(found: RunDiff, key: str) -> None:
    """Every request in words."""
    lang = language()
    rows = [
        {
            t(f"{_NS}.request"): one.request_id,
            t(f"{_NS}.verdict"): t(f"{_NS}.verdict_{one.verdict}"),
            t(f"{_NS}.before"): seconds(one.change.before, lang),
            t(f"{_NS}.after"): seconds(one.change.after, lang),
            t(f"{_NS}.why"): one.why,
        }
        for one in told(found, lang)
    ]
    note(f"{t(f'{_NS}.table')} {badge('measured')}")
    st.dataframe(pd.DataFrame(rows), hide_index=True, placeholder=DASH, key=f"{key}_table", alt=t(f"{_NS}.table"))
