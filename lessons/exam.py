"""The exam over all lessons: which items are drawn for a seed, and what a whole sheet of answers is worth.

It decides the draw (some of every bank, some made from the learner's Runs, always the source lesson's own questions)
and the marks; a single item is graded by ``lessons.quiz``. It stores nothing and never shows a key. Invariant: the same
seed and Runs give the same exam, so a sheet can be graded again; every item has one mark in [0, 1].
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from engine.lab.records import Run
from lessons.catalog import Chapter, Lesson, load_lessons
from lessons.generated import items_from_runs
from lessons.quiz import Answer, Grade, Item, QuizError, grade

SUMMARY = "summary"
SOURCE_QUESTIONS = ("sm.why_memory_bound", "sm.kv_outgrows", "sm.static_waste")
"""What the source lesson asks at its end: why decode is memory-bound, when the KV cache outgrows the weights, and what
static batching wastes."""
PER_BANK: Mapping[Chapter, int] = MappingProxyType({"core": 2, "systems": 1, "end": 2})
FROM_RUNS = 5  # lessons at most whose Runs give one item each

Runs = Mapping[str, Mapping[str, Run]]


@dataclass(frozen=True)
class Question:
    """One place of the exam. ``source``: it is one of the source lesson's own."""

    lesson_id: str
    item: Item
    source: bool = False


@dataclass(frozen=True)
class Mark:
    """What one answer was worth. ``answered`` is False for an empty field or one that could not be read."""

    question: Question
    grade: Grade
    answered: bool


@dataclass(frozen=True)
class Result:
    """A whole sheet. ``score`` in [0, 1] is the mean over all questions."""

    marks: tuple[Mark, ...]

    @property
    def score(self) -> float:
        return sum(mark.grade.score for mark in self.marks) / len(self.marks)

    @property
    def num_right(self) -> int:
        return sum(mark.grade.correct for mark in self.marks)

    @property
    def by_lesson(self) -> dict[str, tuple[float, int]]:
        """(points, questions) of each lesson, in the order of the sheet."""
        found: dict[str, tuple[float, int]] = {}
        for mark in self.marks:
            points, count = found.get(mark.question.lesson_id, (0.0, 0))
            found[mark.question.lesson_id] = (points + mark.grade.score, count + 1)
        return found


def draw(seed: int | str, runs: Runs) -> tuple[Question, ...]:
    """The exam of ``seed``: lessons in course order, the items of each in an order of their own. Pure.

    ``runs``: the learner's latest Runs by lesson; where there are none, only the bank is asked.
    """
    made = _made_from_runs(seed, runs)
    sheet: list[Question] = []
    for lesson in load_lessons():
        rng = random.Random(f"{seed}/{lesson.id}")
        always = [lesson.item(item_id) for item_id in SOURCE_QUESTIONS] if lesson.id == SUMMARY else []
        asked = [Question(lesson.id, item, source=True) for item in always]
        asked += [Question(lesson.id, item) for item in _from_bank(lesson, rng, PER_BANK[lesson.chapter])]
        asked += [Question(lesson.id, item) for item in made.get(lesson.id, ())]
        rng.shuffle(asked)
        sheet += asked
    return tuple(sheet)


def _from_bank(lesson: Lesson, rng: random.Random, count: int) -> list[Item]:
    """Items of different kinds where the bank has them, so that an exam is not all of one sort."""
    bank = [item for item in lesson.quiz if item.id not in SOURCE_QUESTIONS]
    rng.shuffle(bank)
    kinds: dict[str, Item] = {}
    for item in bank:
        kinds.setdefault(item.kind, item)
    first = list(kinds.values())
    return (first + [item for item in bank if item not in first])[:count]


def _made_from_runs(seed: int | str, runs: Runs) -> dict[str, list[Item]]:
    """One item each of a few lessons whose Runs the learner has."""
    offered = {lesson.id: items_from_runs(lesson.id, runs.get(lesson.id, {}), seed) for lesson in load_lessons()}
    ready = [lesson_id for lesson_id, items in offered.items() if items]
    chosen = random.Random(f"{seed}/runs").sample(ready, min(FROM_RUNS, len(ready)))
    return {lesson_id: offered[lesson_id][:1] for lesson_id in chosen}


def mark_sheet(sheet: Sequence[Question], answers: Mapping[str, Answer]) -> Result:
    """Grade all of ``sheet``; ``answers`` by item id. An empty or unreadable answer is worth nothing. Pure."""
    return Result(tuple(_mark(question, answers.get(question.item.id)) for question in sheet))


def _mark(question: Question, answer: Answer) -> Mark:
    try:
        return Mark(question, grade(question.item, answer), True)
    except QuizError:
        return Mark(question, Grade(False, 0.0, ()), False)  # nothing to remark on; the sheet tells what was right
