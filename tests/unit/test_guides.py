"""Every lesson has a guide for instructors in both languages, of one form; a missing or broken one is named plainly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lessons.catalog import LessonError, lesson, load_lessons
from lessons.guide import as_markdown, guide, parse, problems
from lessons.text import LANGS

LESSONS = [found.id for found in load_lessons()]
CJK = re.compile(r"[\u4e00-\u9fff]")


@pytest.mark.parametrize("lesson_id", LESSONS)
def test_a_lesson_has_a_whole_guide_in_both_languages(lesson_id: str) -> None:
    assert problems(lesson_id) == []


@pytest.mark.parametrize("lesson_id", LESSONS)
def test_a_guide_is_written_in_its_language_and_reads_as_a_document(lesson_id: str) -> None:
    for lang in LANGS:
        found, text = guide(lesson_id, lang), as_markdown(lesson(lesson_id), lang)
        assert bool(CJK.search(found.aim)) == (lang == "zh")
        assert all(bool(CJK.search(step.text)) == (lang == "zh") for step in found.steps)
        assert all(belief in text for belief in lesson(lesson_id).misconceptions[lang])
        assert text.count("\n### ") == len(found.steps)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("## trouble", "## troubles"), "has the sections"),
        (lambda text: text.replace("### look · ", "### look · 1"), "minutes"),
        (lambda text: text.replace("### run · ", "### walk · "), "steps lack run"),
        (lambda text: text.replace("\n### 2\n", "\n"), "misconceptions"),
        (lambda text: re.sub(r"(?s)## ask.*?## mis", "## ask\n\n- One question?\n\n## mis", text), "ask has 1"),
        (lambda text: re.sub(r"(?s)## aim.*?## steps", "## aim\n\n## steps", text), "empty"),
    ],
)
def test_a_broken_guide_is_refused_in_one_sentence(tmp_path: Path, change, said: str) -> None:
    whole = (Path(parse.__code__.co_filename).parent / "batching" / "guide.en.md").read_text(encoding="utf-8")
    path = tmp_path / "guide.en.md"
    path.write_text(change(whole), encoding="utf-8")
    with pytest.raises(LessonError, match=said):
        parse(path, lesson("batching"))


def test_a_missing_guide_says_where_its_form_is_described(tmp_path: Path) -> None:
    with pytest.raises(LessonError, match=r"no guide; its form is described in lessons/guide\.py"):
        parse(tmp_path / "guide.en.md", lesson("batching"))
