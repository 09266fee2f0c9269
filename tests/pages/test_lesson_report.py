"""The report of a lesson: what was predicted, given and answered is in it, in both languages, and who it was is not."""

from __future__ import annotations

import html
import re

import pytest

from lessons import recorded
from lessons.catalog import lesson
from lessons.generated import items_from_runs
from pages._ui.i18n import translate
from pages._ui.lesson_report import report
from tests.pages.test_lessons import LEARNER, run_lesson
from tests.pages.test_smoke import CJK


def plain(text: str) -> str:
    body = re.sub(r"<(style|script)\b.*?</\1>", " ", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", body)))


def test_a_lesson_from_prediction_to_quiz_is_in_its_report(lab, store) -> None:
    at = run_lesson(lab, "prefill_decode", "p_prefill_decode.py")
    assert not at.exception
    assert [b.label for b in at.get("download_button")].count(translate("en", "lesson_report.download")) == 1
    shown, runs = lesson("prefill_decode"), store.latest_runs(LEARNER, "prefill_decode")
    items = [*shown.quiz, *items_from_runs(shown.id, dict(runs), LEARNER)]
    store.save_answer(LEARNER, shown.id, items[0].id, "x", 1.0)
    store.save_answer(LEARNER, shown.id, items[1].id, "x", 0.0)
    for lang in ("en", "zh"):
        text = report(shown, runs, items, store, LEARNER, lang)
        said = plain(text)
        assert f"<h1>{translate(lang, 'lesson_report.title', title=shown.title[lang])}</h1>" in text
        assert translate(lang, "lesson_report.score", right=1, total=len(items)) in said
        assert all(re.sub(r"\*\*|`", "", p.prompt[lang]) in said for p in shown.predictions)
        assert runs["run"].run_id in said and "timeline-data" in text
        assert bool(CJK.search(said)) == (lang == "zh")
        assert LEARNER not in text
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    assert "too high" in plain(report(shown, runs, items, store, LEARNER, "en"))


def test_before_anything_was_done_the_report_says_so(store) -> None:
    shown = lesson("batching")
    said = plain(report(shown, {}, shown.quiz, store, store.learner(LEARNER), "en"))
    assert translate("en", "lesson_report.no_prediction") in said
    assert said.count("not answered") == len(shown.quiz)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_many_recorded_runs_are_one_line_each_and_called_recorded(store, lang: str) -> None:
    shown, runs = lesson("batch_size"), recorded.runs("batch_size")
    assert len(runs) > 5
    text = report(shown, runs, shown.quiz, store, store.learner(LEARNER), lang)
    origin = recorded.origin(next(iter(runs.values())))
    assert html.escape(translate(lang, "lesson_report.recorded", device=origin.device, date=origin.date)) in text
    assert "timeline-data" not in text and text.count("<table>") == 2  # the quiz and the runs
