"""A learner's lesson as one HTML file to keep or hand in: what was predicted, what the engine gave, figures, quiz.

It arranges what is stored; nothing is computed or graded here. It opens offline and prints (``engine.lab.report``). It
holds no name and no id of the learner. The file is made when it is asked for, outside of the page's run, so everything
it needs is passed in, the language too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import streamlit as st

from engine.lab.key_figures import key_figures
from engine.lab.player.payload import MOST_RUNS
from engine.lab.records import Run
from engine.lab.report import Cell, Page, Section, Table, Text, page, run_sections
from lessons import recorded
from lessons.catalog import Lesson, compare
from lessons.facts_error import FactsError
from lessons.quiz import Item
from lessons.run_facts import headline
from lessons.store import Store
from pages._ui import session
from pages._ui.badges import note
from pages._ui.i18n import language, t, translate
from pages._ui.prediction_words import say, verdict
from pages._ui.run_panel import part_name

_NS = "lesson_report"
IN_LIST = ("output_tokens", "makespan", "throughput", "ttft_mean", "tpot_mean")  # of many Runs, in one line each


def button(lesson: Lesson, runs: Mapping[str, Run], items: Sequence[Item]) -> None:
    """The report of this lesson, for the learner of this browser. Effect: a button with a line above it."""
    store, learner, lang = session.store(), session.learner(), language()
    note(t(f"{_NS}.what"))
    st.download_button(
        t(f"{_NS}.download"),
        lambda: report(lesson, runs, items, store, learner, lang),
        f"{lesson.id}-{lang}.html",
        "text/html",
        key=f"lesson_report_{lesson.id}",
        icon=":material/summarize:",
        on_click="ignore",
    )


def report(
    lesson: Lesson, runs: Mapping[str, Run], items: Sequence[Item], store: Store, learner: str, lang: str
) -> str:
    """The HTML file. ``runs`` by role as the lesson shows them; ``items``: its quiz with those made from the Runs."""
    sections = [
        _predictions(lesson, store, learner, lang),
        *_happened(lesson, runs, lang),
        _quiz(items, lesson, store, learner, lang),
    ]
    labelled = [(_name(lesson, role, lang), run) for role, run in runs.items()]
    if 1 <= len(labelled) <= MOST_RUNS:
        pieces = [store.texts(run.run_id).pieces or None for _, run in labelled]
        sections += run_sections(labelled, lang, pieces)
    elif labelled:
        sections += [_many(labelled, lang), run_sections(labelled[:1], lang)[-1]]
    today = datetime.now(UTC).date().isoformat()
    return page(
        Page(
            lang=lang,
            title=translate(lang, f"{_NS}.title", title=lesson.title[lang]),
            lead=_plain(lesson.goal[lang]),
            sections=sections,
            foot=translate(lang, f"{_NS}.foot", date=today),
        )
    )


def _name(lesson: Lesson, role: str, lang: str) -> str:
    try:
        return part_name(lesson.id, role, lang)
    except KeyError:
        return role


def _plain(markdown: str) -> str:
    """Lesson text without its marks of emphasis: a report has its own. Pure."""
    return re.sub(r"\*\*|`", "", markdown)


def _predictions(lesson: Lesson, store: Store, learner: str, lang: str) -> Section:
    """Every attempt, the settled ones with what the run gave and how far off that was."""
    rows = []
    for kept in store.predictions(learner, lesson.id):
        prediction = next((p for p in lesson.predictions if p.id == kept.prediction_id), None)
        if prediction is None:  # the lesson has changed since
            continue
        row: list[str | Cell] = [_plain(prediction.prompt[lang]), say(prediction, kept.value, lang)]
        if kept.answer is None:
            row += [translate(lang, f"{_NS}.open"), ""]
        else:
            outcome = verdict(compare(kept.value, kept.answer), lang)
            row += [Cell(say(prediction, kept.answer, lang), "measured"), outcome]
        rows.append(row)
    title = translate(lang, f"{_NS}.predictions")
    if not rows:
        return Section(title, [Text(translate(lang, f"{_NS}.no_prediction"))])
    columns = [translate(lang, f"{_NS}.{name}") for name in ("question", "said", "gave", "how_far")]
    return Section(title, [Table(title, columns, rows, numeric_from=len(columns))])


def _happened(lesson: Lesson, runs: Mapping[str, Run], lang: str) -> list[Section]:
    try:
        sentence = headline(lesson.id, dict(runs), lang) if runs else ""
    except FactsError:
        sentence = ""
    if not sentence:
        return []
    blocks = [Text(Cell(_plain(sentence), "measured"), strong=True)]
    foreign = next((run for run in runs.values() if recorded.is_recorded(run.run_id)), None)
    if foreign is not None:
        origin = recorded.origin(foreign)
        blocks.append(Text(translate(lang, f"{_NS}.recorded", device=origin.device, date=origin.date)))
    return [Section(translate(lang, f"{_NS}.happened"), blocks)]


def _quiz(items: Sequence[Item], lesson: Lesson, store: Store, learner: str, lang: str) -> Section:
    """Every item with the best score of the learner's attempts."""
    best: dict[str, float] = {}
    tries: dict[str, int] = {}
    for answer in store.answers(learner, lesson.id):
        best[answer.item_id] = max(best.get(answer.item_id, 0.0), answer.score)
        tries[answer.item_id] = max(tries.get(answer.item_id, 0), answer.attempt)
    rows = []
    for number, item in enumerate(items, start=1):
        score = best.get(item.id)
        word = "unanswered" if score is None else "right" if score >= 1 else "partly" if score > 0 else "wrong"
        said = translate(lang, f"{_NS}.{word}")
        rows.append([f"{number}. {_plain(item.prompt[lang])}", said, str(tries.get(item.id, 0))])
    right = sum(best.get(item.id, 0.0) >= 1 for item in items)
    columns = [translate(lang, f"{_NS}.{name}") for name in ("question", "result", "tries")]
    title = translate(lang, f"{_NS}.quiz")
    score = Text(translate(lang, f"{_NS}.score", right=right, total=len(items)), strong=True)
    return Section(title, [score, Table(title, columns, rows)])


def _many(labelled: Sequence[tuple[str, Run]], lang: str) -> Section:
    """A study of many Runs: one line each."""
    names = [translate(lang, f"{_NS}.run"), *(translate(lang, f"report.fig_{name}") for name in IN_LIST)]
    rows = []
    for label, run in labelled:
        found = {figure.name: figure for figure in key_figures(run)}
        rows.append([label, *(Cell(found[name].text(lang), "measured") for name in IN_LIST)])
    title = translate(lang, f"{_NS}.runs")
    return Section(title, [Table(title, names, rows)])
