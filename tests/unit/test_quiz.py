"""Quiz items: what the browser may see, and that every answer gets the mark and the words it deserves."""

from __future__ import annotations

import itertools
import json

import pytest
from pydantic import ValidationError

from lessons.catalog import load_lessons
from lessons.quiz import (
    ChoiceItem,
    NumberItem,
    OrderItem,
    QuizError,
    SeveralItem,
    correct_answer,
    grade,
    misconceptions_of,
    parse_bank,
    parse_number,
    public_id,
    public_view,
)

BANK = [item for lesson in load_lessons() for item in lesson.quiz]


def text(words: str) -> dict[str, str]:
    return {"en": words, "zh": words + "（中）"}


def option(name: str, correct: bool = False) -> dict:
    found = {"id": name, "text": text(f"text {name}"), "feedback": text(f"because {name}")}
    return found | ({"correct": True} if correct else {"misconception": f"belief_{name}"})


def choice(**changes) -> ChoiceItem:
    data = {"id": "x.choice", "prompt": text("?"), "options": [option("a", True), option("b"), option("c")]}
    return ChoiceItem.model_validate(data | changes)


def several(**changes) -> SeveralItem:
    options = [option("a", True), option("b", True), option("c"), option("d")]
    return SeveralItem.model_validate({"id": "x.several", "prompt": text("?"), "options": options} | changes)


def number(**changes) -> NumberItem:
    trap = {"value": 11, "within": 0.2, "misconception": "off_by_one", "feedback": text("one too many")}
    data = {
        "id": "x.number",
        "prompt": text("?"),
        "unit": text("ms"),
        "answer": 10,
        "tolerance": 0.5,
        "explanation": text("that is it"),
        "otherwise": text("think again"),
        "traps": [trap],
    }
    return NumberItem.model_validate(data | changes)


def ids(item, *names: str) -> list[str]:
    return [public_id(item, o) for name in names for o in item.options if o.id == name]


# ------------------------------------------------------------------ what the browser sees


@pytest.mark.parametrize("item", [*BANK, choice(), several(), number()], ids=lambda item: item.id)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_key_never_reaches_the_browser(item, lang):
    view = public_view(item, lang, "learner")
    sent = json.dumps(view, ensure_ascii=False)
    if isinstance(item, NumberItem):
        assert set(view) == {"id", "kind", "prompt", "trace", "run_ids", "unit", "whole", "tolerance"}
        hidden = [item.explanation, item.otherwise, *(t.feedback for t in item.traps)]
    elif isinstance(item, OrderItem):
        assert set(view) == {"id", "kind", "prompt", "trace", "run_ids", "steps"}
        assert all(set(s) == {"id", "text"} for s in view["steps"])
        assert not {s.id for s in item.steps} & {s["id"] for s in view["steps"]}
        hidden = [item.explanation, item.otherwise, *(s.feedback for s in item.swaps)]
    else:
        assert set(view) == {"id", "kind", "prompt", "trace", "run_ids", "options"}
        assert all(set(o) == {"id", "text"} for o in view["options"])
        assert not {o.id for o in item.options} & {o["id"] for o in view["options"]}
        hidden = [o.feedback for o in item.options]
    assert not any(h[lang] in sent for h in hidden)
    for word in ("correct", "answer", "misconception", "feedback", *misconceptions_of([item])):
        assert f'"{word}"' not in sent


def test_options_stand_in_an_order_that_depends_on_learner_and_item_alone():
    item = several()
    first = public_view(item, "en", "ann")
    assert first == public_view(item, "en", "ann")
    assert [o["id"] for o in first["options"]] == [o["id"] for o in public_view(item, "zh", "ann")["options"]]
    orders = {tuple(o["text"] for o in public_view(item, "en", f"learner-{i}")["options"]) for i in range(300)}
    assert len(orders) == 24, "every order occurs"
    swapped = several(options=[option("d"), option("c"), option("b", True), option("a", True)])
    assert public_view(swapped, "en", "ann") == first, "the order of the bank does not shine through"


def test_the_key_stands_at_every_place_equally_often():
    item = choice()
    places = [
        [o["id"] for o in public_view(item, "en", str(i))["options"]].index(correct_answer(item)) for i in range(600)
    ]
    assert all(150 < places.count(place) < 250 for place in range(3))


# ------------------------------------------------------------------ grading


@pytest.mark.parametrize("item", BANK, ids=lambda item: item.id)
def test_the_key_of_every_item_in_the_bank_is_accepted(item):
    result = grade(item, correct_answer(item))
    assert result.correct and result.score == 1 and result.misconceptions == ()
    assert all(result.feedback["en"]) and all(result.feedback["zh"])


@pytest.mark.parametrize("item", [i for i in BANK if isinstance(i, ChoiceItem)], ids=lambda item: item.id)
def test_every_wrong_choice_of_the_bank_has_its_own_words(item):
    said = set()
    for wrong in item.options:
        result = grade(item, public_id(item, wrong))
        assert result.correct == wrong.correct and result.score == float(wrong.correct)
        assert result.notes[0].text == wrong.feedback and result.notes[0].option == wrong.text
        assert result.misconceptions == ((wrong.misconception,) if wrong.misconception else ())
        said.add(result.feedback["en"][0])
    assert len(said) == len(item.options)


@pytest.mark.parametrize("item", [i for i in BANK if isinstance(i, SeveralItem)], ids=lambda item: item.id)
def test_every_selection_of_several_is_judged(item):
    keys = {o.id for o in item.options if o.correct}
    for size in range(1, len(item.options) + 1):
        for chosen in itertools.combinations(item.options, size):
            names = {o.id for o in chosen}
            result = grade(item, [public_id(item, o) for o in chosen])
            assert result.correct == (names == keys) == (result.score == 1)
            assert result.score == max(0, (len(names & keys) - len(names - keys)) / len(keys))
            assert len(result.notes) == len(names | keys), "every chosen and every missed option is spoken of"
            verdicts = {n.option["en"]: n.verdict for n in result.notes}
            for o in item.options:
                expected = "right" if o.correct else "wrong"
                if o.id in names:
                    assert verdicts[o.text["en"]] == expected
                elif o.correct:
                    assert verdicts[o.text["en"]] == "missed"


@pytest.mark.parametrize("item", [i for i in BANK if isinstance(i, NumberItem)], ids=lambda item: item.id)
def test_every_trap_of_the_bank_is_wrong_and_explained(item):
    for trap in item.traps:
        result = grade(item, trap.value)
        assert not result.correct and result.notes[0].text == trap.feedback
    assert grade(item, item.answer * 1000 + 12_345).feedback["en"] == [item.otherwise["en"]]


def test_tolerance_is_inclusive_and_traps_have_their_width():
    item = number()
    for value, correct in [(10, True), (9.5, True), (10.5, True), (10.51, False), (9.49, False), (-10, False)]:
        assert grade(item, value).correct == correct
    assert grade(item, 11.2).misconceptions == ("off_by_one",)
    assert grade(item, 11.21).misconceptions == ()
    assert grade(number(answer=0.2, tolerance=0.1), 0.3).correct, "binary fractions do not cost a mark"


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        (12, 12), (1.5, 1.5), ("12", 12), (" 1.5 ", 1.5), ("1,200", 1200), ("1,234,567.5", 1234567.5),
        ("1,5", 1.5), ("-3", -3), ("−3", -3), ("３．５", 3.5), ("1，200", 1200), ("1e3", 1000), ("-1,200", -1200),
    ],
)  # fmt: skip
def test_numbers_are_read_as_people_type_them(typed, value):
    assert parse_number(typed) == value


@pytest.mark.parametrize(
    "typed",
    [None, "", " ", "abc", "12 ms", "1_000", "nan", "inf", float("nan"), float("inf"), True, [1], "9" * 400, "1,2,3"],
)
def test_what_is_no_number_is_refused_in_one_sentence(typed):
    with pytest.raises(QuizError, match="type digits"):
        grade(number(), typed)


@pytest.mark.parametrize("answer", [None, "", [], "a", ["a"], "00000000", 3, [3], [None], {"x": 1}])
def test_an_answer_that_was_not_offered_is_refused(answer):
    for item in (choice(), several()):
        with pytest.raises(QuizError):
            grade(item, answer)


def test_a_choice_takes_one_and_several_counts_each_once():
    item = choice()
    with pytest.raises(QuizError, match="exactly one"):
        grade(item, ids(item, "a", "b"))
    assert grade(item, ids(item, "a")).correct
    item = several()
    assert grade(item, ids(item, "a", "b", "a", "b")).correct


# ------------------------------------------------------------------ a bank that is not right is refused


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: choice(options=[option("a", True), option("b", True)]), "exactly one"),
        (lambda: choice(options=[option("a"), option("b")]), "exactly one"),
        (lambda: several(options=[option("a", True), option("b", True)]), "at least one"),
        (lambda: choice(options=[option("a", True), option("b"), option("b")]), "read the same"),
        (lambda: choice(options=[option("a", True), {**option("b"), "misconception": None}]), "misconception"),
        (lambda: choice(options=[{**option("a", True), "misconception": "x"}, option("b")]), "misconception"),
        (lambda: choice(prompt={"en": "only English"}), "zh"),
        (lambda: choice(prompt={"en": "{a}", "zh": "{b}"}), "placeholders"),
        (lambda: choice(prompt={"en": "x", "zh": " "}), "zh"),
        (lambda: number(answer=10.7), "overlaps"),
        (lambda: number(answer=1.5, whole=True, traps=[]), "not whole"),
        (lambda: number(tolerance=-1), "tolerance"),
        (lambda: choice(surprise=1), "surprise"),
        (lambda: parse_bank([choice().model_dump(), choice().model_dump()]), "twice"),
        (lambda: parse_bank([{"kind": "essay"}]), "kind"),
        (lambda: parse_bank("text"), "tuple"),
    ],
)
def test_a_defect_in_a_bank_is_named(make, words):
    with pytest.raises((ValidationError, ValueError), match=words):
        make()


# ------------------------------------------------------------------ steps in order, and pieces of a run


def order(**changes) -> OrderItem:
    steps = [{"id": name, "text": text(f"step {name}")} for name in ("a", "b", "c", "d")]
    swap = {"first": "b", "then": "c", "misconception": "c_before_b", "feedback": text("b makes what c needs")}
    data = {"id": "x.order", "prompt": text("?"), "steps": steps, "swaps": [swap]}
    return OrderItem.model_validate(
        data | {"explanation": text("that is it"), "otherwise": text("think again")} | changes
    )


def in_order(item: OrderItem, names: str) -> list[str]:
    return [public_id(item, step) for name in names for step in item.steps if step.id == name]


def test_an_order_is_graded_by_its_pairs_and_each_named_mistake_is_explained():
    item = order()
    right = grade(item, in_order(item, "abcd"))
    assert (right.correct, right.score, right.feedback["en"]) == (True, 1.0, ["that is it"])
    swapped = grade(item, in_order(item, "acbd"))
    assert not swapped.correct and swapped.score == pytest.approx(2 * 5 / 6 - 1)
    assert swapped.feedback["en"] == ["b makes what c needs"] and swapped.misconceptions == ("c_before_b",)
    assert grade(item, in_order(item, "bacd")).feedback["en"] == ["think again"]
    assert grade(item, in_order(item, "dcba")).score == 0
    scores = [grade(item, in_order(item, "".join(names))).score for names in itertools.permutations("abcd")]
    assert scores.count(1.0) == 1 and min(scores) == 0


@pytest.mark.parametrize("names", ["", "abc", "abcdd", "aabc"])
def test_an_incomplete_order_is_not_graded(names):
    item = order()
    for answer in (in_order(item, names), None, "a", [1, 2, 3, 4], [["a"]] * 4):
        with pytest.raises(QuizError, match="a place of its own"):
            grade(item, answer)


def test_the_steps_are_never_offered_in_the_right_order():
    item = order()
    offered = {tuple(s["id"] for s in public_view(item, "en", seed)["steps"]) for seed in range(200)}
    assert tuple(correct_answer(item)) not in offered and len(offered) > 12


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": [{"id": "a", "text": text("x")}, {"id": "a", "text": text("y")}, {"id": "b", "text": text("z")}]},
         "same id"),
        ({"steps": [{"id": n, "text": text("same")} for n in "abc"]}, "read the same"),
        ({"swaps": [{"first": "c", "then": "b", "misconception": "x", "feedback": text("x")}]}, "in their order"),
        ({"swaps": [{"first": "a", "then": "z", "misconception": "x", "feedback": text("x")}]}, "in their order"),
    ],
)  # fmt: skip
def test_an_order_that_cannot_be_asked_is_refused(changes, words):
    with pytest.raises(ValidationError, match=words):
        order(**changes)


def test_a_trace_is_part_of_what_is_shown():
    assert public_view(choice(trace=text("step 3 │ 16 tokens")), "zh", 1)["trace"] == "step 3 │ 16 tokens（中）"
    assert public_view(choice(), "zh", 1)["trace"] is None
