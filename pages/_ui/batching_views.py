"""The pictures of the batching lesson, drawn from two Runs of one workload: the player, the waits, the comparison.

Both Runs stand on one clock. The speed-up is never shown without the condition under which it holds.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import streamlit as st

from engine.lab.records import Run
from pages._ui import charts, compare, layout, session
from pages._ui.badges import badge, provenance
from pages._ui.i18n import language, t
from pages._ui.player import timeline_player
from pages._ui.units import factor, milliseconds, number, percent
from pages._ui.views import PolicyResult, e2e_per_request, length_model, policy_result, ttft_per_request

_NS = "batching"
MAX_BARS = 32  # more requests than this do not fit a chart that is read from the back row


def player(static: Run, chunked: Run) -> None:
    """Both Runs side by side on one clock."""
    st.subheader(t(f"{_NS}.player"), anchor=False)
    spoken = [session.store().texts(run.run_id).pieces or None for run in (static, chunked)]
    labelled = [(t("common.policy_static"), static), (t("common.policy_chunked"), chunked)]
    timeline_player(labelled, lang=language(), key="bt_player", texts=spoken)
    provenance(static, chunked)


def waits(static: Run, chunked: Run) -> None:
    """TTFT and end-to-end time of every request under both policies."""
    _paired("ttft", ttft_per_request(static), ttft_per_request(chunked), static, chunked)
    _paired("e2e", e2e_per_request(static), e2e_per_request(chunked), static, chunked)


def _paired(name: str, first: dict, second: dict, static: Run, chunked: Run) -> None:
    lang = language()
    names = list(first)[:MAX_BARS]
    before, after = [first.get(n) for n in names], [second.get(n) for n in names]
    words = {
        "static": t("common.policy_static"),
        "chunked": t("common.policy_chunked"),
        "x": t(f"{_NS}.x_request"),
        "y": t(f"{_NS}.y_{name}"),
    }
    table = pd.DataFrame(
        {
            t(f"{_NS}.x_request"): names,
            f"{words['static']} (ms)": [None if v is None else round(v, 1) for v in before],
            f"{words['chunked']} (ms)": [None if v is None else round(v, 1) for v in after],
        }
    )
    longest = [max((v for v in values if v is not None), default=None) for values in (before, after)]
    charts.show(
        charts.per_request(names, before, after, words),
        key=f"bt_{name}",
        title=t(f"{_NS}.{name}"),
        alt=t(
            f"{_NS}.{name}_alt",
            n=len(names),
            static=milliseconds(longest[0], lang),
            chunked=milliseconds(longest[1], lang),
        ),
        table=table,
        provenance=lambda: provenance(static, chunked),
    )


# ------------------------------------------------------------------------------------------------- comparison
def comparison(static: Run, chunked: Run) -> None:
    """The table of both policies, the speed-up with its condition, and the bound that the lengths set."""
    lang = language()
    one, other = policy_result(static), policy_result(chunked)
    rows: list[tuple[str, Callable[[PolicyResult], float | None], Callable[[float | None, str], str]]] = [
        ("makespan", lambda r: r.makespan_ms, milliseconds),
        ("throughput", lambda r: r.output_tps, _tokens_per_s),
        ("ttft_mean", lambda r: r.ttft_mean_ms, milliseconds),
        ("ttft_p95", lambda r: r.ttft_p95_ms, milliseconds),
        ("e2e_mean", lambda r: r.e2e_mean_ms, milliseconds),
        ("padding", lambda r: r.padding_share, percent),
        ("steps", lambda r: r.num_steps, number),
    ]
    mark = badge("measured")
    frame = pd.DataFrame(
        {
            t("compare.quantity"): [t(f"{_NS}.row_{name}") for name, _, _ in rows],
            t("common.policy_static"): [f"{say(get(one), lang)} {mark}" for _, get, say in rows],
            t("common.policy_chunked"): [f"{say(get(other), lang)} {mark}" for _, get, say in rows],
        }
    )
    st.table(frame, hide_index=True, border="horizontal", alt=t(f"{_NS}.table_alt"))
    provenance(static, chunked)
    _speed_up(static, chunked, one, other)


def _tokens_per_s(value: float | None, lang: str) -> str:
    return t(f"{_NS}.tokens_per_s", n=number(value, lang))


def _speed_up(static: Run, chunked: Run, one: PolicyResult, other: PolicyResult) -> None:
    lang = language()
    model = length_model(static)
    if not one.makespan_ms or not other.makespan_ms or model is None:
        return
    measured = one.makespan_ms / other.makespan_ms
    condition = t(
        f"{_NS}.condition",
        shortest=model.shortest,
        longest=model.longest,
        mean=number(model.mean, lang),
        places=model.places,
    )
    layout.lead(f"{t(f'{_NS}.speed_up', times=number(measured, lang))} {badge('measured')}", "speed_up")
    st.markdown(condition)
    row = compare.Row(
        t(f"{_NS}.row_speed_up"),
        measured,
        model.speed_up,
        factor(measured, lang),
        factor(model.speed_up, lang),
        t(
            f"{_NS}.formula_speed_up",
            static=model.static_steps,
            continuous=model.continuous_steps,
            places=model.places,
            ratio=factor(model.speed_up, lang),
        ),
    )
    compare.table([row], static, chunked, key="bt_compare")
    st.markdown(t(f"{_NS}.compare_note"))
