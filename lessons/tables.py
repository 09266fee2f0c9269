"""The tables of the learner database, and the few statements that every table needs.

It decides the schema and its version, and nothing else: what is written when is ``lessons.store``, what happens when
the disk fails is ``lessons.database``. Invariant: every row but ``meta`` belongs to a learner and goes with them.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    delete,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite

from lessons.database import NewerSchema

SCHEMA_VERSION = 1

metadata = MetaData()


def _learner_column() -> Column:
    return Column("learner", String(64), ForeignKey("learner.id", ondelete="CASCADE"), nullable=False, index=True)


meta_table = Table(
    "meta", metadata, Column("key", String(40), primary_key=True), Column("value", String, nullable=False)
)
learner_table = Table(
    "learner", metadata, Column("id", String(64), primary_key=True), Column("created_utc", String(32), nullable=False)
)
prediction_table = Table(
    "prediction",
    metadata,
    Column("id", Integer, primary_key=True),
    _learner_column(),
    Column("lesson_id", String(64), nullable=False),
    Column("prediction_id", String(64), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("value", String, nullable=False),  # JSON
    Column("locked_utc", String(32), nullable=False),
    Column("run_id", String(80)),  # the run that answered it, once it has
    Column("answer", String),  # JSON
    UniqueConstraint("learner", "lesson_id", "prediction_id", "attempt"),
)
answer_table = Table(
    "answer",
    metadata,
    Column("id", Integer, primary_key=True),
    _learner_column(),
    Column("lesson_id", String(64), nullable=False),
    Column("item_id", String(200), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("value", String, nullable=False),  # JSON
    Column("score", Float, nullable=False),
    Column("created_utc", String(32), nullable=False),
    UniqueConstraint("learner", "lesson_id", "item_id", "attempt"),
)
run_table = Table(
    "run",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", String(80), nullable=False, unique=True),
    _learner_column(),
    Column("lesson_id", String(64), nullable=False),
    Column("role", String(40), nullable=False),
    Column("workload", String(40), nullable=False),
    Column("created_utc", String(32), nullable=False),
    Column("jsonl", LargeBinary, nullable=False),  # zlib
    Column("texts", LargeBinary, nullable=False),  # zlib of JSON
)
preference_table = Table(
    "preference",
    metadata,
    Column("id", Integer, primary_key=True),
    _learner_column(),
    Column("key", String(64), nullable=False),
    Column("value", String, nullable=False),
    UniqueConstraint("learner", "key"),
)
event_table = Table(
    "event",
    metadata,
    Column("id", Integer, primary_key=True),
    _learner_column(),
    Column("verb", String(40), nullable=False),
    Column("object", String(200), nullable=False),
    Column("data", String, nullable=False),  # JSON
    Column("created_utc", String(32), nullable=False),
)


def insert(connection: Connection, table: Table) -> Any:
    """The dialect's INSERT, which knows ON CONFLICT."""
    return (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)


def keep_newest(connection: Connection, table: Table, learner: str, count: int) -> None:
    """Effect: the learner keeps the ``count`` newest rows of ``table``."""
    newest_first = select(table.c.id).where(table.c.learner == learner).order_by(table.c.id.desc())
    oldest_kept = connection.scalar(newest_first.offset(count - 1).limit(1))
    if oldest_kept is not None:
        connection.execute(delete(table).where(table.c.learner == learner, table.c.id < oldest_kept))


def ensure_version(connection: Connection) -> None:
    """Write the schema version into a new database; refuse one from the future."""
    row = {"key": "schema_version", "value": str(SCHEMA_VERSION)}
    connection.execute(insert(connection, meta_table).values(row).on_conflict_do_nothing())
    stored = connection.scalar(select(meta_table.c.value).where(meta_table.c.key == "schema_version"))
    if int(stored) > SCHEMA_VERSION:
        raise NewerSchema(stored)
