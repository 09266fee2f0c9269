"""The instructor's guide of a lesson: aim, minutes step by step, what to ask, answers to misconceptions, troubles.

It decides the form of ``lessons/<id>/guide.en.md`` and ``guide.zh.md`` and refuses one that does not keep it, naming
file and defect. The guide is for whoever teaches; a learner's pages never show it. Invariant: the minutes of the steps
add up to the lesson's own, and every misconception of ``lesson.yaml`` has its answer, in the same order.

    ## aim                     what learners can do afterwards that they could not before
    ## steps                   then, for every step of the page in its order:
    ### predict · 5            the step's anchor on the page and its minutes; what to say, show and wait for
    ## ask                     a list of questions to the class, three or more, each with what to listen for
    ## misconceptions          then ### 1, ### 2, ... one for each misconception of the lesson: how to answer it
    ## trouble                 a list of what usually goes wrong, two or more, each with its remedy
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from lessons.catalog import CJK_BREAK, LESSONS_DIR, Lesson, LessonError
from lessons.catalog import lesson as find_lesson
from lessons.text import LANGS, Lang

SECTIONS = ("aim", "steps", "ask", "misconceptions", "trouble")
STEPS = ("before", "predict", "run", "look", "compare", "why", "quiz")  # a lesson may have more
FEWEST_QUESTIONS = 3
FEWEST_TROUBLES = 2
_SECTION = re.compile(r"^## (\S+)[ \t]*$", re.MULTILINE)
_STEP = re.compile(r"^### ([a-z_]+) · (\d+)[ \t]*$", re.MULTILINE)
_NUMBERED = re.compile(r"^### (\d+)[ \t]*$", re.MULTILINE)
_ITEM = re.compile(r"^- ", re.MULTILINE)
# What the ids are called where a guide is read as a document.
TITLES: dict[Lang, dict[str, str]] = {
    "en": {
        "guide": "Guide for instructors",
        "minutes": "{n} minutes",
        "aim": "Aim",
        "steps": "The lesson step by step",
        "ask": "What to ask",
        "misconceptions": "Misconceptions and answers",
        "trouble": "What usually goes wrong",
        "before": "Before the prediction",
        "predict": "Predict",
        "run": "Run",
        "look": "Look",
        "compare": "Measured beside modelled",
        "why": "Why",
        "quiz": "Check yourself",
        "map": "Concept map",
        "claims": "Claims table",
        "exam": "Exam",
    },
    "zh": {
        "guide": "教师指南",
        "minutes": "{n} 分钟",
        "aim": "教学目标",
        "steps": "逐步安排",
        "ask": "提什么问题",
        "misconceptions": "常见误解与回应",
        "trouble": "容易出的问题",
        "before": "预测之前",
        "predict": "预测",
        "run": "运行",
        "look": "观察",
        "compare": "实测与模型对照",
        "why": "为什么",
        "quiz": "测验",
        "map": "概念图",
        "claims": "核对表",
        "exam": "考试",
    },
}


@dataclass(frozen=True)
class Step:
    """A step of the lesson: the anchor of its heading (``before``: what stands above the first), and its minutes."""

    id: str
    minutes: int
    text: str


@dataclass(frozen=True)
class Guide:
    """Markdown throughout. ``misconceptions`` stands beside those of the lesson."""

    lesson_id: str
    aim: str
    steps: tuple[Step, ...]
    ask: tuple[str, ...]
    misconceptions: tuple[str, ...]
    trouble: tuple[str, ...]


@functools.lru_cache(maxsize=64)
def guide(lesson_id: str, lang: Lang) -> Guide:
    """Raises: LessonError naming file and defect, also where the guide is missing."""
    found = find_lesson(lesson_id)
    return parse(LESSONS_DIR / lesson_id / f"guide.{lang}.md", found)


def parse(path: Path, lesson: Lesson) -> Guide:
    """Read and check one guide. Raises: LessonError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise LessonError(f"{path}: there is no guide; its form is described in lessons/guide.py") from None
    sections = _split(_SECTION, CJK_BREAK.sub("", text))
    if tuple(sections) != SECTIONS:
        raise LessonError(f"{path}: has the sections {', '.join(sections)}; needs {', '.join(SECTIONS)}")
    parts = _STEP.split(sections["steps"])[1:]
    found = Guide(
        lesson_id=lesson.id,
        aim=sections["aim"],
        steps=tuple(Step(i, int(m), b.strip()) for i, m, b in zip(parts[::3], parts[1::3], parts[2::3], strict=True)),
        ask=_items(sections["ask"]),
        misconceptions=tuple(_split(_NUMBERED, sections["misconceptions"]).values()),
        trouble=_items(sections["trouble"]),
    )
    for problem in _problems(found, lesson):
        raise LessonError(f"{path}: {problem}")
    return found


def _problems(found: Guide, lesson: Lesson) -> list[str]:
    """What is wrong with a guide, each in one sentence. Pure."""
    problems = []
    missing = [step for step in STEPS if step not in {s.id for s in found.steps}]
    unnamed = [s.id for s in found.steps if s.id not in TITLES["en"]]
    minutes = sum(step.minutes for step in found.steps)
    if missing:
        problems.append(f"steps lack {', '.join(missing)}")
    if unnamed:
        problems.append(f"steps {', '.join(unnamed)} have no title in lessons/guide.py (TITLES)")
    if minutes != lesson.minutes:
        problems.append(f"its steps take {minutes} minutes, lesson.yaml says {lesson.minutes}")
    if len(found.misconceptions) != len(lesson.misconceptions["en"]):
        problems.append(
            f"answers {len(found.misconceptions)} misconceptions, lesson.yaml has {len(lesson.misconceptions['en'])}"
        )
    if len(found.ask) < FEWEST_QUESTIONS:
        problems.append(f"ask has {len(found.ask)} questions; needs {FEWEST_QUESTIONS} or more, each a line `- `")
    if len(found.trouble) < FEWEST_TROUBLES:
        problems.append(f"trouble has {len(found.trouble)} entries; needs {FEWEST_TROUBLES} or more, each a line `- `")
    empty = [s.id for s in found.steps if not s.text] + [n for n in ("aim",) if not getattr(found, n)]
    if empty or not all(found.misconceptions):
        problems.append(f"empty: {', '.join(empty) or 'a misconception'}")
    return problems


def as_markdown(lesson: Lesson, lang: Lang) -> str:
    """The guide as a document of its own, with the words of its ids and the beliefs it answers. Raises: LessonError."""
    found, words = guide(lesson.id, lang), TITLES[lang]
    lines = [
        f"# {lesson.title[lang]}: {words['guide']}" if lang == "en" else f"# {lesson.title[lang]}：{words['guide']}"
    ]
    lines += [f"{lesson.goal[lang]} ({words['minutes'].format(n=lesson.minutes)})"]
    lines += [f"## {words['aim']}", found.aim, f"## {words['steps']}"]
    for step in found.steps:
        lines += [f"### {words[step.id]} · {words['minutes'].format(n=step.minutes)}", step.text]
    lines += [f"## {words['ask']}", "\n".join(f"- {item}" for item in found.ask), f"## {words['misconceptions']}"]
    for belief, answer in zip(lesson.misconceptions[lang], found.misconceptions, strict=True):
        lines += [f"> {belief}", answer]
    lines += [f"## {words['trouble']}", "\n".join(f"- {item}" for item in found.trouble)]
    return "\n\n".join(lines) + "\n"


def problems(lesson_id: str) -> list[str]:
    """What keeps a lesson's guides from being used, in one sentence each; empty when both languages are whole."""
    found = []
    for lang in LANGS:
        try:
            guide(lesson_id, lang)
        except LessonError as error:
            found.append(str(error))
    if not found:
        minutes = [[(step.id, step.minutes) for step in guide(lesson_id, lang).steps] for lang in LANGS]
        counts = [(len(g.ask), len(g.trouble)) for g in (guide(lesson_id, lang) for lang in LANGS)]
        if minutes[0] != minutes[1] or counts[0] != counts[1]:
            found.append(f"lessons/{lesson_id}/guide.en.md and guide.zh.md differ in steps, minutes or number of items")
    return found


def _split(pattern: re.Pattern[str], text: str) -> dict[str, str]:
    parts = pattern.split(text)[1:]
    return {name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}


def _items(text: str) -> tuple[str, ...]:
    return tuple(" ".join(part.split()) for part in _ITEM.split(text)[1:])
