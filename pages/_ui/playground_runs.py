"""The Runs of the playground: which ones are looked at, files that come in, files that go out, and "what if".

An imported file is read and checked (``engine.lab.imports``, ``engine.lab.check``) before anything changes; a broken
one is refused with one sentence. Stored Runs of every lesson can be chosen; the choice is kept for the session.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import streamlit as st

from engine.lab.check import CheckError
from engine.lab.counterfactual import vary
from engine.lab.export import to_chrome, to_csv
from engine.lab.imports import ImportFileError, import_run
from engine.lab.records import Run, RunFileError
from engine.lab.report import run_report
from engine.lab.scenario import Limits, Scenario, ScenarioError
from lessons import recorded
from lessons.catalog import load_lessons
from lessons.stored import StoredRun, import_key
from pages._ui import jobs, run_panel, session
from pages._ui.badges import escape, note
from pages._ui.engine_words import said
from pages._ui.i18n import language, t
from pages._ui.playground_form import CHOICES, POLICIES, option_words

_NS = "playground"
FIRST, SECOND, _NEXT = "pg_first", "pg_second", "_pg_next"
NOTHING = ""
MOST_FILE_MB = 50
IMPORTED = "imported"
CHANGEABLE = (("max_requests", 1, 256), ("max_batch_tokens", 1, 8_192), ("num_blocks", 1, 16_384))


@dataclass(frozen=True)
class Experiment:
    """Something this page runs: ``run_panel`` keeps one experiment for each id."""

    id: str


PLAYGROUND, WHAT_IF = Experiment("playground"), Experiment("what_if")


def show_next(first: str, second: str = NOTHING) -> None:
    """Effect: from the next run of the page on, these stored Runs are looked at."""
    st.session_state[_NEXT] = (first, second)


def choose() -> tuple[StoredRun | None, StoredRun | None]:
    """Which Run is looked at, and which beside it: own ones, and those that ship with lessons. Effect: two fields."""
    own = session.store().runs_of(session.learner())
    stored = {one.key: one for one in (*own, *recorded.listed())}
    state = st.session_state
    if _NEXT in state:
        state[FIRST], state[SECOND] = state.pop(_NEXT)
    options = [*stored] if own else [NOTHING, *stored]  # a recorded Run is shown only when it is asked for
    if state.get(FIRST) not in options:
        mine = (one.key for one in own if one.lesson_id == PLAYGROUND.id)
        state[FIRST] = next(mine, options[0])
    others = [NOTHING, *(key for key in stored if key != state[FIRST])]
    if state.get(SECOND) not in others:
        state[SECOND] = NOTHING
    words = {NOTHING: t(f"{_NS}.nothing"), **{key: _describe(one) for key, one in stored.items()}}
    for name, field, offered in (("first", FIRST, options), ("second", SECOND, others)):
        st.selectbox(t(f"{_NS}.{name}"), offered, key=field, format_func=words.__getitem__)
        if state[field] != NOTHING:
            with st.container(key=f"narrow_{name}"):  # on a phone only: the field cuts what it shows
                note(escape(words[state[field]]))
    if state[FIRST] == NOTHING:
        st.info(t(f"{_NS}.no_run"), icon=":material/insights:")
    return stored.get(state[FIRST]), stored.get(state[SECOND])


def _describe(one: StoredRun) -> str:
    titles = {lesson.id: lesson.title[language()] for lesson in load_lessons()}
    own = {PLAYGROUND.id: t(f"{_NS}.title"), WHAT_IF.id: t(f"{_NS}.what_if"), IMPORTED: t(f"{_NS}.imported")}
    try:
        when = datetime.fromisoformat(one.created_utc).strftime("%m-%d %H:%M")
    except ValueError:
        when = one.created_utc[:16]
    place = own.get(one.lesson_id) or titles.get(one.lesson_id, one.lesson_id)
    if recorded.is_recorded(one.key):
        place = f"{place} ({t(f'{_NS}.recorded')})"
    what = t(f"{_NS}.run_line", policy=one.policy or "–", n=one.num_requests, model=one.model or "–")
    return f"{when} · {place} · {what} · {one.run_id[-6:]}"


def labels(first: StoredRun, second: StoredRun | None) -> tuple[str, str]:
    """A short name for each of two Runs: the policy where that tells them apart. Pure."""
    names = [escape(one.policy or one.run_id) for one in (first, second) if one is not None]
    if len(names) == 2 and names[0] == names[1]:
        names = [f"A ({names[0]})", f"B ({names[1]})"]
    return names[0], names[-1]


# ------------------------------------------------------------------------------------------------- files
def importer() -> None:
    """Files that become stored Runs. Effect: a good one is stored and shown; a broken one changes nothing."""
    given = st.file_uploader(
        t(f"{_NS}.import", limit=MOST_FILE_MB),
        type=["jsonl", "json"],
        key="pg_file",
        help=t(f"{_NS}.import_help"),
        max_upload_size=MOST_FILE_MB,
    )
    if given is None:
        return
    try:
        run = import_run(given.getvalue().decode("utf-8"), given.name, f"run-{secrets.token_hex(6)}")
    except UnicodeDecodeError:
        st.error(t(f"{_NS}.import_no_text", name=escape(given.name)), icon=":material/error:")
        return
    except (ImportFileError, RunFileError, CheckError) as error:
        st.error(t(f"{_NS}.import_refused", name=escape(given.name), why=said(str(error))), icon=":material/error:")
        return
    if st.session_state.get("_pg_imported") != given.file_id:  # once for a file, not at every rerun
        st.session_state["_pg_imported"] = given.file_id
        key = import_key(run, session.learner())
        session.store().save_run(run, {}, IMPORTED, session.learner(), key=key)
        show_next(key, st.session_state.get(FIRST, NOTHING))
    st.success(t(f"{_NS}.import_done", name=escape(given.name), run=escape(run.run_id)), icon=":material/check_circle:")


def exports(run: Run, pieces: dict[str, list[str]] | None) -> None:
    """A Run as files. They are made when they are asked for, not before. Effect: buttons."""
    lang = language()
    files = (
        ("jsonl", "jsonl", "application/jsonl", run.to_jsonl),
        ("html", "html", "text/html", lambda: run_report(run, lang, pieces)),
        ("chrome", "trace.json", "application/json", lambda: json.dumps(to_chrome(run))),
        ("csv_requests", "requests.csv", "text/csv", lambda: to_csv(run, "requests")),
        ("csv_steps", "steps.csv", "text/csv", lambda: to_csv(run, "steps")),
    )
    note(t(f"{_NS}.export"))
    with st.container(horizontal=True, gap="small"):
        for name, ending, mime, make in files:
            st.download_button(
                t(f"{_NS}.export_{name}"),
                make,
                f"{run.run_id}.{ending}",
                mime,
                key=f"pg_export_{name}",
                icon=":material/download:",
                on_click="ignore",
            )


# ------------------------------------------------------------------------------------------------- what if
def what_if(key: str, run: Run) -> None:
    """The Run's workload again under another policy or other limits. Effect: runs it and shows the two side by side."""
    try:
        before = Scenario.parse(run.header.scenario)
    except ScenarioError as error:  # a Run watched from outside need not say what was asked
        note(t(f"{_NS}.what_if_not", why=said(str(error))))
        return
    st.markdown(t(f"{_NS}.what_if_text"))
    policy, limits = _changes(key, before)
    scenario, blocked = None, None
    try:
        scenario = vary(run, policy, limits)
    except ScenarioError as error:
        same = policy == before.policy and limits.items() <= before.limits.model_dump().items()
        blocked = t(f"{_NS}.what_if_same") if same else t(f"{_NS}.not_scenario", why=said(str(error)))

    def make_parts() -> Sequence[jobs.Part]:
        assert scenario is not None  # blocked otherwise
        return [jobs.Part("run", scenario)]

    run_panel.panel(WHAT_IF, make_parts, key, blocked, _show_pair)


def _changes(key: str, before: Scenario) -> tuple[str, dict[str, object]]:
    """The fields of the change, filled with what was; a new Run has new ones."""
    was = before.limits
    policy = st.selectbox(
        t(f"{_NS}.policy"),
        POLICIES,
        POLICIES.index(before.policy),
        key=f"wi_policy_{key}",
        format_func=option_words("policy").__getitem__,
    )
    with st.grid(2, min_column_width=220):
        limits: dict[str, object] = {
            name: st.number_input(t(f"{_NS}.{name}"), low, high, getattr(was, name), step=1, key=f"wi_{name}_{key}")
            for name, low, high in CHANGEABLE
        }
        caches = CHOICES["prefix_cache"]
        limits["prefix_cache"] = st.selectbox(
            t(f"{_NS}.prefix_cache"),
            caches,
            caches.index(was.prefix_cache),
            key=f"wi_prefix_cache_{key}",
            format_func=option_words("prefix_cache").__getitem__,
        )
    assert set(limits) <= set(Limits.model_fields)
    return policy, limits


def _show_pair(job: jobs.Job) -> None:
    """``mark`` is the key of the Run that was varied."""
    show_next(job.mark, job.run_ids[-1])
    st.rerun()
