"""What the store hands back, and how a Run is packed into a row. Plain data; nothing here touches a database."""

from __future__ import annotations

import functools
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.lab.records import Run, RunFileError

KEEP_UNPACKED = 32


@dataclass(frozen=True)
class StoredPrediction:
    """``answer`` and ``run_id`` are None until a run has answered it."""

    prediction_id: str
    attempt: int
    value: float | str
    locked_utc: str
    run_id: str | None = None
    answer: float | str | None = None


@dataclass(frozen=True)
class StoredAnswer:
    lesson_id: str
    item_id: str
    attempt: int
    value: Any
    score: float
    created_utc: str


@dataclass(frozen=True)
class RunTexts:
    """What the requests of a run said, and the pieces it was said in (one per token; may be empty)."""

    texts: dict[str, str] = field(default_factory=dict)
    pieces: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class LessonProgress:
    """Counts of distinct predictions and items, not of attempts. ``num_items_correct`` counts a best score of 1."""

    lesson_id: str
    num_predictions: int = 0
    num_runs: int = 0
    num_items_answered: int = 0
    num_items_correct: int = 0
    last_utc: str = ""


def run_role(run: Run, lesson_id: str) -> str:
    """The role of a run that was saved without one: ``run``, or the policy in the lesson that compares two."""
    return str(run.header.scenario.get("policy", "run")) if lesson_id == "batching" else "run"


def experiment_of(scenarios: Sequence[Mapping[str, Any]]) -> str:
    """A fingerprint of all the scenarios of one experiment, names aside: Runs that share it belong together. Pure."""
    asked = [{k: v for k, v in scenario.items() if k != "name"} for scenario in scenarios]
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:24]


def workload_of(run: Run) -> str:
    """A fingerprint of what was asked for, policy and names aside, so that only like is set beside like. Pure."""
    asked = {k: v for k, v in run.header.scenario.items() if k not in ("policy", "name")}
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:24]


@dataclass(frozen=True)
class StoredRun:
    """A stored Run as a list shows it: enough to choose it by, without reading its steps."""

    key: str
    run_id: str
    lesson_id: str
    role: str
    created_utc: str
    policy: str
    model: str
    device: str
    num_requests: int


def listed_run(head: Mapping[str, Any], key: str, lesson_id: str, role: str, created_utc: str) -> StoredRun:
    """The line of a Run in a list, from its header record. Pure."""
    scenario = head.get("scenario") or {}
    return StoredRun(
        key=key,
        run_id=str(head.get("run_id", "")),
        lesson_id=lesson_id,
        role=role,
        created_utc=created_utc,
        policy=str(scenario.get("policy", "")),
        model=str((head.get("model") or {}).get("name", "")),
        device=str((head.get("device") or {}).get("name", "")),
        num_requests=len(scenario.get("requests") or ()),
    )


def import_key(run: Run, learner: str) -> str:
    """The key of an imported Run: a file may be imported by many learners, and changed under its old run id. Pure."""
    content = hashlib.sha256(f"{learner}\n{run.to_jsonl()}".encode()).hexdigest()[:16]
    return f"{run.run_id}:{content}"


def unpack_head(packed: bytes) -> dict[str, Any] | None:
    """The header record of a packed Run, without the rest; None when it can no longer be read. Pure."""
    unpacking, text = zlib.decompressobj(), b""
    try:
        while b"\n" not in text and not unpacking.eof:
            text += unpacking.decompress(unpacking.unconsumed_tail or (packed if not text else b""), 65_536)
        head = json.loads(text.split(b"\n")[0])
    except (zlib.error, ValueError):
        return None
    return head if isinstance(head, dict) else None


def pack_run(run: Run) -> bytes:
    """The Run file, compressed. Pure."""
    return zlib.compress(run.to_jsonl().encode("utf-8"))


@functools.lru_cache(maxsize=KEEP_UNPACKED)  # a page asks for its Runs at every rerun; nobody writes to a Run
def unpack_run(packed: bytes | None) -> Run | None:
    """None when there is nothing, or it can no longer be read. Pure."""
    try:
        return Run.from_jsonl(zlib.decompress(packed).decode("utf-8")) if packed is not None else None
    except (zlib.error, UnicodeDecodeError, RunFileError):
        return None


def pack_texts(spoken: RunTexts) -> bytes:
    """Pure."""
    return zlib.compress(json.dumps({"texts": spoken.texts, "pieces": spoken.pieces}).encode("utf-8"))


def unpack_texts(packed: bytes | None) -> RunTexts:
    """Empty when there is nothing, or it can no longer be read. Pure."""
    try:
        return RunTexts(**json.loads(zlib.decompress(packed))) if packed is not None else RunTexts()
    except (zlib.error, ValueError, TypeError):
        return RunTexts()
