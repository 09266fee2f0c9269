"""Emphasis in Chinese text opens and closes where a reader expects it, and nothing else changes."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt

from lessons.catalog import load_lessons
from pages._ui.i18n import LANGUAGES, catalogue, translate
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


def test_no_string_of_a_page_shows_an_asterisk() -> None:
    for lang in LANGUAGES:
        for key, text in catalogue(lang).items():
            if "**" in text and "{" not in text:
                assert "**" not in MarkdownIt().render(translate(lang, key)), (lang, key)


def test_bold_is_mended_after_the_values_are_filled_in() -> None:
    said = translate("zh", "recorded.banner", date="7 月 14 日", device="甲（乙）", threads=2)
    assert "**" not in MarkdownIt().render(said)
