"""The pictures of the real-server lesson, from what a client saw and from our engine's own records; files as Runs.

The server's side comes from moments at which events arrived, ours from step records; both through the same functions.
What the server's side lacks is listed on the page. A file that is opened here is read and checked, never stored.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from engine.lab.check import CheckError
from engine.lab.imports import ImportFileError, import_run
from engine.lab.metrics import percentiles, run_metrics
from engine.lab.observed import gaps_s
from engine.lab.records import Run, RunFileError
from lessons.facts_error import FactsError
from lessons.real_server.facts import MOST, ONE, Point, both, points, too_short
from pages._ui import charts, compare, real_server_charts
from pages._ui.badges import escape, note, provenance
from pages._ui.engine_words import said
from pages._ui.i18n import catalogue, language, t
from pages._ui.real_server_charts import SidePoint
from pages._ui.units import DASH, milliseconds, number

_NS = "real_server"
MOST_FILE_MB = 50


def complete(runs: Mapping[str, Run]) -> bool:
    """Whether the Runs are enough for the pictures. Pure."""
    try:
        both(runs)
    except FactsError:
        return False
    return True


def why_incomplete(runs: Mapping[str, Run]) -> None:
    """One sentence where a study came to its end and still gives nothing to compare."""
    found = too_short(runs)
    if found is not None:
        words = t(f"{_NS}.too_short", request=escape(found[0]), n=found[1], chat=t(f"{_NS}.api_chat"))
        st.warning(words, icon=":material/short_text:")


def so_far(runs: Mapping[str, Run]) -> None:
    """The curve with the points there are, while the study goes on."""
    if points(runs, "server"):
        curve(runs, key="rs_live", title=t("study.so_far"))


def _sides(runs: Mapping[str, Run]) -> dict[str, list[Point]]:
    found = {side: list(points(runs, side).values()) for side in ("server", "ours")}
    return {side: side_points for side, side_points in found.items() if side_points}


def _drawn(side_points: Sequence[Point]) -> list[SidePoint]:
    return [SidePoint(p.size, p.tokens_per_s, 1e3 * p.e2e_s, 1e3 * p.ttft_s, 1e3 * p.tpot_s) for p in side_points]


def _names(sides: Mapping[str, Sequence[Point]]) -> dict[str, str]:
    names = {"ours": t(f"{_NS}.ours")}
    if "server" in sides:
        names["server"] = t(f"{_NS}.server", name=sides["server"][0].run.header.observed.server)
    return names


def _table(sides: Mapping[str, Sequence[Point]], names: Mapping[str, str]) -> pd.DataFrame:
    rows = [
        {
            t(f"{_NS}.col_side"): names[side],
            t(f"{_NS}.col_size"): p.size,
            t(f"{_NS}.col_tps"): round(p.tokens_per_s, 2),
            "TTFT (ms)": round(1e3 * p.ttft_s, 2),
            "TPOT (ms)": round(1e3 * p.tpot_s, 2),
            "E2E (ms)": round(1e3 * p.e2e_s, 2),
            t("study.column_run"): p.run.run_id,
        }
        for side, side_points in sides.items()
        for p in side_points
    ]
    return pd.DataFrame(rows)


# ------------------------------------------------------------------------------------------------- pictures
def curve(runs: Mapping[str, Run], *, key: str = "rs_curve", title: str | None = None) -> None:
    """The throughput-latency curve of both sides."""
    lang, sides = language(), _sides(runs)
    names = _names(sides)
    server = sides["server"]
    words = {**names, "x": t(f"{_NS}.curve_x"), "y": t(f"{_NS}.curve_y")}
    charts.show(
        real_server_charts.curve({side: _drawn(p) for side, p in sides.items()}, words),
        key=key,
        title=title or t(f"{_NS}.curve"),
        alt=t(
            f"{_NS}.curve_alt",
            low=server[0].size,
            high=server[-1].size,
            low_tps=number(server[0].tokens_per_s, lang),
            high_tps=number(server[-1].tokens_per_s, lang),
            low_ms=milliseconds(1e3 * server[0].e2e_s, lang),
            high_ms=milliseconds(1e3 * server[-1].e2e_s, lang),
        ),
        table=_table(sides, names),
        provenance=lambda: _sources(sides),
    )
    note(t(f"{_NS}.curve_note"))


def over_size(runs: Mapping[str, Run]) -> None:
    """TTFT and TPOT over the number of requests, both sides."""
    lang, sides = language(), _sides(runs)
    names, last = _names(sides), sides["server"][-1]
    words = {**names, "x": t(f"{_NS}.col_size"), "y_ttft": t(f"{_NS}.y_ttft"), "y_tpot": t(f"{_NS}.y_tpot")}
    charts.show(
        real_server_charts.over_size({side: _drawn(p) for side, p in sides.items()}, words),
        key="rs_size",
        title=t(f"{_NS}.size"),
        alt=t(
            f"{_NS}.size_alt",
            high=last.size,
            ttft=milliseconds(1e3 * last.ttft_s, lang),
            tpot=milliseconds(1e3 * last.tpot_s, lang),
        ),
        table=_table(sides, names),
        provenance=lambda: _sources(sides),
    )


def gaps(runs: Mapping[str, Run]) -> None:
    """Which share of the gaps is how short, at the largest load."""
    server, ours = both(runs)
    sides = {"server": [server[MOST]], "ours": [ours[MOST]]}
    _gaps({side: [1e3 * g for g in p[0].gaps_s] for side, p in sides.items()}, _names(sides), "rs_gaps", sides)


def _gaps(
    gaps_ms: Mapping[str, Sequence[float]], names: Mapping[str, str], key: str, sides: Mapping[str, Sequence[Point]]
) -> None:
    lang = language()
    found = {side: percentiles(values) for side, values in gaps_ms.items()}
    words = {**names, "x": t(f"{_NS}.gaps_x"), "y": t(f"{_NS}.gaps_y")}
    server = found["server"]
    charts.show(
        real_server_charts.gap_shares(gaps_ms, words),
        key=key,
        title=t(f"{_NS}.gaps"),
        alt=t(
            f"{_NS}.gaps_alt",
            n=server.count,
            middle=milliseconds(server.p50, lang),
            longest=milliseconds(server.maximum, lang),
        ),
        table=pd.DataFrame(
            [
                {
                    t(f"{_NS}.col_side"): names[side],
                    t(f"{_NS}.col_gaps"): p.count,
                    "p50 (ms)": p.p50 and round(p.p50, 2),
                    "p90 (ms)": p.p90 and round(p.p90, 2),
                    "p99 (ms)": p.p99 and round(p.p99, 2),
                    t(f"{_NS}.col_longest"): p.maximum and round(p.maximum, 2),
                }
                for side, p in found.items()
            ]
        ),
        provenance=lambda: _sources(sides),
    )


def _sources(sides: Mapping[str, Sequence[Point]]) -> None:
    provenance(*(p.run for side_points in sides.values() for p in side_points))


# ------------------------------------------------------------------------------------------------- comparison
def comparison(runs: Mapping[str, Run]) -> None:
    """Little's law and the sum of the parts beside what was measured, for both sides."""
    server, ours = both(runs)
    names = _names({"server": [server[ONE]]})
    rows = []
    for side, found in (("server", server), ("ours", ours)):
        rows += [_e2e_row(names[side], found[ONE]), _rate_row(names[side], found[MOST])]
    compare.table(rows, *(p.run for found in (server, ours) for p in (found[ONE], found[MOST])), key="rs_compare")
    st.markdown(t(f"{_NS}.compare_note"))


def _e2e_row(name: str, point: Point) -> compare.Row:
    lang, tokens = language(), point.num_tokens // point.size
    modelled = 1e3 * (point.ttft_s + (tokens - 1) * point.tpot_s)
    formula = t(
        f"{_NS}.formula_e2e",
        ttft=milliseconds(1e3 * point.ttft_s, lang),
        gaps=tokens - 1,
        tpot=milliseconds(1e3 * point.tpot_s, lang),
        result=milliseconds(modelled, lang),
    )
    measured = 1e3 * point.e2e_s
    title = t(f"{_NS}.row_e2e", side=name)
    return compare.Row(title, measured, modelled, milliseconds(measured, lang), milliseconds(modelled, lang), formula)


def _rate_row(name: str, point: Point) -> compare.Row:
    lang = language()
    formula = t(
        f"{_NS}.formula_rate",
        tokens=point.num_tokens,
        e2e=milliseconds(1e3 * point.e2e_s, lang),
        result=number(point.little_tps, lang),
    )
    return compare.Row(
        t(f"{_NS}.row_rate", side=name, n=point.size),
        point.tokens_per_s,
        point.little_tps,
        t(f"{_NS}.tokens_per_s", n=number(point.tokens_per_s, lang)),
        t(f"{_NS}.tokens_per_s", n=number(point.little_tps, lang)),
        formula,
    )


# ------------------------------------------------------------------------------------------------- what is missing
def lacks(run: Run) -> None:
    """What this Run cannot show, because it was watched from outside."""
    if run.header.observed is None:
        return
    known = catalogue(language())
    lines = [t(key) for code in run.header.observed.lacks if (key := f"{_NS}.lacks_{code}") in known]
    with st.expander(t(f"{_NS}.lacks", n=len(lines)), icon=":material/visibility_off:"):
        st.markdown("\n".join(f"- {line}" for line in lines))


# ------------------------------------------------------------------------------------------------- files
def files() -> None:
    """A file of another tool, drawn at once: TTFT, TPOT, gaps, and what it lacks. Effect: nothing is stored."""
    st.subheader(t(f"{_NS}.files"), anchor=False)
    st.markdown(t(f"{_NS}.files_what"))
    label = t(f"{_NS}.file", limit=MOST_FILE_MB)
    given = st.file_uploader(label, type=["json", "jsonl"], key="rs_file", max_upload_size=MOST_FILE_MB)
    if given is None:
        return
    try:
        run = import_run(given.getvalue().decode("utf-8"), given.name, f"run-{secrets.token_hex(6)}")
    except UnicodeDecodeError:
        st.error(t(f"{_NS}.file_no_text", name=escape(given.name)), icon=":material/error:")
        return
    except (ImportFileError, RunFileError, CheckError) as error:
        st.error(t(f"{_NS}.file_refused", message=said(str(error))), icon=":material/error:")
        return
    _file(run, given.name)


def _file(run: Run, name: str) -> None:
    lang, found = language(), run_metrics(run)
    times = {"TTFT": found.ttft_s, "TPOT": found.tpot_s, "E2E": found.e2e_s}
    rows = [
        {
            t(f"{_NS}.col_time"): label,
            "p50": _ms(p.p50),
            "p90": _ms(p.p90),
            "p99": _ms(p.p99),
            t(f"{_NS}.col_mean"): _ms(p.mean),
        }
        for label, p in times.items()
    ]
    known_rate = run.header.observed is None or "arrivals" not in run.header.observed.lacks
    rate = number(found.output_tokens_per_s, lang) if known_rate and found.output_tokens_per_s else DASH
    st.markdown(
        t(f"{_NS}.file_read", name=escape(name), n=found.num_requests, tokens=found.num_output_tokens, rate=rate)
    )
    st.table(pd.DataFrame(rows), hide_index=True, border="horizontal", alt=t(f"{_NS}.file_alt", name=name))
    provenance(run)
    gaps_ms = [1e3 * gap for record in run.requests for gap in gaps_s(run, record.request_id)]
    if gaps_ms:
        point = Point(found.num_requests, run, found.num_output_tokens, 0, 0, 0, 0, 1, ())
        _gaps({"server": gaps_ms}, {"server": escape(name)}, "rs_file_gaps", {"server": [point]})
    lacks(run)
    st.download_button(
        t(f"{_NS}.file_save"), run.to_jsonl(), f"{run.run_id}.jsonl", "application/jsonl", icon=":material/download:"
    )


def _ms(seconds: float | None) -> str:
    return DASH if seconds is None else milliseconds(1e3 * seconds, language())
