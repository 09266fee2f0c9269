"""One Run, or two side by side, in the views of the lessons: player on one axis, figures with ratio, requests, blocks.

It draws what is there: a Run that was watched from outside has no steps and no blocks, and says so. The figures are
``engine.lab.key_figures``'s, for any Run, so that this page, the reports and the command line show the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from engine.lab.key_figures import Figure, key_figures, phase_times, ratio
from engine.lab.records import Run
from engine.lab.replay import BlockRuleError
from engine.lab.tables import request_table
from pages._ui import block_map, charts, compare, session
from pages._ui.badges import badge, note, provenance
from pages._ui.i18n import language, t
from pages._ui.player import timeline_player
from pages._ui.units import DASH, factor, seconds
from pages._ui.views import e2e_per_request, ttft_per_request

_NS = "run_pair"
MOST_BARS = 32
LEAST_RATIO = 0.001
MOST_BLOCKS = 1_024  # of a pool that is drawn whole
Labelled = Sequence[tuple[str, Run]]


def draw(runs: Labelled, *, key: str) -> None:
    """All views of one labelled Run or two. Effect: Streamlit elements."""
    both = [run for _, run in runs]
    with_steps = [(label, run) for label, run in runs if run.steps]
    if len(with_steps) < len(runs):
        st.info(t(f"{_NS}.no_steps"), icon=":material/visibility_off:")
    if with_steps:
        st.subheader(t(f"{_NS}.player"), anchor=False)
        spoken = [session.store().texts(run.run_id).pieces or None for _, run in with_steps]
        timeline_player(with_steps, lang=language(), key=f"{key}_player", texts=spoken)
        provenance(*(run for _, run in with_steps))
    _figures(runs, key)
    if len(runs) == 2 and _same_requests(*both):
        _per_request("ttft", runs, key)
        _per_request("e2e", runs, key)
    _requests(runs, key)
    for index, (label, run) in enumerate(with_steps):
        _phases(label, run, f"{key}_phases_{index}")
        _blocks(label, run, f"{key}_blocks_{index}")


def _same_requests(first: Run, second: Run) -> bool:
    return [r.request_id for r in first.requests] == [r.request_id for r in second.requests]


def _figures(runs: Labelled, key: str) -> None:
    lang = language()
    columns: dict[str, list[str]] = {t("compare.quantity"): []}
    all_figures = [key_figures(run) for _, run in runs]
    heads = [f"{label} {badge('measured', run)}" for label, run in runs]  # once: in every cell it fits no phone
    for values in zip(*all_figures, strict=True):
        columns[t("compare.quantity")].append(t(f"report.fig_{values[0].name}"))
        for head, value in zip(heads, values, strict=True):
            columns.setdefault(head, []).append(value.text(lang))
        if len(values) == 2:
            columns.setdefault(t(f"{_NS}.ratio"), []).append(_ratio(*values))
    st.subheader(t("report.figures"), anchor=False)
    with st.container(key=f"{key}_figures"):
        st.table(pd.DataFrame(columns), hide_index=True, border="horizontal", alt=t(f"{_NS}.figures_alt"))
    provenance(*(run for _, run in runs))


def _ratio(first: Figure, second: Figure) -> str:
    """Of two waits that are both next to nothing, the ratio has digits that say nothing and fit no phone."""
    value, lang = ratio(first, second), language()
    return f"<{LEAST_RATIO}×" if value and value < LEAST_RATIO else factor(value, lang)


def _per_request(name: str, runs: Labelled, key: str) -> None:
    """TTFT or end-to-end time of every request in both Runs, as paired bars."""
    (first, one), (second, other) = runs
    read = {"ttft": ttft_per_request, "e2e": e2e_per_request}[name]
    before, after = read(one), read(other)
    names = list(before)[:MOST_BARS]
    values = [[found.get(n) for n in names] for found in (before, after)]
    words = {"static": first, "chunked": second, "x": t("batching.x_request"), "y": t(f"batching.y_{name}")}
    longest = [max((v for v in column if v is not None), default=None) for column in values]
    rounded = [[None if v is None else round(v, 2) for v in column] for column in values]
    table = {t("batching.x_request"): names, f"{first} (ms)": rounded[0], f"{second} (ms)": rounded[1]}
    lang = language()
    say = [seconds(None if value is None else value / 1e3, lang) for value in longest]
    charts.show(
        charts.per_request(names, *values, words),
        key=f"{key}_{name}",
        title=t(f"batching.{name}"),
        alt=t(f"{_NS}.per_request_alt", n=len(names), first=first, second=second, longest=say[0], other=say[1]),
        table=pd.DataFrame(table),
        provenance=lambda: provenance(one, other),
    )


def _requests(runs: Labelled, key: str) -> None:
    with st.expander(t(f"{_NS}.requests"), icon=":material/table_rows:"):
        for index, (label, run) in enumerate(runs):
            note(f"**{label}** {badge('measured', run)}")
            st.dataframe(
                _in_words(request_table(run).round(2)),
                hide_index=True,
                placeholder=DASH,
                key=f"{key}_requests_{index}",
                alt=t(f"{_NS}.requests"),
            )


def _in_words(frame: pd.DataFrame) -> pd.DataFrame:
    """The request table with its columns and endings in the language of the page. Pure but for that."""
    ended = {reason: t(f"player.finish_{reason}") for reason in ("stop", "length", "abort")}
    said = frame.assign(finish_reason=frame["finish_reason"].map(ended)) if "finish_reason" in frame else frame
    return said.rename(columns={column: t(f"{_NS}.col_{column}") for column in said.columns})


def _phases(label: str, run: Run, key: str) -> None:
    """Measured beside modelled: the steps of each kind against the roofline of their work."""
    lang = language()
    rows = [
        compare.Row(
            t(f"report.kind_{found.kind}"),
            found.measured_s,
            found.modelled_s,
            seconds(found.measured_s, lang),
            seconds(found.modelled_s, lang),
            t("report.formula"),
        )
        for found in phase_times(run)
    ]
    st.subheader(t("report.phases_caption", label=label), anchor=False)
    compare.table(rows, run, key=key)


def _blocks(label: str, run: Run, key: str) -> None:
    """The block map after a step of the learner's choice."""
    with st.expander(
        t(f"{_NS}.blocks", label=label), icon=":material/grid_view:", key=f"{key}_box", on_change="rerun"
    ) as box:
        if not box.open:
            return
        if run.header.num_blocks > MOST_BLOCKS:
            note(t(f"{_NS}.too_many_blocks", n=run.header.num_blocks, limit=MOST_BLOCKS))
            return
        last = len(run.steps) - 1
        step = st.slider(t(f"{_NS}.step"), 0, last, last // 2, key=f"{key}_step") if last else 0
        try:
            found = block_map.cells(run.header.num_blocks, run.header.block_size, run.steps[: step + 1])
        except BlockRuleError:
            note(t(f"{_NS}.no_steps"))
            return
        used = len(block_map.in_use(found))
        alt = t(f"{_NS}.blocks_alt", used=used, total=len(found), step=step)
        st.markdown(f"{alt} {badge('measured', run)}")
        top = max((cell.block_id for cell in found if cell.state != "free"), default=0)
        shown = found[: max(top + 1, 16)]
        block_map.draw(shown, run.header.block_size, alt=alt, key=f"{key}_map")
        provenance(run)
