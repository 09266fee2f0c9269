"""The Runs that ship with a lesson: genuine ones, made by ``python -m lessons record`` on a device they name.

It decides where they lie (``lessons/<id>/recorded/<role>.jsonl``, packed as ``.jsonl.gz`` where they are large, what
was said beside it in ``<role>.texts.json``) and finds them by folder; nothing is registered. It never makes or mends
one: a file that cannot be read is not there. Whether a learner is shown them is decided by ``lessons.shown``.
"""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.lab.records import Header, Run, RunFileError
from lessons.catalog import LESSONS_DIR
from lessons.parts import default_parts, fingerprint
from lessons.stored import RunTexts, StoredRun, listed_run
from lessons.text import LANGS

FOLDER = "recorded"
TEXTS_SUFFIX = ".texts.json"
KEEP_LESSONS = 32


@dataclass(frozen=True)
class Origin:
    """Where and when Runs were recorded. ``date`` is ISO, UTC."""

    device: str
    threads: int
    date: str


def files(lesson_id: str, root: Path = LESSONS_DIR) -> list[Path]:
    """The Run files of a lesson."""
    return sorted((root / lesson_id / FOLDER).glob("*.jsonl*"))


def role(path: Path) -> str:
    """The role of the Run in a file, from its name. Pure."""
    return path.name.partition(".")[0]


@functools.lru_cache(maxsize=KEEP_LESSONS)
def roles(lesson_id: str) -> frozenset[str]:
    """The roles that were recorded. Reads no Run."""
    return frozenset(role(path) for path in files(lesson_id))


@functools.lru_cache(maxsize=KEEP_LESSONS)
def runs(lesson_id: str) -> Mapping[str, Run]:
    """The recorded Runs of a lesson by role, newest first as the store gives a learner's own; empty without any."""
    found: dict[str, Run] = {}
    for path in files(lesson_id):
        try:
            found[role(path)] = Run.load(path)
        except (RunFileError, OSError):
            continue
    return dict(sorted(found.items(), key=lambda pair: pair[1].header.created_utc, reverse=True))


@functools.lru_cache(maxsize=8 * KEEP_LESSONS)
def texts(run_id: str) -> RunTexts:
    """What the requests of a recorded Run said; empty when it is none, or says nothing."""
    path = _paths().get(run_id)
    try:
        return (
            RunTexts(**json.loads((path.parent / (role(path) + TEXTS_SUFFIX)).read_text("utf-8")))
            if path
            else RunTexts()
        )
    except (OSError, ValueError, TypeError):
        return RunTexts()


def run(run_id: str) -> Run | None:
    """A recorded Run by its id."""
    path = _paths().get(run_id)
    return None if path is None else runs(path.parent.parent.name).get(role(path))


def is_recorded(run_id: str) -> bool:
    """Whether a Run is one that ships with a lesson."""
    return run_id in _paths()


def exists(lesson_id: str) -> bool:
    """Whether the lesson ships Runs. Reads none of them."""
    return bool(roles(lesson_id))


def origin(run: Run) -> Origin:
    """Pure."""
    return Origin(run.header.device.name, run.header.device.threads, run.header.created_utc[:10])


@functools.lru_cache(maxsize=KEEP_LESSONS)
def experiment(lesson_id: str) -> str:
    """Fingerprint of the experiment that was recorded; its prompts were English ones."""
    return fingerprint([part.plain() for part in default_parts(lesson_id)])


@functools.lru_cache(maxsize=KEEP_LESSONS)
def experiments(lesson_id: str) -> frozenset[str]:
    """Fingerprints of the experiment that was recorded, asked for in either language."""
    return frozenset(fingerprint([part.plain() for part in default_parts(lesson_id, lang)]) for lang in LANGS)


@functools.cache
def listed() -> tuple[StoredRun, ...]:
    """Every recorded Run as a list shows it; its key is its run id. Reads the first line of each file only."""
    found = []
    for run_id, path in _paths().items():
        head = json.loads(_first_line(path))
        found.append(listed_run(head, run_id, path.parent.parent.name, role(path), str(head.get("created_utc", ""))))
    return tuple(found)


def _first_line(path: Path) -> str:
    with (gzip.open if path.suffix == ".gz" else Path.open)(path, "rt", encoding="utf-8") as lines:
        return lines.readline()


@functools.cache
def _paths() -> Mapping[str, Path]:
    """Run id -> file, from the first line of each file."""
    found: dict[str, Path] = {}
    for path in sorted(LESSONS_DIR.glob(f"*/{FOLDER}/*.jsonl*")):
        try:
            found[Header.model_validate_json(_first_line(path)).run_id] = path
        except (OSError, ValueError):
            continue
    return found
