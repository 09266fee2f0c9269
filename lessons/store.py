"""What a learner predicted, ran and answered, kept across reloads and restarts.

It decides which writes are idempotent (a locked prediction, an answer's attempt, a run) and how much is kept per
learner. It never grades, and never sees a name or an address: a learner is a random id. Invariant: a locked prediction
never changes, and deleting a learner deletes every row that belongs to them. Safe to share between script threads.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, delete, func, select, update

from engine.lab.records import Run
from lessons.database import Database
from lessons.stored import (
    LessonProgress,
    RunTexts,
    StoredAnswer,
    StoredPrediction,
    StoredRun,
    listed_run,
    pack_run,
    pack_texts,
    run_role,
    unpack_head,
    unpack_run,
    unpack_texts,
    workload_of,
)
from lessons.tables import (
    answer_table,
    ensure_version,
    event_table,
    insert,
    keep_newest,
    learner_table,
    metadata,
    prediction_table,
    preference_table,
    run_table,
)
from lessons.text import Lang

KEEP_RUNS = 96  # per learner; the oldest go first
KEEP_EVENTS = 2_000
KEEP_ANSWERS = 5_000
MAX_ANSWER_CHARACTERS = 4_000
_LEARNER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class StoreError(ValueError):
    """A value that cannot be stored, in one sentence. The state of the disk never raises it."""


class Store:
    """All methods may be called from any thread. ``learner`` arguments are ids returned by ``learner``."""

    def __init__(self, database_url: str = "sqlite://") -> None:
        """``database_url``: SQLAlchemy address; ``sqlite://`` keeps all in memory. Never raises for a bad disk."""
        self._db = Database(database_url, metadata, ensure_version)

    @property
    def notice(self) -> str | None:
        """One sentence in English when records were lost or will be; None when all is well. See ``notice_in``."""
        return self.notice_in("en")

    def notice_in(self, lang: Lang) -> str | None:
        return self._db.notice[lang] if self._db.notice else None

    @property
    def in_memory(self) -> bool:
        """Whether what is stored now is lost when the process ends."""
        return self._db.in_memory

    def close(self) -> None:
        self._db.close()

    # -------------------------------------------------------------- learners

    def learner(self, sid: str) -> str:
        """Register a learner by the random id of their browser; returns it. Idempotent. Raises: StoreError."""
        if not isinstance(sid, str) or not _LEARNER_ID.fullmatch(sid):
            raise StoreError(
                f"learner id {str(sid)[:20]!r} is not 1 to 64 letters, digits, - or _; start a new session"
            )
        self._db.write(lambda c: self._touch(c, sid))
        return sid

    def learners(self) -> list[str]:
        """All learners, the first to come first."""
        t = learner_table.c
        return list(self._db.read(lambda c: c.scalars(select(t.id).order_by(t.created_utc, t.id)).all()))

    def learner_with(self, key: str, value: str) -> str | None:
        """The learner whose preference ``key`` is ``value``; None when nobody's is."""
        t = preference_table.c
        query = select(t.learner).where(t.key == key, t.value == value).order_by(t.id).limit(1)
        return self._db.read(lambda c: c.scalar(query))

    def reset(self, learner: str) -> None:
        """Delete all that belongs to the learner: predictions, answers, runs, preferences, events. Idempotent."""
        self._db.write(lambda c: c.execute(delete(learner_table).where(learner_table.c.id == learner)))

    def _touch(self, connection: Connection, learner: str) -> None:
        values = {"id": learner, "created_utc": _now()}
        connection.execute(insert(connection, learner_table).values(values).on_conflict_do_nothing())

    # -------------------------------------------------------------- predictions

    def save_prediction(
        self, learner: str, lesson_id: str, prediction_id: str, value: float | str, attempt: int = 1
    ) -> StoredPrediction:
        """Lock a prediction and return what is locked: the first value of an attempt stands, later ones are ignored."""

        def work(c: Connection) -> None:
            self._touch(c, learner)
            row = {
                "learner": learner,
                "lesson_id": lesson_id,
                "prediction_id": prediction_id,
                "attempt": attempt,
                "value": json.dumps(value),
                "locked_utc": _now(),
            }
            c.execute(insert(c, prediction_table).values(row).on_conflict_do_nothing())

        self._db.write(work)
        locked = self.prediction(learner, lesson_id, prediction_id, attempt)
        assert locked is not None
        return locked

    def prediction(
        self, learner: str, lesson_id: str, prediction_id: str, attempt: int | None = None
    ) -> StoredPrediction | None:
        """The locked prediction of an attempt, by default the latest. None when nothing is locked."""
        found = [
            p
            for p in self.predictions(learner, lesson_id)
            if p.prediction_id == prediction_id and attempt in (None, p.attempt)
        ]
        return found[-1] if found else None

    def predictions(self, learner: str, lesson_id: str) -> list[StoredPrediction]:
        """All attempts, oldest first."""
        t = prediction_table.c
        query = (
            select(t.prediction_id, t.attempt, t.value, t.locked_utc, t.run_id, t.answer)
            .where(t.learner == learner, t.lesson_id == lesson_id)
            .order_by(t.attempt, t.id)
        )
        rows = self._db.read(lambda c: c.execute(query).all())
        return [
            StoredPrediction(
                r.prediction_id,
                r.attempt,
                json.loads(r.value),
                r.locked_utc,
                r.run_id,
                r.answer and json.loads(r.answer),
            )
            for r in rows
        ]

    def settle_prediction(
        self, learner: str, lesson_id: str, prediction_id: str, attempt: int, run_id: str, answer: float | str
    ) -> None:
        """Record which run answered a locked prediction, and what it answered. The first run counts. Idempotent."""
        t = prediction_table.c
        statement = (
            update(prediction_table)
            .where(t.learner == learner, t.lesson_id == lesson_id, t.prediction_id == prediction_id)
            .where(t.attempt == attempt, t.run_id.is_(None))
            .values(run_id=run_id, answer=json.dumps(answer))
        )
        self._db.write(lambda c: c.execute(statement))

    # -------------------------------------------------------------- answers

    def save_answer(
        self, learner: str, lesson_id: str, item_id: str, value: Any, score: float, attempt: int | None = None
    ) -> int:
        """Append an answer; returns its attempt number, from 1. Giving ``attempt`` makes a repeated call harmless.

        Raises: StoreError when the answer is longer than MAX_ANSWER_CHARACTERS.
        """
        encoded = json.dumps(value)
        if len(encoded) > MAX_ANSWER_CHARACTERS:
            raise StoreError(f"an answer of {len(encoded)} characters; allowed: up to {MAX_ANSWER_CHARACTERS}")
        t = answer_table.c

        def work(c: Connection) -> int:
            self._touch(c, learner)
            same = (t.learner == learner) & (t.lesson_id == lesson_id) & (t.item_id == item_id)
            number = attempt or (c.scalar(select(func.max(t.attempt)).where(same)) or 0) + 1
            row = {
                "learner": learner,
                "lesson_id": lesson_id,
                "item_id": item_id,
                "attempt": number,
                "value": encoded,
                "score": float(score),
                "created_utc": _now(),
            }
            c.execute(insert(c, answer_table).values(row).on_conflict_do_nothing())
            keep_newest(c, answer_table, learner, KEEP_ANSWERS)
            return number

        return self._db.write(work)

    def answers(self, learner: str, lesson_id: str | None = None) -> list[StoredAnswer]:
        """All answers of a learner, oldest first; of one lesson when ``lesson_id`` is given."""
        t = answer_table.c
        query = select(t.lesson_id, t.item_id, t.attempt, t.value, t.score, t.created_utc).where(t.learner == learner)
        if lesson_id is not None:
            query = query.where(t.lesson_id == lesson_id)
        rows = self._db.read(lambda c: c.execute(query.order_by(t.id)).all())
        return [
            StoredAnswer(r.lesson_id, r.item_id, r.attempt, json.loads(r.value), r.score, r.created_utc) for r in rows
        ]

    # -------------------------------------------------------------- runs

    def save_run(
        self,
        run: Run,
        texts: dict[str, str],
        lesson_id: str,
        learner: str,
        pieces: dict[str, list[str]] | None = None,
        role: str | None = None,
        experiment: str | None = None,
        key: str | None = None,
    ) -> None:
        """Keep a run, and drop the learner's oldest beyond KEEP_RUNS. A run that is already stored stays as it is.

        ``role`` is the key under which the lesson expects it, ``experiment`` what its partners share
        (``experiment_of``); without them it is the only run of its lesson, or one of two policies on one workload.
        ``key`` is what it is found by later, its run id if it is left out (an imported one has ``import_key``).
        """
        row = {
            "run_id": key or run.run_id,
            "learner": learner,
            "lesson_id": lesson_id,
            "role": role or run_role(run, lesson_id),
            "workload": experiment or workload_of(run),
            "created_utc": _now(),
            "jsonl": pack_run(run),
            "texts": pack_texts(RunTexts(texts, pieces or {})),
        }

        def work(c: Connection) -> None:
            self._touch(c, learner)
            c.execute(insert(c, run_table).values(row).on_conflict_do_nothing())
            keep_newest(c, run_table, learner, KEEP_RUNS)

        self._db.write(work)

    def run(self, run_id: str) -> Run | None:
        """None when the run is unknown, was dropped, or can no longer be read."""
        packed = self._db.read(lambda c: c.scalar(select(run_table.c.jsonl).where(run_table.c.run_id == run_id)))
        return unpack_run(packed)

    def runs_of(self, learner: str) -> list[StoredRun]:
        """All runs of a learner, newest first; one whose header can no longer be read is left out."""
        t = run_table.c
        query = select(t.run_id, t.lesson_id, t.role, t.created_utc, t.jsonl).where(t.learner == learner)
        rows = self._db.read(lambda c: c.execute(query.order_by(t.id.desc())).all())
        return [
            listed_run(head, row.run_id, row.lesson_id, row.role, row.created_utc)
            for row in rows
            if (head := unpack_head(row.jsonl)) is not None
        ]

    def texts(self, run_id: str) -> RunTexts:
        """Empty when the run is unknown."""
        packed = self._db.read(lambda c: c.scalar(select(run_table.c.texts).where(run_table.c.run_id == run_id)))
        return unpack_texts(packed)

    def latest_runs(self, learner: str, lesson_id: str) -> dict[str, Run]:
        """The learner's newest run of a lesson by role, with its partners of the same experiment (see ``save_run``).

        Keys: ``run``, or in lessons that compare policies ``static`` and ``chunked`` (one may be missing).
        """
        t = run_table.c
        query = select(t.role, t.workload, t.jsonl).where(t.learner == learner, t.lesson_id == lesson_id)
        rows = self._db.read(lambda c: c.execute(query.order_by(t.id.desc())).all())
        found: dict[str, Run] = {}
        workload = None
        for row in rows:
            if workload not in (None, row.workload) or row.role in found:
                continue
            run = unpack_run(row.jsonl)
            if run is not None:
                found[row.role], workload = run, row.workload
        return found

    # -------------------------------------------------------------- preferences, events, progress

    def set_preference(self, learner: str, key: str, value: str) -> None:
        def work(c: Connection) -> None:
            self._touch(c, learner)
            row = {"learner": learner, "key": key, "value": value}
            statement = insert(c, preference_table).values(row)
            c.execute(statement.on_conflict_do_update(index_elements=["learner", "key"], set_={"value": value}))

        self._db.write(work)

    def preference(self, learner: str, key: str) -> str | None:
        t = preference_table.c
        return self._db.read(lambda c: c.scalar(select(t.value).where(t.learner == learner, t.key == key)))

    def preferences(self, learner: str, prefix: str) -> dict[str, str]:
        """All values of the learner whose key begins with ``prefix``, by key."""
        t = preference_table.c
        query = select(t.key, t.value).where(t.learner == learner, t.key.startswith(prefix, autoescape=True))
        return {row.key: row.value for row in self._db.read(lambda c: c.execute(query).all())}

    def log_event(self, learner: str, verb: str, object_id: str, data: dict[str, Any] | None = None) -> None:
        """Append to the learner's log (verb, object, JSON data); only the newest KEEP_EVENTS are kept."""

        def work(c: Connection) -> None:
            self._touch(c, learner)
            row = {
                "learner": learner,
                "verb": verb,
                "object": object_id,
                "data": json.dumps(data or {}),
                "created_utc": _now(),
            }
            c.execute(insert(c, event_table).values(row))
            keep_newest(c, event_table, learner, KEEP_EVENTS)

        self._db.write(work)

    def progress(self, learner: str) -> dict[str, LessonProgress]:
        """Per lesson in which the learner did something."""

        def work(c: Connection) -> dict[str, LessonProgress]:
            p, r, a = prediction_table.c, run_table.c, answer_table.c
            predicted = c.execute(
                select(p.lesson_id, func.count(p.prediction_id.distinct()), func.max(p.locked_utc))
                .where(p.learner == learner)
                .group_by(p.lesson_id)
            ).all()
            ran = c.execute(
                select(r.lesson_id, func.count(), func.max(r.created_utc))
                .where(r.learner == learner)
                .group_by(r.lesson_id)
            ).all()
            answered = c.execute(
                select(a.lesson_id, a.item_id, func.max(a.score), func.max(a.created_utc))
                .where(a.learner == learner)
                .group_by(a.lesson_id, a.item_id)
            ).all()
            return _progress_of(predicted, ran, answered)

        return self._db.read(work)


def _progress_of(predicted: list, ran: list, answered: list) -> dict[str, LessonProgress]:
    lesson_ids = dict.fromkeys(row[0] for row in (*predicted, *ran, *answered))
    predictions = {row[0]: row[1] for row in predicted}
    runs = {row[0]: row[1] for row in ran}
    found = {}
    for lesson_id in lesson_ids:
        scores = [row[2] for row in answered if row[0] == lesson_id]
        found[lesson_id] = LessonProgress(
            lesson_id=lesson_id,
            num_predictions=predictions.get(lesson_id, 0),
            num_runs=runs.get(lesson_id, 0),
            num_items_answered=len(scores),
            num_items_correct=sum(score >= 1 for score in scores),
            last_utc=max(row[-1] for row in (*predicted, *ran, *answered) if row[0] == lesson_id),
        )
    return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
