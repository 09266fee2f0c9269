"""The parts of the last page: the claims table for the picked model, what a prediction needs, the run as a whole.

The table and its sentences come from ``lessons.summary.table``; here they are only set side by side. The learner's Runs
of all lessons are read once and kept in the session until one of the lessons has a new one.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import streamlit as st

from engine.lab import catalogue
from engine.lab.metrics import duration_s, step_kind
from engine.lab.records import ModelInfo, Run
from engine.lab.work import kv_bytes_per_token, moved_bytes, roofline_s
from lessons import recorded
from lessons.catalog import lesson as find_lesson
from lessons.catalog import load_lessons
from lessons.summary.course_claims import bytes_of
from lessons.summary.facts import Whole
from lessons.summary.table import Row, table
from pages._ui import charts, claims_table, compare, session, summary_charts
from pages._ui.badges import badge, escape, note, provenance, shows_recorded
from pages._ui.i18n import language, t
from pages._ui.summary_charts import StepBar
from pages._ui.units import byte_count, flop_count, number, seconds

_NS = "summary"
HERE = "here"  # the model of this lab, in place of one of the catalogue
MODELS = (HERE, *(model.id for model in catalogue.models()))
DEFAULT_MODEL = "llama-2-7b"  # the shape of the source's example
FORMAT = "float16"  # of catalogue models, as in the source's example

CourseRuns = Mapping[str, Mapping[str, Run]]


# ------------------------------------------------------------------------------------------------- what there is
def course_runs() -> CourseRuns:
    """The Runs that every lesson shows: lesson id -> role -> Run.

    While this page shows its recorded Run, a lesson in which the learner has run nothing yet gives its recorded ones.
    """
    store, learner = session.store(), session.learner()
    progress = store.progress(learner)
    from_recorded = store.shows_recorded(learner, "summary")
    kept = st.session_state.setdefault("_course_runs", {})
    found: dict[str, Mapping[str, Run]] = {}
    for lesson in load_lessons():
        done = progress.get(lesson.id)
        if done is None or not done.num_runs:
            if from_recorded:
                found[lesson.id] = recorded.runs(lesson.id)
            continue
        stamp = (done.num_runs, done.last_utc, store.shows_recorded(learner, lesson.id))
        if kept.get(lesson.id, (None,))[0] != stamp:
            kept[lesson.id] = (stamp, store.latest_runs(learner, lesson.id))
        found[lesson.id] = kept[lesson.id][1]
    return found


def model_here(runs: CourseRuns) -> ModelInfo:
    """The model of the newest Runs; without any, the engine's own; without an engine, the one this lab ships."""
    for roles in reversed(list(runs.values())):
        for run in roles.values():
            return run.header.model
    about = (session.device() or {}).get("default_model")
    return ModelInfo.model_validate(about) if about else catalogue.model("smollm2-135m").info("float32")


def picked(model_id: str, runs: CourseRuns) -> ModelInfo:
    """The shape that the table is made for."""
    return model_here(runs) if model_id == HERE else catalogue.model(model_id).info(FORMAT)


def model_name(model_id: str, runs: CourseRuns) -> str:
    if model_id != HERE:
        return catalogue.model(model_id).name
    return t(f"{_NS}.model_here", name=model_here(runs).name)


# ------------------------------------------------------------------------------------------------- the claims table
def claims(model: ModelInfo, runs: CourseRuns, pages: Mapping[str, st.Page]) -> None:
    """All claims in one table of numbers, then every claim in sentences, lesson by lesson."""
    rows = table(model, runs)
    _overview(rows, model)
    _missing(rows, pages)
    for lesson_id in dict.fromkeys(row.claim.lesson_id for row in rows):
        mine = [row for row in rows if row.claim.lesson_id == lesson_id]
        title = find_lesson(lesson_id).title[language()]
        with st.expander(
            t(f"{_NS}.claims_of", first=mine[0].claim.id, last=mine[-1].claim.id, lesson=title),
            icon=":material/rule:",
            key=f"claims_of_{lesson_id}",
        ):
            for row in mine:
                claims_table.card(row.claim)
            if lesson_id in pages:
                st.page_link(pages[lesson_id], label=t(f"{_NS}.open_lesson", lesson=title))


def _overview(rows: tuple[Row, ...], model: ModelInfo) -> None:
    """Four columns: more cannot be read on a phone. The verdict stands beside the name."""
    lang = language()
    frame = pd.DataFrame(
        {
            t(f"{_NS}.col_claim"): [f"**{row.claim.id}** {row.name[lang]} {_short(row)}" for row in rows],
            t(f"{_NS}.col_source"): [row.source[lang] for row in rows],
            f"{t(f'{_NS}.col_ours')} {badge('modelled')}": [row.ours[lang] for row in rows],
            f"{t(f'{_NS}.col_here')} {badge('measured')}": [
                row.here[lang] if row.here else t(f"{_NS}.not_yet") for row in rows
            ],
        }
    )
    with st.container(key="claims_table"):
        st.table(frame, hide_index=True, border="horizontal", alt=t(f"{_NS}.table_alt", model=model.name))
    note(f"{badge('modelled')} {t(f'{_NS}.ours_where', model=escape(model.name), source=escape(model.source))}")
    used = {run.run_id: run for row in rows for run in row.runs}
    if used:
        provenance(*used.values())
        note(t(f"{_NS}.here_where", model=escape(next(iter(used.values())).header.model.name)))


def _short(row: Row) -> str:
    """The verdict in a word. Markdown."""
    colour, icon = claims_table.LOOK[row.claim.verdict]
    return f":{colour}[:material/{icon}: {t(f'{_NS}.verdict_{row.claim.verdict}')}]"


def _missing(rows: tuple[Row, ...], pages: Mapping[str, st.Page]) -> None:
    """The lessons that would fill the gaps of the table."""
    lacking = dict.fromkeys(row.measured_in for row in rows if row.here is None)
    if not lacking:
        return
    lang = language()
    st.markdown(t(f"{_NS}.missing"))
    for lesson_id in lacking:
        ids = [row.claim.id for row in rows if row.here is None and row.measured_in == lesson_id]
        listed = ", ".join(ids) if lang == "en" else "、".join(ids)
        label = t(f"{_NS}.measures", claims=listed, lesson=find_lesson(lesson_id).title[lang])
        if lesson_id in pages:
            st.page_link(pages[lesson_id], label=label)
        else:
            note(label)


# ------------------------------------------------------------------------------------------------- before the run
def given(runs: CourseRuns) -> None:
    """What a prediction needs: the model's shape and the device's ceilings, each with where it comes from."""
    lang, about = language(), session.device() or {}
    # The run below is of the engine's own model as it is; the newest Runs may have had it in another format.
    own = about.get("default_model")
    model = ModelInfo.model_validate(own) if own else model_here(runs)
    # What recorded Runs are compared with is the device that they ran on, not the one behind this page.
    device = {} if shows_recorded() else about.get("device") or {}
    known = (runs.get("summary", {}), *runs.values())
    newest = next((run.header.device for roles in known for run in roles.values()), None)
    read = device.get("read_gbps") or (newest.read_gbps if newest else None)
    rate = device.get("matmul_tflops") or (newest.matmul_tflops if newest else None)
    size = bytes_of(model)
    rows = [
        (t(f"{_NS}.given_parameters"), number(model.num_parameters / 1e6, lang) + " M", "spec"),
        (t(f"{_NS}.given_weights"), byte_count(model.weight_bytes, lang), "modelled"),
        (
            t(f"{_NS}.given_shape"),
            t(f"{_NS}.shape", layers=model.num_layers, heads=model.num_kv_heads, dim=model.head_dim),
            "spec",
        ),
        (t(f"{_NS}.given_bytes"), f"{size:g}", "spec"),
        (t(f"{_NS}.given_block"), "16", "spec"),
        (t(f"{_NS}.given_read"), f"{number(read, lang)} GB/s" if read else t(f"{_NS}.not_yet"), "measured"),
        (t(f"{_NS}.given_rate"), f"{number(rate, lang)} TFLOP/s" if rate else t(f"{_NS}.not_yet"), "measured"),
    ]
    frame = pd.DataFrame(
        {
            t("compare.quantity"): [name for name, _, _ in rows],
            t(f"{_NS}.col_value"): [f"{value} {badge(kind)}" for _, value, kind in rows],
        }
    )
    with st.container(key="given_table", width=620):
        st.table(frame, hide_index=True, border="horizontal", alt=t(f"{_NS}.given_alt"))
        note(f"{badge('spec')} {t('common.sourced', name=escape(model.name), source=escape(model.source))}")


# ------------------------------------------------------------------------------------------------- the run
def the_run(found: Whole) -> None:
    """Every step beside the least it could take, and the KV blocks beside the formula."""
    lang, run = language(), found.run
    device = run.header.device
    roof = (device.read_gbps, device.matmul_tflops) if device.read_gbps and device.matmul_tflops else None
    bars = [
        StepBar(
            step=step.step,
            kind="decode" if step_kind(step) == "decode" else "prefill",
            ms=1e3 * duration_s(step),
            modelled_ms=1e3 * roofline_s(step.work.flops, moved_bytes(step.work), *roof) if roof else None,
            blocks=step.blocks.in_use,
        )
        for step in run.steps
    ]
    words = {
        name: t(f"{_NS}.{name}")
        for name in ("prefill", "decode", "modelled", "blocks", "formula", "x", "y_time", "y_blocks")
    }
    frame = pd.DataFrame(
        {
            t(f"{_NS}.x"): [bar.step for bar in bars],
            t(f"{_NS}.col_kind"): [words[bar.kind] for bar in bars],
            t(f"{_NS}.col_tokens"): [step.work.tokens for step in run.steps],
            t(f"{_NS}.y_time"): [round(bar.ms, 2) for bar in bars],
            t(f"{_NS}.col_modelled"): [None if bar.modelled_ms is None else round(bar.modelled_ms, 2) for bar in bars],
            t(f"{_NS}.y_blocks"): [bar.blocks for bar in bars],
        }
    )
    charts.show(
        summary_charts.steps(bars, found.modelled_blocks, words),
        key="sm_steps",
        title=t(f"{_NS}.steps"),
        alt=t(
            f"{_NS}.steps_alt",
            steps=len(bars),
            total=seconds(found.total_s, lang),
            blocks=found.peak_blocks,
            formula=found.modelled_blocks,
        ),
        table=frame,
        provenance=lambda: provenance(run, modelled=True),
    )


def comparison(found: Whole) -> None:
    """Time of the two phases, in all, and the KV memory, measured beside what the formulas say."""
    lang = language()
    prefill, decode = found.modelled_s(found.prefill), found.modelled_s(found.decode)
    both = prefill + decode if prefill is not None and decode is not None else None
    rows = [
        _time_row("row_prefill", found.seconds(found.prefill), prefill, found.prefill, found),
        _time_row("row_decode", found.seconds(found.decode), decode, found.decode, found),
        compare.Row(
            t(f"{_NS}.row_total"),
            found.total_s,
            both,
            seconds(found.total_s, lang),
            seconds(both, lang),
            t("compare.no_model")
            if both is None
            else t(
                f"{_NS}.formula_total",
                prefill=seconds(prefill, lang),
                decode=seconds(decode, lang),
                total=seconds(both, lang),
            ),
        ),
        compare.Row(
            t(f"{_NS}.row_memory"),
            found.peak_bytes,
            found.modelled_bytes,
            byte_count(found.peak_bytes, lang),
            byte_count(found.modelled_bytes, lang),
            t(
                f"{_NS}.formula_memory",
                n=found.num_requests,
                positions=found.positions,
                block=found.run.header.block_size,
                blocks=found.modelled_blocks,
                per_position=byte_count(kv_bytes_per_token(found.run.header.model, bytes_of_run(found)), lang),
                result=byte_count(found.modelled_bytes, lang),
            ),
        ),
    ]
    compare.table(rows, found.run, key="sm_compare")
    st.markdown(t(f"{_NS}.compare_note"))


def bytes_of_run(found: Whole) -> float:
    """Bytes of one number in the run's KV cache. Pure."""
    model = found.run.header.model
    return found.bytes_per_position / kv_bytes_per_token(model, 1.0)


def _time_row(name: str, measured: float, modelled: float | None, steps: tuple, found: Whole) -> compare.Row:
    lang, device = language(), found.run.header.device
    formula = t("compare.no_model")
    if modelled is not None:
        formula = t(
            f"{_NS}.formula_steps",
            n=len(steps),
            bytes=byte_count(sum(moved_bytes(s.work) for s in steps), lang),
            flops=flop_count(sum(s.work.flops for s in steps), lang),
            read=number(device.read_gbps, lang),
            rate=number(device.matmul_tflops, lang),
            result=seconds(modelled, lang),
        )
    return compare.Row(
        t(f"{_NS}.{name}"), measured, modelled, seconds(measured, lang), seconds(modelled, lang), formula
    )
