"""For the instructor: what all learners predicted and answered, as CSV. Learners stay pseudonyms.

It decides the columns and the pseudonym, a hash of the learner's id: the id is the key to their records and never
leaves the database. Text that a spreadsheet would take for a formula is disarmed. It changes nothing.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterable
from typing import Any

from lessons.catalog import compare
from lessons.store import Store

ANSWER_COLUMNS = (
    "learner", "lesson", "kind", "item", "attempt", "given", "run_gave", "verdict", "times_off", "score", "time_utc",
)  # fmt: skip
SCORE_COLUMNS = (
    "learner", "lesson", "predictions", "runs", "items_answered", "items_right", "best_score_mean", "last_utc",
)  # fmt: skip
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def pseudonym(learner: str) -> str:
    """The same for the same learner, and no way back. Pure."""
    return "learner-" + hashlib.sha256(learner.encode()).hexdigest()[:10]


def answers(store: Store) -> str:
    """A row per prediction and per answer, every attempt. CSV."""
    return _csv(ANSWER_COLUMNS, (row for learner in store.learners() for row in _answer_rows(store, learner)))


def scores(store: Store) -> str:
    """A row per learner and lesson: how much was done and how well. CSV."""
    return _csv(SCORE_COLUMNS, (row for learner in store.learners() for row in _score_rows(store, learner)))


def _answer_rows(store: Store, learner: str) -> Iterable[tuple[Any, ...]]:
    name = pseudonym(learner)
    for lesson_id in sorted(store.progress(learner)):
        for p in store.predictions(learner, lesson_id):
            found = compare(p.value, p.answer) if p.answer is not None else None
            verdict, factor = (found.direction, found.factor) if found else ("open", None)
            gave = "" if p.answer is None else p.answer
            off = "" if factor is None else f"{factor:.4g}"
            yield (
                name,
                lesson_id,
                "prediction",
                p.prediction_id,
                p.attempt,
                p.value,
                gave,
                verdict,
                off,
                "",
                p.locked_utc,
            )
        for a in store.answers(learner, lesson_id):
            given = a.value if isinstance(a.value, (str, int, float)) else json.dumps(a.value, ensure_ascii=False)
            verdict = "right" if a.score >= 1 else "partly" if a.score > 0 else "wrong"
            yield (
                name,
                lesson_id,
                "answer",
                a.item_id,
                a.attempt,
                given,
                "",
                verdict,
                "",
                f"{a.score:.3g}",
                a.created_utc,
            )


def _score_rows(store: Store, learner: str) -> Iterable[tuple[Any, ...]]:
    for lesson_id, done in sorted(store.progress(learner).items()):
        best: dict[str, float] = {}
        for a in store.answers(learner, lesson_id):
            best[a.item_id] = max(best.get(a.item_id, 0.0), a.score)
        mean = f"{sum(best.values()) / len(best):.3f}" if best else ""
        counts = (done.num_predictions, done.num_runs, done.num_items_answered, done.num_items_correct)
        yield (pseudonym(learner), lesson_id, *counts, mean, done.last_utc)


def _csv(columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([_disarmed(value) for value in row] for row in rows)
    return out.getvalue()


def _disarmed(value: Any) -> Any:
    """A text that begins like a formula gets an apostrophe, unless it is a number. Pure."""
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return "'" + value
    return value
