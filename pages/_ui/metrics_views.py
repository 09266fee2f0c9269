"""The pictures of the metrics lesson, drawn from the Runs of its sweep: lifelines, the curve and its knee, goodput.

Every load is a Run of its own, so a picture grows point by point while the sweep goes on. Goodput under an objective is
counted again from the stored Runs whenever the learner changes it: nothing is run for that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import pandas as pd
import streamlit as st

from engine.lab.metrics import goodput, request_metrics, token_times
from engine.lab.records import RequestRecord, Run
from lessons.facts_error import FactsError
from lessons.metrics.facts import disturbed, facts, lone
from lessons.metrics.scenarios import OUTPUT_TOKENS, capacity_rps
from lessons.metrics.sweep import Load, knee, loads, modelled_queue_s, service_s, slowest_start
from lessons.run_facts import text
from pages._ui import charts, compare, metrics_charts
from pages._ui.badges import badge, note, provenance
from pages._ui.i18n import language, t
from pages._ui.metrics_charts import Lifeline, LoadPoint
from pages._ui.prose import mend
from pages._ui.units import byte_count, milliseconds, number, percent

_NS = "metrics"


def load_points(runs: Mapping[str, Run], ttft_s: float = float("inf"), tpot_s: float = float("inf")) -> list[LoadPoint]:
    """The loads as points, smallest first; goodput under the objective. Pure. Raises: FactsError without the burst."""
    capacity = capacity_rps(runs)
    alone_ttft_s = request_metrics(lone(runs)[1]).ttft_s
    found = []
    for load in loads(runs):
        wait_s = modelled_queue_s(load.run, service_s(runs))
        found.append(
            LoadPoint(
                label=f"{number(round(load.offered_rps / capacity, 2), language(), 2)}×",
                offered_rps=load.offered_rps,
                requests_per_s=load.requests_per_s,
                tokens_per_s=load.tokens_per_s,
                ttft_ms=load.ttft_s * 1e3,
                tpot_ms=load.tpot_s * 1e3,
                e2e_ms=load.e2e_s * 1e3,
                modelled_rps=min(load.offered_rps, capacity),
                modelled_ttft_ms=(alone_ttft_s + wait_s) * 1e3,
                goodput_rps=goodput(load.run, ttft_s, tpot_s).requests_per_s or 0.0,
            )
        )
    return found


def so_far(runs: Mapping[str, Run]) -> None:
    """The throughput-latency curve with the loads there are, while the sweep goes on."""
    with contextlib.suppress(FactsError):  # what the curve is set beside may have been dropped from the database
        if loads(runs):
            curve(runs, key="me_live", title=t("study.so_far"))


def warn_if_disturbed(runs: Mapping[str, Run]) -> None:
    """Say it above the pictures when like steps of these Runs took unlike times."""
    if disturbed(facts(runs)):
        st.warning(mend(text("metrics", "note_disturbed", runs, language())), icon=":material/vibration:")


# ------------------------------------------------------------------------------------------------- one request
def one_request(runs: Mapping[str, Run]) -> None:
    """The request that was alone and the one that waited longest: their lives, and the gaps between their tokens."""
    lang = language()
    heaviest = loads(runs)[-1]
    alone_run, alone = lone(runs)
    crowded = slowest_start(heaviest.run)
    lines = [
        _lifeline(alone_run, alone, t(f"{_NS}.alone")),
        _lifeline(heaviest.run, crowded, t(f"{_NS}.crowded", request=crowded.request_id)),
    ]
    words = {name: t(f"{_NS}.life_{name}") for name in ("queue", "prefill", "decode", "x", "ttft", "e2e")}
    sources = (alone_run, heaviest.run)
    charts.show(
        metrics_charts.lifelines(lines, words),
        key="me_life",
        title=t(f"{_NS}.life"),
        alt=t(
            f"{_NS}.life_alt",
            alone_ttft=milliseconds(lines[0].ttft_ms, lang),
            alone_e2e=milliseconds(lines[0].token_ms[-1], lang),
            queue=milliseconds(lines[1].queue_ms, lang),
            ttft=milliseconds(lines[1].ttft_ms, lang),
            e2e=milliseconds(lines[1].token_ms[-1], lang),
        ),
        table=pd.DataFrame(
            {
                t(f"{_NS}.col_request"): [line.name for line in lines],
                t(f"{_NS}.col_queue"): [round(line.queue_ms, 2) for line in lines],
                "TTFT (ms)": [round(line.ttft_ms, 2) for line in lines],
                "TPOT (ms)": [round(sum(line.gaps_ms) / len(line.gaps_ms), 2) for line in lines],
                "E2E (ms)": [round(line.token_ms[-1], 2) for line in lines],
                t("study.column_run"): [run.run_id for run in sources],
            }
        ),
        provenance=lambda: provenance(*sources),
    )
    longest = [max(line.gaps_ms) for line in lines]
    charts.show(
        metrics_charts.gaps(lines, {name: t(f"{_NS}.gaps_{name}") for name in ("x", "y", "mean")}),
        key="me_gaps",
        title=t(f"{_NS}.gaps"),
        alt=t(f"{_NS}.gaps_alt", alone=milliseconds(longest[0], lang), crowded=milliseconds(longest[1], lang)),
        table=pd.DataFrame(
            {
                t(f"{_NS}.col_token"): range(1, len(lines[0].token_ms) + 1),
                **{
                    f"{line.name} (ms)": [round(line.ttft_ms, 2), *(round(gap, 2) for gap in line.gaps_ms)]
                    for line in lines
                },
            }
        ),
        provenance=lambda: provenance(*sources),
    )


def _lifeline(run: Run, record: RequestRecord, name: str) -> Lifeline:
    times = [1e3 * (token.t_s - record.arrival_s) for token in token_times(run)[record.request_id]]
    return Lifeline(name, 1e3 * (record.first_scheduled_s - record.arrival_s), times)


# ------------------------------------------------------------------------------------------------- the sweep
def curve(runs: Mapping[str, Run], *, key: str = "me_curve", title: str | None = None) -> None:
    """The throughput-latency curve and its knee."""
    lang = language()
    found, points = loads(runs), load_points(runs)
    best = knee(found)
    index = found.index(best) if best else None
    words = {name: t(f"{_NS}.curve_{name}") for name in ("measured", "knee", "capacity", "x", "y")}
    capacity_tps = capacity_rps(runs) * OUTPUT_TOKENS
    charts.show(
        metrics_charts.curve(points, index, capacity_tps, words),
        key=key,
        title=title or t(f"{_NS}.curve"),
        alt=t(
            f"{_NS}.curve_alt",
            n=len(points),
            low=number(points[0].tokens_per_s, lang),
            high=number(points[-1].tokens_per_s, lang),
            low_ms=milliseconds(points[0].e2e_ms, lang),
            high_ms=milliseconds(points[-1].e2e_ms, lang),
            knee=number(best.offered_rps, lang) if best else "–",
        ),
        table=_load_table(found, points),
        provenance=lambda: provenance(*(load.run for load in found), modelled=True),
    )
    note(t(f"{_NS}.curve_note"))


def over_load(runs: Mapping[str, Run]) -> None:
    """Throughput, TTFT and TPOT over the offered load, with the plain queue beside them."""
    lang = language()
    found, points = loads(runs), load_points(runs)
    names = ("throughput", "ttft", "tpot", "modelled", "modelled_ttft", "x", "y_rate", "y_ms")
    charts.show(
        metrics_charts.over_load(points, capacity_rps(runs), {name: t(f"{_NS}.load_{name}") for name in names}),
        key="me_load",
        title=t(f"{_NS}.load"),
        alt=t(
            f"{_NS}.load_alt",
            low=number(points[0].offered_rps, lang),
            high=number(points[-1].offered_rps, lang),
            low_ttft=milliseconds(points[0].ttft_ms, lang),
            high_ttft=milliseconds(points[-1].ttft_ms, lang),
            low_tpot=milliseconds(points[0].tpot_ms, lang),
            high_tpot=milliseconds(points[-1].tpot_ms, lang),
        ),
        table=_load_table(found, points),
        provenance=lambda: provenance(*(load.run for load in found), modelled=True),
    )


def _load_table(found: list[Load], points: list[LoadPoint]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            t(f"{_NS}.col_offered"): [round(p.offered_rps, 3) for p in points],
            t(f"{_NS}.col_share"): [p.label for p in points],
            t(f"{_NS}.col_requests"): [load.num_requests for load in found],
            t(f"{_NS}.col_rps"): [round(p.requests_per_s, 3) for p in points],
            t(f"{_NS}.col_modelled_rps"): [round(p.modelled_rps, 3) for p in points],
            t(f"{_NS}.col_tps"): [round(p.tokens_per_s, 1) for p in points],
            "TTFT (ms)": [round(p.ttft_ms, 1) for p in points],
            t(f"{_NS}.col_modelled_ttft"): [round(p.modelled_ttft_ms, 1) for p in points],
            t(f"{_NS}.col_ttft_p90"): [round(load.ttft_p90_s * 1e3, 1) for load in found],
            "TPOT (ms)": [round(p.tpot_ms, 1) for p in points],
            "E2E (ms)": [round(p.e2e_ms, 1) for p in points],
            t("study.column_run"): [load.run.run_id for load in found],
        }
    )


# ------------------------------------------------------------------------------------------------- an objective
def objective(runs: Mapping[str, Run], ttft_percent: int, tpot_percent: int) -> None:
    """Goodput over the load under an objective given in per cent of what a request alone needs."""
    lang = language()
    alone = request_metrics(lone(runs)[1])
    ttft_s, tpot_s = alone.ttft_s * ttft_percent / 100, alone.tpot_s * tpot_percent / 100
    found, points = loads(runs), load_points(runs, ttft_s, tpot_s)
    best = max(range(len(points)), key=lambda i: points[i].goodput_rps)
    nobody = points[best].goodput_rps == 0
    words = {name: t(f"{_NS}.goodput_{name}") for name in ("all", "good", "best", "x", "y")}
    limits = {"ttft": milliseconds(ttft_s * 1e3, lang), "tpot": milliseconds(tpot_s * 1e3, lang)}
    shares = [goodput(load.run, ttft_s, tpot_s).share for load in found]
    charts.show(
        metrics_charts.goodput(points, None if nobody else best, words),
        key="me_goodput",
        title=t(f"{_NS}.goodput"),
        alt=t(
            f"{_NS}.goodput_alt",
            **limits,
            best=number(points[best].goodput_rps, lang),
            offered=number(points[best].offered_rps, lang),
        ),
        table=pd.DataFrame(
            {
                t(f"{_NS}.col_offered"): [round(p.offered_rps, 3) for p in points],
                t(f"{_NS}.col_rps"): [round(p.requests_per_s, 3) for p in points],
                t(f"{_NS}.col_good"): [round(p.goodput_rps, 3) for p in points],
                t(f"{_NS}.col_good_share"): [percent(share, lang) for share in shares],
                t("study.column_run"): [load.run.run_id for load in found],
            }
        ),
        provenance=lambda: provenance(*(load.run for load in found)),
    )
    key = "goodput_none" if nobody else "goodput_sentence"
    sentence = t(
        f"{_NS}.{key}",
        **limits,
        best=number(points[best].goodput_rps, lang),
        offered=number(points[best].offered_rps, lang),
        share=percent(shares[best], lang),
    )
    st.markdown(f"{sentence} {badge('measured')}")


# ------------------------------------------------------------------------------------------------- comparison
def comparison(runs: Mapping[str, Run]) -> None:
    """The identity, one division, and the plain queue, each beside what was measured."""
    values, lang = facts(runs), language()
    alone_run, _ = lone(runs)
    found = loads(runs)
    header = alone_run.header
    read = header.device.read_gbps
    tpot_model = header.model.weight_bytes / read / 1e6 if read else None
    best_rps = max(load.requests_per_s for load in found)
    rows = [
        _row("e2e", values["alone_e2e_ms"], values["identity_ms"], milliseconds, values),
        compare.Row(
            t(f"{_NS}.row_tpot"),
            values["alone_tpot_ms"],
            tpot_model,
            milliseconds(values["alone_tpot_ms"], lang),
            milliseconds(tpot_model, lang),
            t(
                f"{_NS}.formula_tpot",
                weights=byte_count(header.model.weight_bytes, lang),
                read=number(read, lang),
                result=milliseconds(tpot_model, lang),
            ),
        ),
        _row("rate", best_rps, values["capacity_rps"], _per_second, values),
        _row("queue", values["queue_ms"], values["queue_model_ms"], milliseconds, values),
        _row("little", values["in_system"], values["in_system_little"], number, values),
    ]
    compare.table(rows, alone_run, *(load.run for load in found), key="me_compare")
    st.markdown(t(f"{_NS}.compare_note"))


def _row(name: str, measured: float, modelled: float, say, values: Mapping[str, object]) -> compare.Row:
    lang = language()
    shown = {key: number(value, lang) if isinstance(value, int | float) else value for key, value in values.items()}
    return compare.Row(
        t(f"{_NS}.row_{name}"),
        measured,
        modelled,
        say(measured, lang),
        say(modelled, lang),
        t(f"{_NS}.formula_{name}", **shown),
    )


def _per_second(value: float, lang: str) -> str:
    return t(f"{_NS}.requests_per_s", n=number(value, lang))


def complete(runs: Mapping[str, Run]) -> bool:
    """Whether the Runs are enough for the pictures and the explanation. Pure."""
    try:
        facts(runs)
    except FactsError:
        return False
    return True
