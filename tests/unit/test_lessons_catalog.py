"""The lessons' content: complete in both languages, linked to code that exists, and read strictly."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lessons.catalog import LESSONS_DIR, LessonError, compare, lesson, load_lesson, load_lessons
from lessons.quiz import ChoiceItem, NumberItem, OrderItem, misconceptions_of
from lessons.text import LANGS, TextError, fill, format_bytes, format_number, format_seconds, placeholders

ROOT = Path(__file__).parents[2]
LESSONS = load_lessons()
COURSE = (
    "training_inference",
    "prefill_decode",
    "kv_cache",
    "roofline",
    "metrics",
    "batch_size",
    "batching",
    "summary",
)
CJK = re.compile(r"[\u4e00-\u9fff]")


def test_the_lessons_stand_in_course_order():
    assert [x.id for x in LESSONS if x.chapter != "systems"] == list(COURSE)
    assert [x.order for x in LESSONS if x.chapter == "core"] == [10 * (1 + place) for place in range(len(COURSE) - 1)]
    assert LESSONS[-1].id == "summary" and LESSONS[-1].chapter == "end", "nothing comes after the exam"
    assert lesson("batching").title["zh"] == "静态批处理与连续批处理"
    with pytest.raises(LessonError, match="there is no lesson 'nonsense'"):
        lesson("nonsense")


def all_texts(found) -> dict[str, list[str]]:
    """Everything of a lesson that a learner may read, by language."""
    texts = {lang: [found.text(lang, s) for s in found.sections] for lang in LANGS}
    pairs = [found.title, found.goal, *(c.label for c in found.code)]
    for prediction in found.predictions:
        pairs += [p for p in (prediction.prompt, prediction.hint, prediction.unit) if p]
        pairs += [o.text for o in prediction.options]
    for item in found.quiz:
        pairs.append(item.prompt)
        if isinstance(item, NumberItem):
            pairs += [item.unit, item.explanation, item.otherwise, *(t.feedback for t in item.traps)]
        elif isinstance(item, OrderItem):
            pairs += [
                item.explanation,
                item.otherwise,
                *(p.text for p in item.steps),
                *(s.feedback for s in item.swaps),
            ]
        else:
            pairs += [p for o in item.options for p in (o.text, o.feedback)]
    for lang in LANGS:
        texts[lang] += [pair[lang] for pair in pairs] + found.misconceptions[lang]
    return texts


@pytest.mark.parametrize("found", LESSONS, ids=lambda x: x.id)
def test_a_lesson_is_complete(found):
    assert 2 <= len(found.misconceptions["en"]) == len(found.misconceptions["zh"]) <= 3
    assert any(p.kind == "number" for p in found.predictions)
    assert {"before", "after", "why", "summary"} <= set(found.sections)
    assert found.goal["en"].count(".") == 1 and found.goal["zh"].count("。") == 1, "the goal is one sentence"


@pytest.mark.parametrize("found", LESSONS, ids=lambda x: x.id)
def test_the_bank_is_large_and_of_several_kinds(found):
    assert len(found.quiz) >= 8
    kinds = {item.kind for item in found.quiz}
    assert kinds == {"choice", "several", "number", "order"}
    assert any(item.trace for item in found.quiz), "what happens next in this trace?"
    assert len(misconceptions_of(found.quiz)) >= 12
    for item in found.quiz:
        if isinstance(item, ChoiceItem):
            assert 3 <= len(item.options) <= 5
        if isinstance(item, NumberItem):
            assert len(item.traps) >= 2 and placeholders(item.explanation["en"]) == frozenset()


@pytest.mark.parametrize("found", LESSONS, ids=lambda x: x.id)
def test_the_languages_are_what_they_say(found):
    texts = all_texts(found)
    assert not [t for t in texts["en"] if CJK.search(t)]
    wordless = [t for t in texts["zh"] if not CJK.search(t) and re.search(r"[A-Za-z]{4}", t)]
    units = re.compile(r"[\s\d.,×−]*([TGM]?FLOP(/s|/byte)?|token|GB/s|[GMk]?B)")
    assert all(units.fullmatch(t) for t in wordless), wordless


@pytest.mark.parametrize("found", LESSONS, ids=lambda x: x.id)
def test_chinese_keeps_its_own_punctuation_and_terms(found):
    for text in all_texts(found)["zh"]:
        bare = re.sub(r"\{[a-z0-9_]+\}", "1", text)
        assert not re.search(r"[\u4e00-\u9fff][,;:?!]", bare), text
        assert "标记" not in bare and "令牌" not in bare, "token stays token"
        assert not re.search(r"[\u4e00-\u9fff，。]\n[\u4e00-\u9fff“]", bare), (
            "a line break inside Chinese shows as a space"
        )


@pytest.mark.parametrize("link", [c.symbol for x in LESSONS for c in x.code])
def test_a_code_link_leads_to_a_symbol_that_exists(link):
    path, _, symbol = link.partition("::")
    body = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    for name in symbol.split("."):
        found = [
            n for n in body if isinstance(n, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and n.name == name
        ]
        assert found, f"{link}: no {name}"
        body = found[0].body


def test_predictions_are_asked_where_they_make_sense():
    batching = lesson("batching")
    asked = {p: {q.id for q in batching.predictions if q.asked_for(p)} for p in ("abcd", "chat", None)}
    assert asked["abcd"] == {"idle_steps_b", "times_sooner"}
    assert asked["chat"] == {"padding_percent", "times_sooner"}
    assert asked[None] == {"times_sooner"}
    assert batching.prediction("times_sooner").unit["zh"] == "倍"
    with pytest.raises(LessonError):
        batching.prediction("nonsense")


def test_an_item_is_found_by_its_id():
    assert lesson("batching").item("ba.idle_b").answer == 70
    with pytest.raises(LessonError):
        lesson("batching").item("ba.nonsense")


def test_an_unknown_section_or_language_is_named():
    for lang, section in (("en", "nonsense"), ("fr", "why")):
        with pytest.raises(LessonError, match="has no section"):
            lesson("batching").text(lang, section)


# ------------------------------------------------------------------ a folder that is not right is refused


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(LESSONS_DIR / "batching", tmp_path / "batching")


def edit(folder: Path, name: str, old: str, new: str) -> None:
    path = folder / name
    content = path.read_text(encoding="utf-8")
    assert old in content
    path.write_text(content.replace(old, new, 1), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("lesson.yaml", "id: batching", "id: other", "differs from the folder"),
        ("lesson.yaml", "order: 70", "order: first", "order"),
        ("lesson.yaml", "minutes: 30", "minutes: 30\nsurprise: 1", "surprise"),
        ("lesson.yaml", "title:\n  en:", "title:\n  fr:", "title"),
        ("lesson.yaml", "title:", "title: [", "lesson.yaml"),
        ("en.md", "## why", "## because", "has sections"),
        ("zh.md", "## summary", "## note_extra", "has sections"),
        ("en.md", "## note_no_padding", "## note_no_padding\n\n## note_no_padding", "has sections"),
        ("en.md", "{bound_times}", "some", "only one language uses bound_times"),
        ("quiz.yaml", "answer: 70", "answer: seventy", "answer"),
        ("quiz.yaml", "ba.idle_b", "ba.static_release", "stands twice"),
        ("quiz.yaml", "      correct: true", "      correct: false", "quiz.yaml"),
    ],
)
def test_a_defect_is_named_with_its_file(folder, name, old, new, words):
    edit(folder, name, old, new)
    with pytest.raises(LessonError, match=words) as caught:
        load_lesson(folder)
    assert "batching" in str(caught.value)


@pytest.mark.parametrize("name", ["lesson.yaml", "en.md", "zh.md", "quiz.yaml"])
def test_a_missing_or_unreadable_file_is_named(folder, name):
    (folder / name).write_bytes(b"\xff\xfe\x00broken")
    with pytest.raises(LessonError, match=name):
        load_lesson(folder)
    (folder / name).unlink()
    with pytest.raises(LessonError, match=name):
        load_lesson(folder)


def test_an_empty_section_is_refused(folder):
    path = folder / "zh.md"
    content = path.read_text(encoding="utf-8")
    start = content.index("## summary")
    path.write_text(content[:start] + "## summary\n\n", encoding="utf-8")
    with pytest.raises(LessonError, match="section summary is empty"):
        load_lesson(folder)


def test_line_breaks_inside_chinese_sentences_are_joined_and_lists_are_kept(folder):
    path = folder / "zh.md"
    content = path.read_text(encoding="utf-8")
    start = content.index("## summary")
    path.write_text(content[:start] + "## summary\n\n一行，\n接着 KV\n缓存。\n\n- 甲\n- 乙\n", encoding="utf-8")
    assert load_lesson(folder).text("zh", "summary") == "一行，接着 KV\n缓存。\n\n- 甲\n- 乙"


# ------------------------------------------------------------------ predictions set beside answers


@pytest.mark.parametrize(
    ("predicted", "answer", "direction", "factor"),
    [
        (10, 10, "exact", 1),
        (10.4, 10, "exact", 1),
        (20, 10, "high", 2),
        (5, 10, "low", 2),
        (0, 10, "low", None),
        (0, 0, "exact", 1),
        (3, 0, "high", None),
        ("a", "a", "right", None),
        ("a", "b", "wrong", None),
    ],
)
def test_a_prediction_is_scored_by_how_many_times_it_was_off(predicted, answer, direction, factor):
    outcome = compare(predicted, answer)
    assert (outcome.direction, outcome.factor) == (direction, factor)


# ------------------------------------------------------------------ numbers and holes in sentences


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"), (7, "7"), (12_345, "12,345"), (0.0, "0"), (0.034567, "0.0346"), (0.5, "0.500"), (9.999, "10.0"),
        (99.95, "100"), (999.6, "1,000"), (1234.5, "1,230"), (-2.5, "-2.50"), (1e6, "1,000,000"), (0.99951, "1.00"),
    ],
)  # fmt: skip
def test_numbers_read_with_three_significant_digits(value, shown):
    assert format_number(value) == shown


def test_units():
    assert [format_bytes(x) for x in (512, 999.9, 46_080, 538_060_032, 999_999_999, 14e9)] == [
        "512 B", "1.00 kB", "46.1 kB", "538 MB", "1.00 GB", "14.0 GB",
    ]  # fmt: skip
    assert [format_seconds(x) for x in (0.00444, 0.621, 1, 12.34)] == ["4.44 ms", "621 ms", "1.00 s", "12.3 s"]


def test_a_hole_in_a_sentence_is_an_error():
    assert fill("{a} of {b_2}, {not a name}, { a }", {"a": 3, "b_2": {"en": "x", "zh": "甲"}}, "zh") == (
        "3 of 甲, {not a name}, { a }"
    )
    with pytest.raises(TextError, match=r"no value for \{missing\}"):
        fill("{missing}", {"a": 1}, "en")


def test_the_lessons_leave_torch_and_streamlit_alone():
    code = (
        "import sys, lessons, lessons.store, lessons.generated, lessons.scenarios\n"
        "import lessons.batching.items, lessons.prefill_decode.items\n"
        "assert not {'torch', 'streamlit', 'pages'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
