"""Emphasis in Chinese text opens and closes where a reader expects it, and nothing else changes."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt

from lessons.catalog import load_lessons
from pages._ui.prose import mend


@pytest.mark.parametrize(
    "text",
    ["**要算的一样多。**一个 token", "这叫**“访存受限”**的意思", "**先做完（B）**的请求", "一**批**，分摊"],
)
def test_bold_is_rendered(text: str) -> None:
    shown = MarkdownIt().render(mend(text))
    assert "<strong>" in shown
    assert "*" not in shown


def test_english_and_lists_stay_as_they_are() -> None:
    text = "- **The rule.** It holds.\n- a * b ** c\n\n**Two** and `**code**`"
    assert mend(text) == text


def test_no_lesson_text_shows_an_asterisk() -> None:
    for lesson in load_lessons():
        for lang in ("en", "zh"):
            for section in lesson.sections:
                shown = MarkdownIt().render(mend(lesson.text(lang, section)))
                assert "**" not in shown, (lesson.id, lang, section)
