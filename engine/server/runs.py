"""One lab run on its way: queued, running, then exactly one of done, failed, cancelled.

The worker writes to it, any number of followers read snapshots from other threads. It decides nothing about order or
lease (``engine.server.jobs`` does), never touches the device and imports no torch. While a run goes on its steps are
kept as records; when it is over they are kept as the compressed Run file, from which later snapshots are read.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from engine.lab.records import Run, StepRecord
from engine.lab.scenario import Scenario

RunState = Literal["queued", "running", "done", "failed", "cancelled"]


class RunResult(Protocol):
    """What the runtime returns for a finished run (``engine.runtime.lab``)."""

    run: Run
    texts: Mapping[str, str]
    pieces: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Snapshot:
    """What a follower sees of a run at one moment. ``steps`` are JSON texts of the records [since, num_steps)."""

    run_id: str
    state: RunState
    error: str | None
    num_steps: int
    num_tokens: int
    total_tokens: int
    steps: list[str]
    texts: dict[str, str]
    stage: str


class LabRun:
    """One submitted scenario from the queue to its end. The worker writes to it, followers read snapshots."""

    def __init__(self, run_id: str, client_id: str, scenario: Scenario, now_s: float) -> None:
        self.run_id = run_id
        self.client_id = client_id
        self.scenario = scenario
        self.last_followed_s = now_s
        self.total_tokens = sum(request.max_tokens for request in scenario.requests)
        self._lock = threading.Lock()
        self._state: RunState = "queued"
        self._error: str | None = None
        self._stage = ""
        self._steps: list[StepRecord] = []
        self._texts: dict[str, list[str]] = {request_id: [] for request_id in scenario.request_ids()}
        self._num_steps = 0
        self._num_tokens = 0
        self._packed_run = b""  # the Run file of a finished run, or its steps after an empty first line
        self._packed_texts = b""

    @property
    def state(self) -> RunState:
        return self._state

    @property
    def is_over(self) -> bool:
        return self._state in ("done", "failed", "cancelled")

    @property
    def num_kept_bytes(self) -> int:
        return len(self._packed_run) + len(self._packed_texts)

    def should_stop(self) -> bool:
        """Asked by the runtime between steps. Pure."""
        return self.is_over

    def begin(self) -> None:
        """Effect: queued -> running. No effect on a run that is over."""
        with self._lock:
            if self._state == "queued":
                self._state = "running"

    def set_stage(self, message: str) -> None:
        """Effect: remember what the runtime is doing before the first step (loading another model, warming up)."""
        self._stage = message

    def on_step(self, record: StepRecord | None, deltas: Mapping[str, str]) -> None:
        """Effect: append one step and the text it made; a text without a step came from another server.

        Ignored once the run is over.
        """
        with self._lock:
            if self.is_over:
                return
            if record is None:
                self._num_tokens += len(deltas)
            else:
                self._steps.append(record)
                self._num_steps += 1
                self._num_tokens += sum(output.token_id is not None for output in record.outputs)
            for request_id, text in deltas.items():
                self._texts.setdefault(request_id, []).append(text)

    def complete(self, result: RunResult) -> bool:
        """Effect: -> done, with the Run file kept compressed. False when the run was over already (cancelled)."""
        if self.is_over:
            return False
        packed_run = zlib.compress(result.run.to_jsonl().encode("utf-8"), level=1)
        texts = {"texts": dict(result.texts), "pieces": {k: list(v) for k, v in result.pieces.items()}}
        packed_texts = zlib.compress(_json(texts).encode("utf-8", "replace"), level=1)
        with self._lock:
            if self.is_over:
                return False
            self._packed_run, self._packed_texts = packed_run, packed_texts
            self._num_steps = len(result.run.steps)
            self._num_tokens = sum(request.num_output_tokens for request in result.run.requests)
            self._texts = {request_id: [text] for request_id, text in result.texts.items()}
            self._steps = []
            self._state = "done"
            return True

    def end(self, state: Literal["failed", "cancelled"], reason: str) -> bool:
        """Effect: -> ``state`` with its reason. False when the run was over already: the first end stands."""
        with self._lock:
            if self.is_over:
                return False
            self._state, self._error = state, reason
            return True

    def pack(self) -> None:
        """Effect: compress the steps of a run that ended early. The worker calls it when the device is free again."""
        with self._lock:
            steps, self._steps = self._steps, []
            if steps:
                lines = "".join("\n" + record.model_dump_json(by_alias=True) for record in steps)
                self._packed_run = zlib.compress(lines.encode("utf-8"), level=1)

    def snapshot(self, since: int = 0) -> Snapshot:
        """What stands now, with the step records from ``since`` on. Pure (the lease is the queue's business)."""
        with self._lock:
            live = self._steps[since:]
            snapshot = Snapshot(
                run_id=self.run_id,
                state=self._state,
                error=self._error,
                num_steps=self._num_steps,
                num_tokens=self._num_tokens,
                total_tokens=self.total_tokens,
                steps=[],
                texts={request_id: "".join(parts) for request_id, parts in self._texts.items()},
                stage=self._stage,
            )
        # Serialising happens outside the lock, so that a slow follower never holds up the worker between two steps.
        if snapshot.state != "queued" and since < snapshot.num_steps:
            if live:
                snapshot.steps.extend(record.model_dump_json(by_alias=True) for record in live)
            elif self._packed_run:
                lines = zlib.decompress(self._packed_run).decode("utf-8").split("\n")
                snapshot.steps.extend(lines[1 + since : 1 + snapshot.num_steps])
        return snapshot

    def run_file(self) -> bytes | None:
        """The Run file of a run that is done, else None. Pure."""
        return zlib.decompress(self._packed_run) if self._state == "done" else None

    def texts_json(self) -> bytes | None:
        """``{"texts": ..., "pieces": ...}`` of a run that is done, else None. Pure."""
        return zlib.decompress(self._packed_texts) if self._state == "done" else None


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
