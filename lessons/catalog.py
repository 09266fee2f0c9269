"""The lessons as data: what each teaches, what is predicted before the run, its texts and its quiz bank.

It decides how a lesson's folder (``lesson.yaml``, ``en.md``, ``zh.md``, ``quiz.yaml``) is read and refuses one that is
incomplete in either language. It never looks at a Run (``lessons.run_facts`` does) and never draws anything.
Invariant: both languages of a lesson have the same sections, misconceptions and placeholders.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lessons.quiz import Item, parse_bank
from lessons.text import LANGS, Lang, Text, placeholders

LESSONS_DIR = Path(__file__).parent
Chapter = Literal["core", "systems", "end"]
CHAPTERS: tuple[Chapter, ...] = ("core", "systems", "end")
# A line break between two Chinese characters would show as a space; the source wraps lines, the text must not.
CJK_BREAK = re.compile(
    r"(?<=[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef“”])\n(?=[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef“”])"
)
_SECTION = re.compile(r"^## ([a-z][a-z0-9_]*)[ \t]*$", re.MULTILINE)


class LessonError(ValueError):
    """A lesson folder that cannot be used, or a lesson or section that does not exist, in one sentence."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PredictionOption(_Strict):
    id: str = Field(pattern=r"^[a-z0-9_]+$")
    text: Text


class Prediction(_Strict):
    """What the learner commits to before the run; the answer comes from the Run (``run_facts.prediction_answers``).

    ``presets`` names the workloads in which the question makes sense; empty = all of them.
    """

    id: str = Field(pattern=r"^[a-z0-9_]+$")
    kind: Literal["number", "choice"]
    prompt: Text
    hint: Text | None = None
    unit: Text | None = None
    minimum: float | None = None
    maximum: float | None = None
    whole: bool = False
    options: tuple[PredictionOption, ...] = ()
    presets: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> Prediction:
        if self.kind == "number" and (self.unit is None or self.minimum is None or self.maximum is None):
            raise ValueError(f"prediction {self.id}: a number needs unit, minimum and maximum")
        if self.kind == "choice" and len(self.options) < 2:
            raise ValueError(f"prediction {self.id}: a choice needs two options or more")
        return self

    def asked_for(self, preset: str | None) -> bool:
        """Whether the question is put for this workload. Pure."""
        return not self.presets or preset in self.presets


class CodeLink(_Strict):
    """A place in the source that does what the lesson explains. ``symbol`` is ``path/file.py::Class.method``."""

    symbol: str = Field(pattern=r"^[a-z_/]+\.py::[A-Za-z_][A-Za-z0-9_.]*$")
    label: Text


class _Manifest(_Strict):
    id: str
    order: int
    chapter: Chapter = "core"
    minutes: int = Field(ge=1, le=120)
    title: Text
    goal: Text
    misconceptions: tuple[Text, ...] = Field(min_length=2, max_length=3)
    predictions: tuple[Prediction, ...] = Field(min_length=1)
    code: tuple[CodeLink, ...] = Field(min_length=1)
    sections: tuple[str, ...]  # the sections that en.md and zh.md must both have


@dataclass(frozen=True)
class Lesson:
    """One lesson. ``chapter``: the core course, a system that answers one of its challenges, or the end of it all.

    ``title``, ``goal`` and ``misconceptions`` are keyed by language; texts come from ``text``.
    """

    id: str
    order: int
    chapter: Chapter
    minutes: int
    title: Mapping[Lang, str]
    goal: Mapping[Lang, str]
    misconceptions: Mapping[Lang, list[str]]
    predictions: tuple[Prediction, ...]
    quiz: tuple[Item, ...]
    code: tuple[CodeLink, ...]
    sections: tuple[str, ...]
    _texts: Mapping[Lang, Mapping[str, str]]

    def text(self, lang: Lang, section: str) -> str:
        """Markdown of a section, placeholders unfilled (``run_facts.explanation`` fills them). Raises: LessonError."""
        try:
            return self._texts[lang][section]
        except KeyError:
            known = ", ".join(self.sections)
            raise LessonError(f"lesson {self.id} has no section {section!r} in {lang!r}; it has {known}") from None

    def prediction(self, prediction_id: str) -> Prediction:
        """Raises: LessonError when the lesson asks no such thing."""
        for prediction in self.predictions:
            if prediction.id == prediction_id:
                return prediction
        raise LessonError(f"lesson {self.id} has no prediction {prediction_id!r}")

    def item(self, item_id: str) -> Item:
        """An item of the bank. Raises: LessonError for an id the bank does not have."""
        for item in self.quiz:
            if item.id == item_id:
                return item
        raise LessonError(f"lesson {self.id} has no quiz item {item_id!r}")


def load_lessons() -> tuple[Lesson, ...]:
    """All lessons in course order. Reads the folders once a process. Raises: LessonError naming file and defect."""
    return _load_all()


def lesson(lesson_id: str) -> Lesson:
    """Raises: LessonError when there is no such lesson."""
    for candidate in load_lessons():
        if candidate.id == lesson_id:
            return candidate
    raise LessonError(f"there is no lesson {lesson_id!r}; there are {', '.join(x.id for x in load_lessons())}")


@functools.cache
def _load_all() -> tuple[Lesson, ...]:
    folders = sorted(path.parent for path in LESSONS_DIR.glob("*/lesson.yaml"))
    lessons = sorted((load_lesson(folder) for folder in folders), key=lambda x: x.order)
    orders = [x.order for x in lessons]
    if len(set(orders)) != len(orders):
        raise LessonError(f"two lessons have the same order: {orders}")
    chapters = [CHAPTERS.index(x.chapter) for x in lessons]
    if chapters != sorted(chapters):
        raise LessonError(
            f"lessons of one chapter do not stand together: {[(x.id, x.order, x.chapter) for x in lessons]}"
        )
    return tuple(lessons)


def load_lesson(folder: Path) -> Lesson:
    """Read and validate one lesson folder. Raises: LessonError naming file and defect."""
    manifest: _Manifest = _validated(folder / "lesson.yaml", _Manifest.model_validate)
    if manifest.id != folder.name:
        raise LessonError(f"{folder / 'lesson.yaml'}: id {manifest.id!r} differs from the folder's name")
    texts = {lang: _sections(folder / f"{lang}.md", manifest.sections) for lang in LANGS}
    for section in manifest.sections:
        odd = placeholders(texts["en"][section]) ^ placeholders(texts["zh"][section])
        if odd:
            raise LessonError(f"{folder.name}, section {section}: only one language uses {', '.join(sorted(odd))}")
    return Lesson(
        id=manifest.id,
        order=manifest.order,
        chapter=manifest.chapter,
        minutes=manifest.minutes,
        title=manifest.title,
        goal=manifest.goal,
        misconceptions={lang: [m[lang] for m in manifest.misconceptions] for lang in LANGS},
        predictions=manifest.predictions,
        quiz=_validated(folder / "quiz.yaml", parse_bank),
        code=manifest.code,
        sections=manifest.sections,
        _texts=texts,
    )


def load_yaml(path: Path) -> Any:
    """Decode a YAML file, with the C parser where there is one: the quiz banks take a second without it."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _validated(path: Path, parse: Any) -> Any:
    try:
        return parse(load_yaml(path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(p) for p in first["loc"])
        raise LessonError(f"{path}: {where}: {first['msg']}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError) as error:
        raise LessonError(f"{path}: {error}") from None


def _sections(path: Path, expected: tuple[str, ...]) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LessonError(f"{path}: {error}") from None
    parts = _SECTION.split(text)[1:]
    names, bodies = parts[::2], [CJK_BREAK.sub("", body.strip()) for body in parts[1::2]]
    if sorted(names) != sorted(expected):
        raise LessonError(f"{path}: has sections {', '.join(names)}; lesson.yaml lists {', '.join(expected)}")
    empty = [name for name, body in zip(names, bodies, strict=True) if not body]
    if empty:
        raise LessonError(f"{path}: section {empty[0]} is empty")
    return dict(zip(names, bodies, strict=True))


# ------------------------------------------------------------------ how far off was the prediction


@dataclass(frozen=True)
class Outcome:
    """A prediction beside the Run's answer. ``factor`` >= 1 is how many times too high or too low it was."""

    predicted: float | str
    answer: float | str
    direction: Literal["exact", "high", "low", "right", "wrong"]
    factor: float | None  # None for a choice, and where a ratio has no meaning (one of the two is 0 or less)


def compare(predicted: float | str, answer: float | str) -> Outcome:
    """Set a locked prediction beside the Run's answer. Numbers within 5 % count as exact. Pure."""
    if isinstance(predicted, str) or isinstance(answer, str):
        return Outcome(predicted, answer, "right" if predicted == answer else "wrong", None)
    if abs(predicted - answer) <= 0.05 * abs(answer):
        return Outcome(predicted, answer, "exact", 1.0)
    direction: Literal["high", "low"] = "high" if predicted > answer else "low"
    if predicted <= 0 or answer <= 0:
        return Outcome(predicted, answer, direction, None)
    return Outcome(predicted, answer, direction, max(predicted / answer, answer / predicted))
