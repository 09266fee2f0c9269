"""A bank of quiz items as files that other systems read: GIFT and Moodle XML.

It decides how our kinds of items are expressed there: choice and several as multiple choice (with the same marks),
number as numerical with tolerance and traps, order as matching of steps and places, a trace as preformatted text. It is
the one place where keys leave the server, on the wish of an instructor. Pure. Invariant: every text is escaped for the
format it stands in, so that what is read back is what the bank says. Formats as in the Moodle documentation.
"""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable

from lessons.quiz import ChoiceItem, Item, NumberItem, OrderItem, SeveralItem
from lessons.text import Lang

_GIFT_SPECIAL = re.compile(r"([\\~=#{}:])")
_BOLD = re.compile(r"\*\*(.+?)\*\*")
_CODE = re.compile(r"`([^`]+)`")


def as_html(text: str) -> str:
    """A short text of the bank as HTML: special characters escaped, emphasis and code kept, lines kept. Pure."""
    escaped = html.escape(text.strip(), quote=False)
    escaped = _CODE.sub(r"<code>\1</code>", _BOLD.sub(r"<b>\1</b>", escaped))
    return escaped.replace("\n", "<br>")


def _prompt(item: Item, lang: Lang, hint: str = "") -> str:
    parts = [f"<p>{as_html(item.prompt[lang])}{hint}</p>"]
    if item.trace:
        parts.append(f"<pre>{html.escape(item.trace[lang].rstrip(), quote=False)}</pre>")
    return "".join(parts)


def _unit(item: NumberItem, lang: Lang) -> str:
    return f" ({html.escape(item.unit[lang], quote=False)})"


def _number(value: float) -> str:
    """Without an exponent and without a tail of binary noise."""
    text = f"{value:.12g}"
    return text if "e" not in text else f"{value:.12f}".rstrip("0").rstrip(".")


# ------------------------------------------------------------------------------------------------- GIFT
def to_gift(items: Iterable[Item], lang: Lang, category: str = "") -> str:
    """The items as a GIFT file, one question per paragraph, in HTML. Pure."""
    blocks = [f"$CATEGORY: {category}"] if category else []
    blocks += [_gift(item, lang) for item in items]
    return "\n\n".join(blocks) + "\n"


def _gift(item: Item, lang: Lang) -> str:
    hint = _unit(item, lang) if isinstance(item, NumberItem) else ""
    head = f"::{_escape(item.id)}::[html]{_escape(_prompt(item, lang, hint))}"
    if isinstance(item, ChoiceItem):
        answers = [_gift_option("=" if o.correct else "~", o.text[lang], o.feedback[lang]) for o in item.options]
    elif isinstance(item, SeveralItem):
        share = _number(100 / sum(o.correct for o in item.options))
        answers = [
            _gift_option(f"~%{'' if o.correct else '-'}{share}%", o.text[lang], o.feedback[lang]) for o in item.options
        ]
    elif isinstance(item, NumberItem):
        return f"{head} {{#\n" + "\n".join(_gift_numbers(item, lang)) + "\n}"
    else:
        answers = [f"={_escape(as_html(step.text[lang]))} -> {place}" for place, step in enumerate(item.steps, start=1)]
    general = f"\n####{_escape(as_html(item.explanation[lang]))}" if isinstance(item, OrderItem) else ""
    return f"{head} {{\n" + "\n".join(answers) + general + "\n}"


def _gift_option(mark: str, text: str, feedback: str) -> str:
    return f"{mark}{_escape(as_html(text))}#{_escape(as_html(feedback))}"


def _gift_numbers(item: NumberItem, lang: Lang) -> list[str]:
    lines = [f"={_number(item.answer)}:{_number(item.tolerance)}#{_escape(as_html(item.explanation[lang]))}"]
    lines += [
        f"=%0%{_number(trap.value)}:{_number(trap.within)}#{_escape(as_html(trap.feedback[lang]))}"
        for trap in item.traps
    ]
    return [*lines, f"~#{_escape(as_html(item.otherwise[lang]))}"]


def _escape(text: str) -> str:
    """For a place inside a GIFT question. Line breaks must not stand there as such. Pure."""
    return _GIFT_SPECIAL.sub(r"\\\1", text).replace("\n", r"\n")


# ------------------------------------------------------------------------------------------------- Moodle XML
def to_moodle_xml(items: Iterable[Item], lang: Lang, category: str = "") -> str:
    """The items as a Moodle XML file. Pure."""
    quiz = ET.Element("quiz")
    if category:
        _text(ET.SubElement(ET.SubElement(quiz, "question", type="category"), "category"), f"$course$/{category}")
    for item in items:
        quiz.append(_question(item, lang))
    ET.indent(quiz, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(quiz, encoding="unicode") + "\n"


_TYPES = {"choice": "multichoice", "several": "multichoice", "number": "numerical", "order": "matching"}


def _question(item: Item, lang: Lang) -> ET.Element:
    question = ET.Element("question", type=_TYPES[item.kind])
    _text(ET.SubElement(question, "name"), item.id)
    hint = _unit(item, lang) if isinstance(item, NumberItem) else ""
    _html(ET.SubElement(question, "questiontext"), _prompt(item, lang, hint))
    _value(question, "defaultgrade", "1")
    if isinstance(item, ChoiceItem | SeveralItem):
        _multichoice(question, item, lang)
    elif isinstance(item, NumberItem):
        _numerical(question, item, lang)
    else:
        _matching(question, item, lang)
    return question


def _multichoice(question: ET.Element, item: ChoiceItem | SeveralItem, lang: Lang) -> None:
    single = isinstance(item, ChoiceItem)
    _value(question, "single", "true" if single else "false")
    _value(question, "shuffleanswers", "true")
    _value(question, "answernumbering", "none")
    share = 100 / sum(o.correct for o in item.options)
    for option in item.options:
        worth = share if option.correct else 0.0 if single else -share
        answer = ET.SubElement(question, "answer", fraction=f"{worth:.5f}".rstrip("0").rstrip("."), format="html")
        _value(answer, "text", as_html(option.text[lang]))
        _html(ET.SubElement(answer, "feedback"), as_html(option.feedback[lang]))


def _numerical(question: ET.Element, item: NumberItem, lang: Lang) -> None:
    answers = [("100", _number(item.answer), item.tolerance, item.explanation)]
    answers += [("0", _number(trap.value), trap.within, trap.feedback) for trap in item.traps]
    answers.append(("0", "*", 0.0, item.otherwise))
    for fraction, value, tolerance, words in answers:
        answer = ET.SubElement(question, "answer", fraction=fraction, format="moodle_auto_format")
        _value(answer, "text", value)
        _html(ET.SubElement(answer, "feedback"), as_html(words[lang]))
        _value(answer, "tolerance", _number(tolerance))


def _matching(question: ET.Element, item: OrderItem, lang: Lang) -> None:
    _html(ET.SubElement(question, "generalfeedback"), as_html(item.explanation[lang]))
    _html(ET.SubElement(question, "incorrectfeedback"), as_html(item.otherwise[lang]))
    _value(question, "shuffleanswers", "true")
    for place, step in enumerate(item.steps, start=1):
        part = ET.SubElement(question, "subquestion", format="html")
        _value(part, "text", as_html(step.text[lang]))
        _text(ET.SubElement(part, "answer"), str(place))


def _value(parent: ET.Element, tag: str, text: str) -> None:
    ET.SubElement(parent, tag).text = text


def _text(parent: ET.Element, text: str) -> None:
    _value(parent, "text", text)


def _html(element: ET.Element, text: str) -> None:
    element.set("format", "html")
    _value(element, "text", text)
