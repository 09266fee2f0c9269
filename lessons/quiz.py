"""Quiz items and their grading. Items come from a YAML bank or from the learner's own Runs (``lessons.generated``).

It decides what the browser may see of an item (never the key, never which option is which) and what a given answer is
worth. It never computes a key from a Run and never stores anything; what an item is, is decided in
``lessons.quiz_items``. Invariant: every chosen, missed or misplaced part of an answer is explained.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lessons.quiz_items import (
    ChoiceItem,
    Item,
    NumberItem,
    Option,
    OrderItem,
    SeveralItem,
    Step,
    Swap,
    Trap,
    parse_bank,
)
from lessons.text import LANGS, Lang

__all__ = [
    "ChoiceItem",
    "Grade",
    "Item",
    "Note",
    "NumberItem",
    "Option",
    "OrderItem",
    "QuizError",
    "SeveralItem",
    "Step",
    "Swap",
    "Trap",
    "correct_answer",
    "grade",
    "misconceptions_of",
    "parse_bank",
    "parse_number",
    "public_id",
    "public_view",
]

_THOUSANDS = re.compile(r"-?\d{1,3}(,\d{3})+(\.\d*)?")

Verdict = Literal["right", "wrong", "missed"]
Answer = str | int | float | list[str] | tuple[str, ...] | None


class QuizError(ValueError):
    """An answer that cannot be graded (empty, incomplete, or not one of the choices offered), in one sentence."""


# ------------------------------------------------------------------ what the browser sees


def public_id(item: Item, option: Option | Step) -> str:
    """The name of an option or step outside the server; it says nothing about it, as a bank id may. Pure."""
    return hashlib.sha256(f"{item.id}/{option.id}".encode()).hexdigest()[:8]


def public_view(item: Item, lang: Lang, seed: str | int) -> dict[str, Any]:
    """Everything the browser may know of ``item``, as plain data; never the key, a feedback or a bank id of an option.

    Options stand in an order fixed by (``seed``, item), so that a rerun does not shuffle them again and two learners
    see different orders. ``seed`` is the learner's id. Pure.
    """
    view: dict[str, Any] = {
        "id": item.id,
        "kind": item.kind,
        "prompt": item.prompt[lang],
        "trace": item.trace[lang] if item.trace else None,
        "run_ids": list(item.run_ids),
    }
    if isinstance(item, NumberItem):
        return view | {"unit": item.unit[lang], "whole": item.whole, "tolerance": item.tolerance}
    parts = item.steps if isinstance(item, OrderItem) else item.options
    shown = [{"id": public_id(item, part), "text": part.text[lang]} for part in parts]
    shown.sort(key=lambda part: part["id"])  # the order of the bank must not shine through
    random.Random(f"{seed}/{item.id}").shuffle(shown)
    if not isinstance(item, OrderItem):
        return view | {"options": shown}
    if [part["id"] for part in shown] == correct_answer(item):  # the question must not come with its answer
        shown.append(shown.pop(0))
    return view | {"steps": shown}


def correct_answer(item: Item) -> Answer:
    """The key in the form ``grade`` takes. For the server and for tests: never send it to a browser unasked. Pure."""
    if isinstance(item, NumberItem):
        return item.answer
    if isinstance(item, OrderItem):
        return [public_id(item, step) for step in item.steps]
    keys = [public_id(item, o) for o in item.options if o.correct]
    return keys[0] if isinstance(item, ChoiceItem) else keys


# ------------------------------------------------------------------ grading


@dataclass(frozen=True)
class Note:
    """What is said about one option (or about the number, then ``option`` is None)."""

    verdict: Verdict
    text: Mapping[Lang, str]
    option: Mapping[Lang, str] | None = None
    misconception: str | None = None


@dataclass(frozen=True)
class Grade:
    """``score`` lies in [0, 1]; ``correct`` means score 1. ``notes`` explain every chosen and every missed option."""

    correct: bool
    score: float
    notes: tuple[Note, ...]

    @property
    def feedback(self) -> dict[Lang, list[str]]:
        """The notes as sentences per language."""
        return {lang: [note.text[lang] for note in self.notes] for lang in LANGS}

    @property
    def misconceptions(self) -> tuple[str, ...]:
        return tuple(n.misconception for n in self.notes if n.misconception)


def grade(item: Item, answer: Answer) -> Grade:
    """Grade ``answer``: a public id (choice), a list of them (several), all of them in order (order) or a number.

    Pure. Raises: QuizError.
    """
    if isinstance(item, NumberItem):
        return _grade_number(item, answer)
    if isinstance(item, OrderItem):
        return _grade_order(item, answer)
    by_id = {public_id(item, option): option for option in item.options}
    chosen_ids = [answer] if isinstance(answer, str) else answer
    if not isinstance(chosen_ids, (list, tuple)) or not chosen_ids:
        raise QuizError("no option is chosen; choose one first")
    unknown = [c for c in chosen_ids if not isinstance(c, str) or c not in by_id]
    if unknown:
        raise QuizError(f"{str(unknown[0])[:40]!r} is not an option of this item; choose one of those shown")
    if isinstance(item, ChoiceItem) and len(set(chosen_ids)) != 1:
        raise QuizError(f"{len(set(chosen_ids))} options are chosen; this item takes exactly one")
    return _grade_options(item, [by_id[c] for c in dict.fromkeys(chosen_ids)])


def _grade_options(item: ChoiceItem | SeveralItem, chosen: list[Option]) -> Grade:
    notes = [_note("right" if o.correct else "wrong", o) for o in chosen]
    if isinstance(item, ChoiceItem):
        return Grade(chosen[0].correct, float(chosen[0].correct), tuple(notes))
    missed = [o for o in item.options if o.correct and o not in chosen]
    notes += [_note("missed", o) for o in missed]
    num_keys = sum(o.correct for o in item.options)
    num_wrong = sum(not o.correct for o in chosen)
    score = max(0.0, (num_keys - len(missed) - num_wrong) / num_keys)
    return Grade(not missed and not num_wrong, score, tuple(notes))


def _note(verdict: Verdict, option: Option) -> Note:
    return Note(verdict, option.feedback, option.text, option.misconception)


def _grade_number(item: NumberItem, answer: Answer) -> Grade:
    value = parse_number(answer)
    # A hair of slack, so that a tolerance of 0.1 accepts 0.3 against 0.2 in binary fractions.
    slack = 1e-9 * max(1.0, abs(item.answer))
    if abs(value - item.answer) <= item.tolerance + slack:
        return Grade(True, 1.0, (Note("right", item.explanation),))
    for trap in item.traps:
        if abs(value - trap.value) <= trap.within + 1e-9 * max(1.0, abs(trap.value)):
            return Grade(False, 0.0, (Note("wrong", trap.feedback, misconception=trap.misconception),))
    return Grade(False, 0.0, (Note("wrong", item.otherwise),))


def _grade_order(item: OrderItem, answer: Answer) -> Grade:
    """The score is 1 for the right order and 0 where no more pairs stand right than by chance."""
    by_id = {public_id(item, step): step.id for step in item.steps}
    given = list(answer) if isinstance(answer, (list, tuple)) else []
    if len(given) != len(by_id) or {g if isinstance(g, str) else "" for g in given} != set(by_id):
        raise QuizError(f"the order is not complete; give each of the {len(by_id)} steps a place of its own")
    place = {by_id[public]: index for index, public in enumerate(given)}
    ids = [step.id for step in item.steps]
    pairs = [(a, b) for i, a in enumerate(ids) for b in ids[i + 1 :]]
    num_right = sum(place[a] < place[b] for a, b in pairs)
    if num_right == len(pairs):
        return Grade(True, 1.0, (Note("right", item.explanation),))
    made = [swap for swap in item.swaps if place[swap.first] > place[swap.then]]
    notes = [Note("wrong", swap.feedback, misconception=swap.misconception) for swap in made]
    score = max(0.0, 2 * num_right / len(pairs) - 1)
    return Grade(False, score, tuple(notes) or (Note("wrong", item.otherwise),))


def parse_number(answer: Answer) -> float:
    """Read a typed number: 12, 1.5, "1,200", "1,5", "３" (full-width digits). Pure. Raises: QuizError."""
    if isinstance(answer, (int, float)) and not isinstance(answer, bool):
        value = float(answer)
    else:
        text = unicodedata.normalize("NFKC", answer if isinstance(answer, str) else "").strip().replace("−", "-")
        if _THOUSANDS.fullmatch(text):
            text = text.replace(",", "")
        try:
            value = float(text.replace(",", ".").replace("_", "x"))
        except ValueError:
            raise QuizError(f"{text[:40]!r} is not a number; type digits, for example 12 or 1.5") from None
    if not math.isfinite(value):
        raise QuizError("the number is not finite; type digits, for example 12 or 1.5")
    return value


def misconceptions_of(items: Iterable[Item]) -> frozenset[str]:
    """The ids of all misconceptions that the wrong answers of ``items`` stand for. Pure."""
    found: set[str] = set()
    for item in items:
        parts = {"number": "traps", "order": "swaps"}.get(item.kind, "options")
        found.update(p.misconception for p in getattr(item, parts) if p.misconception)
    return frozenset(found)
