"""Exports of a bank, read back by readers that share no code with the writer."""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ET

import pytest

from lessons.catalog import load_lessons
from lessons.export_bank import as_html, to_gift, to_moodle_xml
from lessons.quiz import ChoiceItem, Item, NumberItem, OrderItem, SeveralItem, parse_bank
from lessons.text import LANGS

BANKS = [(found.id, lang) for found in load_lessons() for lang in LANGS]
HOSTILE = r"a ~ b = c # {d} : 5 < 6 > 4 & \n \ <b>x</b> ]]> 100 % -> -- ::t:: "


def bank(lesson_id: str) -> tuple[Item, ...]:
    return next(found.quiz for found in load_lessons() if found.id == lesson_id)


def plain(text: str) -> str:
    """The words of an HTML text, without its few tags."""
    return html.unescape(re.sub(r"<(/?(p|pre|b|code)|br)>", lambda m: "\n" if m[1] == "br" else "", text)).strip()


def bare(text: str) -> str:
    """The words of a text of the bank, without its Markdown."""
    return re.sub(r"`([^`]+)`", r"\1", re.sub(r"\*\*(.+?)\*\*", r"\1", text.strip()))


def hostile_bank() -> tuple[Item, ...]:
    def both(text: str) -> dict:
        return {"en": text, "zh": text}

    options = [
        {"id": "a", "text": both("A" + HOSTILE), "feedback": both("FA" + HOSTILE), "correct": True},
        {"id": "b", "text": both("B" + HOSTILE), "feedback": both("FB" + HOSTILE), "misconception": "m"},
        {"id": "c", "text": both("C\nD"), "feedback": both("`x=1` **y**"), "correct": True},
        {"id": "d", "text": both("E"), "feedback": both("F"), "correct": True},
    ]
    trace = both("one = {1}\n  two   # ~ : 2\n\nthree <4>")
    return parse_bank(
        [
            {"id": "x.several", "kind": "several", "prompt": both("P" + HOSTILE), "trace": trace, "options": options},
            {"id": "x.choice", "kind": "choice", "prompt": both("P\nQ"), "options": options[:2]},
            {
                "id": "x.number", "kind": "number", "prompt": both("N" + HOSTILE), "unit": both("GB/s {u}"),
                "answer": -0.00001234, "tolerance": 1e-7,
                "explanation": both("X" + HOSTILE), "otherwise": both("O" + HOSTILE),
                "traps": [{"value": 1e9, "within": 0.5, "misconception": "m", "feedback": both("T" + HOSTILE)}],
            },
            {
                "id": "x.order", "kind": "order", "prompt": both("R"), "explanation": both("X"), "otherwise": both("O"),
                "steps": [{"id": s, "text": both(f"step {s} = #{s}")} for s in "abc"],
                "swaps": [{"first": "a", "then": "b", "misconception": "m", "feedback": both("S")}],
            },
        ]
    )  # fmt: skip


# ------------------------------------------------------------------ a reader of GIFT
def split_free(text: str, separators: str) -> list[tuple[str, str]]:
    """(separator, piece) at every separator that no backslash escapes; the first piece has none."""
    pieces, mark, start, index = [], "", 0, 0
    while index < len(text):
        if text[index] == "\\":
            index += 2
            continue
        if text[index] in separators:
            pieces.append((mark, text[start:index]))
            mark, start = text[index], index + 1
        index += 1
    return [*pieces, (mark, text[start:])]


def unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], text.strip())


def read_gift(text: str) -> dict[str, dict]:
    """Questions by title: prompt, kind, answers as (mark, text, feedback)."""
    found = {}
    for block in text.strip().split("\n\n"):
        if block.startswith("$CATEGORY: "):
            continue
        title, rest = re.fullmatch(r"::(.*?)(?<!\\)::\[html\](.*)", block, re.DOTALL).groups()
        (_, prompt), (brace, body), (end, tail) = split_free(rest, "{}")
        assert (brace, end, tail) == ("{", "}", ""), "one pair of braces, nothing after it"
        numerical = body.startswith("#")
        body, _, general = (body[1:] if numerical else body).partition("####")
        answers = []
        for mark, piece in split_free(body, "=~")[1:]:
            parts = split_free(piece, "#")
            answers.append((mark, parts[0][1].strip(), unescape(parts[1][1]) if len(parts) > 1 else None))
        found[unescape(title)] = {
            "prompt": unescape(prompt), "numerical": numerical, "answers": answers, "general": unescape(general),
        }  # fmt: skip
    return found


def check_gift(items: tuple[Item, ...], lang: str) -> None:
    found = read_gift(to_gift(items, lang, "course/bank"))
    assert list(found) == [item.id for item in items]
    for item in items:
        read = found[item.id]
        unit = f" ({item.unit[lang]})" if isinstance(item, NumberItem) else ""
        trace = item.trace[lang].rstrip() if item.trace else ""
        assert plain(read["prompt"]) == bare(item.prompt[lang]) + unit + trace
        assert read["numerical"] == isinstance(item, NumberItem)
        if isinstance(item, ChoiceItem):
            for option, (mark, text, feedback) in zip(item.options, read["answers"], strict=True):
                assert (mark == "=") == option.correct
                assert plain(unescape(text)) == bare(option.text[lang])
                assert plain(feedback) == bare(option.feedback[lang])
        elif isinstance(item, SeveralItem):
            shares = []
            for option, (mark, text, feedback) in zip(item.options, read["answers"], strict=True):
                share, rest = re.fullmatch(r"%(-?[\d.]+)%(.*)", text, re.DOTALL).groups()
                shares.append((float(share), option.correct))
                assert mark == "~" and plain(unescape(rest)) == bare(option.text[lang])
                assert plain(feedback) == bare(option.feedback[lang])
            assert sum(share for share, correct in shares if correct) == pytest.approx(100)
            assert all((share > 0) == correct for share, correct in shares)
        elif isinstance(item, NumberItem):
            numbers = [re.fullmatch(r"(?:%0%)?([-\d.]+):([\d.]+)", text) for _, text, _ in read["answers"][:-1]]
            values = [(float(n[1]), float(n[2])) for n in numbers]
            wanted = [(item.answer, item.tolerance), *((t.value, t.within) for t in item.traps)]
            assert values == [pytest.approx(pair) for pair in wanted]
            marks = [text.startswith("%0%") for _, text, _ in read["answers"][:-1]]
            assert marks == [False, *[True] * len(item.traps)]
            said = [plain(feedback) for _, _, feedback in read["answers"]]
            assert said == [
                bare(t[lang]) for t in (item.explanation, *(t.feedback for t in item.traps), item.otherwise)
            ]
        else:
            pairs = [text.rsplit(" -> ", 1) for _, text, _ in read["answers"]]
            assert [plain(unescape(step)) for step, _ in pairs] == [bare(step.text[lang]) for step in item.steps]
            assert [place for _, place in pairs] == [str(n) for n in range(1, len(item.steps) + 1)]
            assert plain(read["general"]) == bare(item.explanation[lang])


# ------------------------------------------------------------------ a reader of Moodle XML
def check_xml(items: tuple[Item, ...], lang: str) -> None:
    root = ET.fromstring(to_moodle_xml(items, lang, "bank"))
    assert root.tag == "quiz"
    category, *questions = root.findall("question")
    assert category.findtext("category/text") == "$course$/bank"
    for item, question in zip(items, questions, strict=True):
        assert question.findtext("name/text") == item.id
        unit = f" ({item.unit[lang]})" if isinstance(item, NumberItem) else ""
        trace = item.trace[lang].rstrip() if item.trace else ""
        assert plain(question.findtext("questiontext/text")) == bare(item.prompt[lang]) + unit + trace
        answers = question.findall("answer")
        said = [plain(a.findtext("feedback/text")) for a in answers]
        if isinstance(item, ChoiceItem | SeveralItem):
            assert question.get("type") == "multichoice"
            assert question.findtext("single") == ("true" if isinstance(item, ChoiceItem) else "false")
            assert [plain(a.findtext("text")) for a in answers] == [bare(o.text[lang]) for o in item.options]
            assert said == [bare(o.feedback[lang]) for o in item.options]
            worth = [float(a.get("fraction")) for a in answers]
            assert sum(w for w in worth if w > 0) == pytest.approx(100, abs=1e-3)
            assert [w > 0 for w in worth] == [o.correct for o in item.options]
        elif isinstance(item, NumberItem):
            assert question.get("type") == "numerical"
            *numbers, other = answers
            assert (other.findtext("text"), other.get("fraction")) == ("*", "0")
            read = [(float(a.findtext("text")), float(a.findtext("tolerance")), a.get("fraction")) for a in numbers]
            wanted = [(item.answer, item.tolerance, "100"), *((t.value, t.within, "0") for t in item.traps)]
            for (value, tolerance, fraction), (answer, within, worth) in zip(read, wanted, strict=True):
                assert (value, tolerance) == pytest.approx((answer, within)) and fraction == worth
            assert said == [
                bare(t[lang]) for t in (item.explanation, *(t.feedback for t in item.traps), item.otherwise)
            ]
        else:
            assert question.get("type") == "matching"
            pairs = [(plain(s.findtext("text")), s.findtext("answer/text")) for s in question.findall("subquestion")]
            assert pairs == [(bare(s.text[lang]), str(n)) for n, s in enumerate(item.steps, start=1)]
            assert plain(question.findtext("generalfeedback/text")) == bare(item.explanation[lang])


@pytest.mark.parametrize(("lesson_id", "lang"), BANKS)
def test_a_bank_is_read_back_as_it_was_written(lesson_id: str, lang: str) -> None:
    check_gift(bank(lesson_id), lang)
    check_xml(bank(lesson_id), lang)


def test_hostile_texts_survive_both_formats() -> None:
    check_gift(hostile_bank(), "en")
    check_xml(hostile_bank(), "en")


def test_every_kind_of_item_is_exported() -> None:
    kinds = {item.kind for lesson_id, _ in BANKS for item in bank(lesson_id)}
    assert kinds == {"choice", "several", "number", "order"}
    assert any(isinstance(item, OrderItem) for item in bank("summary"))


def test_html_escapes_first_and_marks_up_after() -> None:
    assert as_html("1 < 2 **and** `a<b` & c\nd") == "1 &lt; 2 <b>and</b> <code>a&lt;b</code> &amp; c<br>d"
    assert as_html("<script>alert(1)</script>") == "&lt;script&gt;alert(1)&lt;/script&gt;"


def test_a_gift_block_has_no_blank_line_inside() -> None:
    text = to_gift(hostile_bank(), "en")
    assert len(text.strip().split("\n\n")) == len(hostile_bank())
    assert to_gift((), "en") == "\n"
