"""Quiz items made from the learner's own Runs: every Run asks its own questions, and a seed rotates them.

It decides how a question's words (``lessons/<id>/generated.yaml``) and a question's numbers (``lessons/<id>/items.py``)
become an Item. It never types a key: a key comes from ``engine.lab.metrics`` or from a record. Invariant: the same Runs
and seed give the same items, so the server can grade an answer without having kept the question; a wrong choice that
happens to be true of the Run, or a trap that lies within the tolerance, is left out.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from engine.lab.metrics import request_metrics, request_record
from engine.lab.records import Run
from lessons.catalog import LESSONS_DIR, lesson, load_yaml
from lessons.quiz import ChoiceItem, Item, NumberItem, Option, Trap
from lessons.text import LANGS, Fact, Text, fill_text


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OptionTemplate(_Strict):
    text: Text
    feedback: Text


class ChoiceTemplate(_Strict):
    """``options`` by misconception id; the right one stands under ``correct``."""

    kind: Literal["choice"]
    prompt: Text
    trace: Text | None = None
    options: dict[str, OptionTemplate]


class NumberTemplate(_Strict):
    """``traps``: feedback by misconception id."""

    kind: Literal["number"]
    prompt: Text
    trace: Text | None = None
    unit: Text
    explanation: Text
    otherwise: Text
    traps: dict[str, Text]


Template = Annotated[ChoiceTemplate | NumberTemplate, Field(discriminator="kind")]


@dataclass(frozen=True)
class Draft:
    """The numbers of one question. ``values`` fill the words; ``options`` lists wrong choices that really are wrong.

    ``answer`` and ``traps`` (value by misconception id) belong to a number. A trap that is None does not apply.
    """

    values: Mapping[str, Fact]
    runs: tuple[Run, ...]
    answer: float | None = None
    tolerance: float = 0.0
    whole: bool = False
    traps: Mapping[str, float | None] = field(default_factory=dict)
    options: tuple[str, ...] = ()


Generator = Callable[[Mapping[str, Run], random.Random], Draft | None]
"""Makes one question from Runs; None when the Runs do not hold what it asks about."""


def items_from_runs(lesson_id: str, runs: Mapping[str, Run], seed: int | str) -> list[Item]:
    """One item of every kind the Runs allow, in an order set by ``seed``. Pure.

    ``runs`` by role (see ``lessons``): ``{"run": ...}``, or ``{"static": ..., "chunked": ...}`` where policies are
    compared; one that is missing only costs its items. Another seed asks about other requests, steps and tokens.
    """
    generators: Mapping[str, Generator] = importlib.import_module(f"lessons.{lesson(lesson_id).id}.items").GENERATORS
    mark = hashlib.sha256(f"{seed}/{'/'.join(f'{k}={r.run_id}' for k, r in sorted(runs.items()))}".encode()).hexdigest()
    found: list[Item] = []
    for kind, generator in generators.items():
        draft = generator(runs, random.Random(f"{mark}/{kind}"))
        item = draft and build(templates(lesson_id)[kind], draft, f"{lesson_id}.gen.{kind}.{mark[:12]}", kind)
        if item:
            found.append(item)
    random.Random(mark).shuffle(found)
    return found


def build(template: Template, draft: Draft, item_id: str, kind: str) -> Item | None:
    """Set numbers into words. Pure. Returns None when fewer than two wrong choices are left. Raises: TextError."""
    common = {
        "id": item_id,
        "prompt": fill_text(template.prompt, draft.values),
        "trace": fill_text(template.trace, draft.values) if template.trace else None,
        "generator": kind,
        "run_ids": tuple(run.run_id for run in draft.runs),
    }
    if isinstance(template, ChoiceTemplate):
        options = _options(template, draft)
        return ChoiceItem(options=options, **common) if len(options) > 2 else None
    assert draft.answer is not None
    return NumberItem(
        answer=draft.answer,
        tolerance=_short(draft.tolerance),
        whole=draft.whole,
        unit=template.unit,
        explanation=fill_text(template.explanation, draft.values),
        otherwise=fill_text(template.otherwise, draft.values),
        traps=_traps(template, draft),
        **common,
    )


def _short(tolerance: float) -> float:
    """Cut to two digits, never up, because it is shown: "right within ± 0.53". Pure.

    >>> _short(0.5396), _short(2.10039), _short(0.0), _short(21.9)
    (0.53, 2.1, 0.0, 21.0)
    """
    if tolerance <= 0:
        return 0.0
    place = 10.0 ** (math.floor(math.log10(tolerance)) - 1)
    return float(f"{math.floor(tolerance / place + 1e-9) * place:.3g}")


def _options(template: ChoiceTemplate, draft: Draft) -> tuple[Option, ...]:
    """The right option first, then the wrong ones whose text differs from all before."""
    found: list[Option] = []
    for name in ("correct", *draft.options):
        words = template.options[name]
        text = fill_text(words.text, draft.values)
        if any(text[lang] == other.text[lang] for other in found for lang in LANGS):
            continue
        correct = name == "correct"
        found.append(
            Option(
                id=name,
                text=text,
                feedback=fill_text(words.feedback, draft.values),
                correct=correct,
                misconception=None if correct else name,
            )
        )
    return tuple(found)


def _traps(template: NumberTemplate, draft: Draft) -> tuple[Trap, ...]:
    """Traps clear of the right answer and of each other, as wide as the answer's tolerance where there is room."""
    found: list[Trap] = []
    for name, value in draft.traps.items():
        if value is None or abs(value - draft.answer) <= 1.01 * draft.tolerance:
            continue
        if any(abs(value - other.value) <= other.within for other in found):
            continue
        room = abs(value - draft.answer) - 1.01 * draft.tolerance
        within = min(draft.tolerance, room)
        feedback = fill_text(template.traps[name], draft.values)
        found.append(Trap(value=value, within=within, misconception=name, feedback=feedback))
    return tuple(found)


@functools.cache
def templates(lesson_id: str) -> Mapping[str, Template]:
    """The words of a lesson's generated items by kind. Raises: pydantic.ValidationError."""
    path = LESSONS_DIR / lesson_id / "generated.yaml"
    return TypeAdapter(dict[str, Template]).validate_python(load_yaml(path))


def tpot_draft(run: Run, request_id: str, values: Mapping[str, Fact]) -> Draft | None:
    """The TPOT of one request, as both lessons ask for it. None for a request with fewer than three tokens. Pure.

    The tolerance stays below the distance to the neighbouring mistake, n gaps in place of n − 1.
    """
    record = request_record(run, request_id)
    metrics = request_metrics(record)
    num_tokens = record.num_output_tokens
    if metrics.tpot_s is None or num_tokens < 3:
        return None
    answer = 1e3 * metrics.tpot_s
    first_ms, last_ms = 1e3 * metrics.ttft_s, 1e3 * metrics.e2e_s
    return Draft(
        values={
            **values,
            "num_tokens": num_tokens,
            "num_gaps": num_tokens - 1,
            "first_ms": f"{first_ms:.2f}",
            "last_ms": f"{last_ms:.2f}",
            "tpot": f"{answer:.2f}",
        },
        runs=(run,),
        answer=answer,
        tolerance=min(0.01 * answer, 0.4 * answer / num_tokens),
        traps={
            "off_by_one_gap": (last_ms - first_ms) / num_tokens,
            "ttft_inside_tpot": last_ms / num_tokens,
            "tpot_is_ttft": first_ms,
        },
    )
