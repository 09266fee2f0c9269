"""Opens the learner database and keeps the lab usable when it breaks.

It decides what happens when the file is damaged (set aside under a dated name, a new one begins), cannot be written or
the disk is full (an in-memory copy takes over, with one sentence of notice). It knows nothing of tables beyond creating
them and never deletes a learner's file. Invariant: ``read`` and ``write`` either complete their transaction or raise an
error that is a bug; a broken disk is not one. SQLite settings follow its documentation for many readers and one writer:
WAL, a busy timeout, BEGIN IMMEDIATE for writes so that no reader is upgraded half-way.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar

from sqlalchemy import Connection, Engine, MetaData, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from lessons.notices import NOTICES
from lessons.text import Lang

T = TypeVar("T")
Trouble = Literal["damaged", "full", "unwritable", "busy", "no_tables", "unreachable"]
log = logging.getLogger(__name__)

BUSY_TIMEOUT_MS = 5_000
MAX_COPY_BYTES = 256 * 2**20  # a larger file is not copied into memory when the disk gives out
_CODES: dict[int, Trouble] = {
    sqlite3.SQLITE_CORRUPT: "damaged",
    sqlite3.SQLITE_NOTADB: "damaged",
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_READONLY: "unwritable",
    sqlite3.SQLITE_CANTOPEN: "unwritable",
    sqlite3.SQLITE_PERM: "unwritable",
    sqlite3.SQLITE_IOERR: "unwritable",
    sqlite3.SQLITE_BUSY: "busy",
    sqlite3.SQLITE_LOCKED: "busy",
}


class NewerSchema(Exception):
    """Raised by ``prepare`` when the stored schema version is above what this lab can read."""


class Database:
    """One database for all script threads. ``prepare`` runs in a write transaction whenever tables were just ensured.

    ``notice`` holds the sentence for the learner, in both languages, when something went wrong; None when all is well.
    """

    def __init__(self, url: str, metadata: MetaData, prepare: Callable[[Connection], None]) -> None:
        self._metadata = metadata
        self._prepare = prepare
        self._lock = threading.RLock()  # one writer at a time; also guards a change of engine
        self._generation = 0
        self._url = url
        self.notice: dict[Lang, str] | None = None
        self._path = _sqlite_path(url)
        with self._lock:
            self._open()

    # -------------------------------------------------------------- transactions

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a read transaction. Must not write: it may run twice."""
        return self._attempt(work, write=False)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a write transaction, whole or not at all. It may run twice, each time from the start."""
        with self._lock:
            return self._attempt(work, write=True)

    @property
    def in_memory(self) -> bool:
        """Whether nothing survives a restart."""
        return self._is_memory

    def close(self) -> None:
        """Effect: connections are closed; the object must not be used again."""
        self._engine.dispose()

    def _attempt(self, work: Callable[[Connection], T], *, write: bool) -> T:
        for last in (False, False, True):
            generation = self._generation
            try:
                with self._transaction(write=write) as connection:
                    return work(connection)
            except (SQLAlchemyError, sqlite3.Error) as error:
                trouble = _trouble(error)
                if trouble is None or last:
                    raise
                self._recover(trouble, generation)
        raise AssertionError("unreachable")

    @contextlib.contextmanager
    def _transaction(self, *, write: bool) -> Iterator[Connection]:
        guard = self._lock if self._is_memory else contextlib.nullcontext()  # one connection for all threads there
        with guard, self._engine.connect() as plain:
            connection = plain.execution_options(lab_write=write)
            with connection.begin():
                yield connection

    # -------------------------------------------------------------- opening and recovering

    def _open(self) -> None:
        """Effect: ``_engine`` works afterwards, whatever the state of the disk."""
        try:
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            self._use(_engine(self._url), is_memory=self._path is None and self._url.startswith("sqlite"))
            self._ensure_tables(check=True)
        except NewerSchema:
            self._fall_back("newer")
        except OSError:
            self._fall_back("unwritable")
        except (ArgumentError, NoSuchModuleError, ImportError):
            self._fall_back("unreachable")
        except (SQLAlchemyError, sqlite3.Error) as error:
            trouble = _trouble(error) or "unreachable"
            if trouble in ("damaged", "no_tables"):
                self._set_aside()
            else:
                self._fall_back(trouble)

    def _use(self, engine: Engine, *, is_memory: bool) -> None:
        self._engine, self._is_memory = engine, is_memory
        self._generation += 1

    def _ensure_tables(self, *, check: bool = False) -> None:
        with self._transaction(write=True) as connection:
            if check and self._path is not None and self._path.stat().st_size < 2**26:
                verdict = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
                if verdict != "ok":
                    raise _damaged(f"quick_check: {verdict}")
            self._metadata.create_all(connection)
            for table in self._metadata.sorted_tables:  # a table of the same name may be somebody else's
                connection.execute(table.select().limit(0))
            self._prepare(connection)

    def _recover(self, trouble: Trouble, generation: int) -> None:
        """Make the next attempt possible. Does nothing when another thread has already done so."""
        with self._lock:
            if generation != self._generation:
                return
            log.warning("learner database: %s (%s)", trouble, self._shown_name())
            if self._is_memory and trouble != "no_tables":
                raise AssertionError(f"the in-memory database reports {trouble}")
            if trouble == "damaged":
                self._set_aside()
            elif trouble == "no_tables":  # somebody emptied or replaced the file under us
                self._engine.dispose()
                self._open()
            else:
                self._fall_back(trouble)

    def _set_aside(self) -> None:
        """Rename the damaged file (and its -wal and -shm) and begin a new one; in memory where renaming fails."""
        if self._path is None:
            self._fall_back("unreachable")
            return
        self._engine.dispose()
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        target = self._path.with_name(f"{self._path.stem}.damaged-{stamp}{self._path.suffix}")
        count = 1
        while target.exists():
            count += 1
            target = self._path.with_name(f"{self._path.stem}.damaged-{stamp}-{count}{self._path.suffix}")
        try:
            for ending in ("", "-wal", "-shm"):
                part = Path(f"{self._path}{ending}")
                if part.exists():
                    part.rename(f"{target}{ending}")
            self._use(_engine(self._url), is_memory=False)
            self._ensure_tables()
        except (OSError, SQLAlchemyError, sqlite3.Error):
            self._fall_back("unwritable")
            return
        self._say("damaged", target.name)

    def _fall_back(self, trouble: str) -> None:
        """Go on in memory, with what can still be read of the file."""
        if hasattr(self, "_engine"):
            self._engine.dispose()
        engine = _engine("sqlite://")
        if self._path is not None and trouble != "newer":
            _copy_into(engine, self._path)
        self._use(engine, is_memory=True)
        try:
            self._ensure_tables()
        except (SQLAlchemyError, sqlite3.Error, NewerSchema):  # the copy is of no use either
            self._use(_engine("sqlite://"), is_memory=True)
            self._ensure_tables()
        folder = str(self._path.parent) if self._path and trouble == "unwritable" else self._shown_name()
        self._say(trouble, folder)

    def _say(self, key: str, name: str) -> None:
        self.notice = {lang: text.format(name=name) for lang, text in NOTICES[key].items()}
        log.warning("%s", self.notice["en"])

    def _shown_name(self) -> str:
        """The file's name, or the address without its password."""
        if self._path is not None:
            return self._path.name
        try:
            return make_url(self._url).render_as_string(hide_password=True)
        except ArgumentError:
            return "in DATABASE_URL"


# ------------------------------------------------------------------ SQLite details


def _engine(url: str) -> Engine:
    if url == "sqlite://" or (url.startswith("sqlite") and _sqlite_path(url) is None):
        engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    elif url.startswith("sqlite"):
        engine = create_engine(url, pool_size=8, max_overflow=24, connect_args={"timeout": BUSY_TIMEOUT_MS / 1000})
    else:
        return create_engine(url, pool_pre_ping=True)
    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", _begin)
    return engine


def _configure(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # transactions are begun by _begin, not by the driver's guess
    for pragma in (f"busy_timeout={BUSY_TIMEOUT_MS}", "journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    write = connection.get_execution_options().get("lab_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _sqlite_path(url: str) -> Path | None:
    """The file of a SQLite URL; None for memory, for another database and for an address that cannot be read."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        return None
    if parsed.get_backend_name() != "sqlite" or parsed.database in (None, "", ":memory:"):
        return None
    return Path(parsed.database)


def _copy_into(engine: Engine, path: Path) -> None:
    """Copy a readable file into the in-memory ``engine``. Effect: none when the file cannot be read."""
    try:
        if path.stat().st_size > MAX_COPY_BYTES:
            return
    except OSError:
        return
    for options in ("mode=ro", "mode=ro&immutable=1"):  # the second reads from a folder that cannot hold -shm
        try:
            with (
                contextlib.closing(
                    sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True, timeout=1)
                ) as src,
                engine.connect() as connection,
            ):
                src.execute("SELECT count(*) FROM sqlite_master")
                src.backup(connection.connection.dbapi_connection)
                return
        except sqlite3.Error:
            continue


def _damaged(message: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(message)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _trouble(error: Exception) -> Trouble | None:
    """What kind of trouble an error is; None for one that is our own bug (a constraint, a wrong statement)."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    if not isinstance(cause, sqlite3.Error):
        return "unreachable" if isinstance(error, DBAPIError) and error.connection_invalidated else None
    code = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if code == sqlite3.SQLITE_IOERR_SHORT_READ:
        return "damaged"  # the file was cut off
    if code & 0xFF == sqlite3.SQLITE_ERROR and any(
        text in str(cause) for text in ("no such table", "no such column", "has no column")
    ):
        return "no_tables"
    return _CODES.get(code & 0xFF)
