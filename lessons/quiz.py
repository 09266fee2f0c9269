"""Quiz items and their grading. Items come from a YAML bank or from the learner's own Runs (``lessons.generated``).

It decides what the browser may see of an item (never the key, never which option is which) and what a given answer is
worth. It never computes a key from a Run and never stores anything. Invariant: every wrong option names the
misconception behind it and explains it in both languages, so no answer is ever met with a bare "wrong".
"""

from __future__ import annotations

import hashlib
import math
import random
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from lessons.text import LANGS, Lang, Text

_THOUSANDS = re.compile(r"-?\d{1,3}(,\d{3})+(\.\d*)?")

Verdict = Literal["right", "wrong", "missed"]
Answer = str | int | float | list[str] | tuple[str, ...] | None


class QuizError(ValueError):
    """An answer that cannot be graded (empty, or not one of the choices offered), in one sentence."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Option(_Strict):
    """One choice. ``feedback`` is shown when it is chosen (rightly or not) or missed; it explains, not judges."""

    id: str = Field(pattern=r"^[a-z0-9_.-]+$")
    text: Text
    feedback: Text
    correct: bool = False
    misconception: str | None = Field(None, pattern=r"^[a-z0-9_]+$")

    @model_validator(mode="after")
    def _named_misconception(self) -> Option:
        if self.correct == (self.misconception is not None):
            raise ValueError(f"option {self.id}: a wrong option names its misconception, a correct one has none")
        return self


class Trap(_Strict):
    """A wrong number that many give, and the reasoning that leads to it. ``within`` is absolute, in the item's unit."""

    value: float
    within: float = Field(0.0, ge=0)
    misconception: str = Field(pattern=r"^[a-z0-9_]+$")
    feedback: Text


class _ItemBase(_Strict):
    id: str = Field(pattern=r"^[A-Za-z0-9_.:-]+$", max_length=200)
    prompt: Text
    generator: str | None = None  # the kind of generated item; None for an item of the bank
    run_ids: tuple[str, ...] = ()  # the Runs a generated item was made from


class _WithOptions(_ItemBase):
    options: tuple[Option, ...] = Field(min_length=2, max_length=8)

    @model_validator(mode="after")
    def _distinct_options(self) -> _WithOptions:
        for lang in LANGS:
            if len({o.text[lang] for o in self.options}) != len(self.options):
                raise ValueError(f"item {self.id}: two options read the same in {lang}")
        if len({o.id for o in self.options}) != len(self.options):
            raise ValueError(f"item {self.id}: two options have the same id")
        return self


class ChoiceItem(_WithOptions):
    """Exactly one option is right."""

    kind: Literal["choice"] = "choice"

    @model_validator(mode="after")
    def _one_key(self) -> ChoiceItem:
        if sum(o.correct for o in self.options) != 1:
            raise ValueError(f"item {self.id}: a choice has exactly one correct option")
        return self


class SeveralItem(_WithOptions):
    """One or more options are right, at least one is wrong; all right ones and no other must be chosen."""

    kind: Literal["several"] = "several"

    @model_validator(mode="after")
    def _some_keys(self) -> SeveralItem:
        if not 1 <= sum(o.correct for o in self.options) < len(self.options):
            raise ValueError(f"item {self.id}: needs at least one correct and one wrong option")
        return self


class NumberItem(_ItemBase):
    """A number is typed. It is right within ``tolerance`` (absolute, in ``unit``, shown) of ``answer``."""

    kind: Literal["number"] = "number"
    answer: float
    tolerance: float = Field(0.0, ge=0)
    whole: bool = False
    unit: Text
    explanation: Text  # shown with a right answer
    otherwise: Text  # shown with a wrong one that no trap explains: how to find the number
    traps: tuple[Trap, ...] = ()

    @model_validator(mode="after")
    def _traps_are_wrong(self) -> NumberItem:
        for trap in self.traps:
            if abs(trap.value - self.answer) <= self.tolerance + trap.within:
                raise ValueError(f"item {self.id}: trap {trap.value} overlaps the right answer {self.answer}")
        if self.whole and self.answer != int(self.answer):
            raise ValueError(f"item {self.id}: answer {self.answer} is not whole")
        return self


Item = Annotated[ChoiceItem | SeveralItem | NumberItem, Field(discriminator="kind")]
_ITEMS: TypeAdapter[tuple[Item, ...]] = TypeAdapter(tuple[Item, ...])


def parse_bank(data: object) -> tuple[Item, ...]:
    """Validate a decoded quiz.yaml. Pure. Raises: pydantic.ValidationError, ValueError for an id that stands twice."""
    items = _ITEMS.validate_python(data)
    ids = [item.id for item in items]
    if len(set(ids)) != len(ids):
        raise ValueError(f"item id {next(i for i in ids if ids.count(i) > 1)} stands twice")
    return items


# ------------------------------------------------------------------ what the browser sees


def public_id(item: Item, option: Option) -> str:
    """The name of an option outside the server. It says nothing about it (bank ids may hint at the key). Pure."""
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
        "run_ids": list(item.run_ids),
    }
    if isinstance(item, NumberItem):
        return view | {"unit": item.unit[lang], "whole": item.whole, "tolerance": item.tolerance}
    options = [{"id": public_id(item, o), "text": o.text[lang]} for o in item.options]
    options.sort(key=lambda o: o["id"])  # the order of the bank must not shine through
    random.Random(f"{seed}/{item.id}").shuffle(options)
    return view | {"options": options}


def correct_answer(item: Item) -> Answer:
    """The key in the form ``grade`` takes. For the server and for tests: never send it to a browser unasked. Pure."""
    if isinstance(item, NumberItem):
        return item.answer
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
    """Grade ``answer``: a public option id (choice), a list of them (several) or a number. Pure. Raises: QuizError."""
    if isinstance(item, NumberItem):
        return _grade_number(item, answer)
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
        parts = item.traps if isinstance(item, NumberItem) else item.options
        found.update(p.misconception for p in parts if p.misconception)
    return frozenset(found)
