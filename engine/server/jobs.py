"""The line in front of the device: what waits, in which order, for how long, and what is kept when it is over.

One first-in-first-out queue holds lab runs (each has the device to itself) and OpenAI requests (neighbours in the queue
are served as one group). This module decides admission, order, position, lease and cancel; it never touches the device,
knows no HTTP and imports no torch. Invariants: whatever enters leaves exactly once, and everything kept is bounded.
All methods may be called from any thread.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from engine.lab.scenario import Scenario
from engine.server.runs import LabRun

LEASE_S = 15.0
MAX_LAB_RUNS = 64
MAX_RUNS_PER_CLIENT = 2
MAX_GENERATIONS = 64
MAX_FINISHED_RUNS = 64
MAX_FINISHED_BYTES = 256 * 2**20

SHUTTING_DOWN = "the engine is shutting down; try again when it is back"


Full = Literal["queue_full", "own_runs", "shutting_down"]


class QueueFull(Exception):
    """No room in the line. The message is a sentence for the person who asked; ``code`` is the cause for a program."""

    def __init__(self, message: str, code: Full = "queue_full") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class GenerationSpec:
    """One OpenAI request in engine terms. The prompt is tokenized, so a bad one was refused before it queued."""

    prompt: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stop: tuple[str, ...]
    messages: None = None
    ignore_eos: bool = False


@dataclass(frozen=True)
class Delta:
    """New text of a generation. ``finish_reason`` is set on the last one."""

    text: str
    finish_reason: str | None
    num_prompt_tokens: int
    num_output_tokens: int


@dataclass(frozen=True)
class Failure:
    """A generation that ended without its answer: an HTTP status and one sentence."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None


@dataclass(eq=False)
class GenerationJob:
    """One OpenAI request on its way through the queue. ``deliver`` hands events to its HTTP handler's event loop."""

    spec: GenerationSpec
    deliver: Callable[[Delta | Failure], None]
    submitted_s: float = field(default_factory=time.perf_counter)
    first_token_s: float | None = None
    num_output_tokens: int = 0
    cancelled: bool = False

    def send(self, event: Delta | Failure) -> None:
        """Effect: pass an event on. A handler that is gone already is not an error."""
        try:
            self.deliver(event)
        except RuntimeError:  # its event loop is closed
            self.cancelled = True


Job = LabRun | GenerationJob


class JobQueue:
    """The one line of the engine. ``take`` and ``join`` are the worker's, the rest belongs to the HTTP handlers."""

    def __init__(self, instance: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.instance = instance
        self._clock = clock
        self._change = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._open_runs: dict[str, LabRun] = {}
        self._finished: OrderedDict[str, LabRun] = OrderedDict()
        self._open_generations: set[GenerationJob] = set()
        self._num_joined = 0  # generations on the device now
        self._next_number = secrets.randbelow(2**24)
        self._closed = False

    # -- asking -------------------------------------------------------------------------------------------------

    def submit_run(self, scenario: Scenario, client_id: str) -> LabRun:
        """Effect: append a lab run. Raises: QueueFull."""
        self.expire()
        with self._change:
            if self._closed:
                raise QueueFull(SHUTTING_DOWN, "shutting_down")
            mine = sum(run.client_id == client_id and not run.is_over for run in self._open_runs.values())
            if mine >= MAX_RUNS_PER_CLIENT:
                raise QueueFull(
                    f"you have {mine} runs waiting or running, the most allowed at once is {MAX_RUNS_PER_CLIENT}; "
                    "wait for one of them or cancel it",
                    "own_runs",
                )
            if len(self._open_runs) >= MAX_LAB_RUNS:
                raise QueueFull(
                    f"{len(self._open_runs)} runs are waiting or running, the most allowed is {MAX_LAB_RUNS}; "
                    "try again in a minute"
                )
            run = LabRun(self._new_run_id(), client_id, scenario, self._clock())
            self._open_runs[run.run_id] = run
            self._waiting.append(run)
            self._change.notify_all()
            return run

    def submit_generation(self, job: GenerationJob) -> None:
        """Effect: append an OpenAI request. Raises: QueueFull."""
        with self._change:
            if self._closed:
                raise QueueFull(SHUTTING_DOWN, "shutting_down")
            if len(self._open_generations) >= MAX_GENERATIONS:
                raise QueueFull(
                    f"{len(self._open_generations)} requests are waiting or running, the most allowed is "
                    f"{MAX_GENERATIONS}; try again in a few seconds"
                )
            self._open_generations.add(job)
            self._waiting.append(job)
            self._change.notify_all()

    def follow(self, run_id: str) -> LabRun | None:
        """The run of that id, or None if it is not kept. Effect: renews its lease."""
        with self._change:
            run = self._open_runs.get(run_id) or self._finished.get(run_id)
            if run is not None:
                run.last_followed_s = self._clock()
            return run

    def made_here(self, run_id: str) -> bool:
        """Whether this instance made that id (and has dropped it since, if it does not know it). Pure."""
        return run_id.startswith(f"run-{self.instance[:6]}")

    def position(self, run: LabRun) -> int:
        """Turns until it is this run's turn: 0 = on the device or over, 1 = next. A group of requests is one turn."""
        with self._change:
            turns, in_group = 1, self._num_joined > 0
            for job in self._waiting:
                if job is run:
                    return turns
                is_generation = isinstance(job, GenerationJob)
                turns += not (is_generation and in_group)
                in_group = is_generation
            return 0

    def cancel_run(self, run: LabRun, reason: str) -> bool:
        """Effect: end a queued or running run at once; the device stops between two steps. Idempotent."""
        with self._change:
            ended = run.end("cancelled", reason)
            if run in self._waiting:
                self._waiting.remove(run)
                self._keep(run)
            return ended

    def cancel_generation(self, job: GenerationJob) -> None:
        """Effect: a queued request leaves the line, one on the device is aborted before the next step. Idempotent."""
        with self._change:
            job.cancelled = True
            if job in self._waiting:
                self._waiting.remove(job)
                self._open_generations.discard(job)

    def expire(self) -> list[LabRun]:
        """Effect: cancel every run that nobody followed for LEASE_S seconds. Returns those."""
        now_s = self._clock()
        with self._change:
            stale = [run for run in self._open_runs.values() if now_s - run.last_followed_s > LEASE_S]
        reason = f"cancelled because nobody followed it for {LEASE_S:.0f} s"
        return [run for run in stale if self.cancel_run(run, reason)]

    # -- serving ------------------------------------------------------------------------------------------------

    def take(self, timeout_s: float) -> Job | None:
        """The job whose turn it is, or None after ``timeout_s`` without one. Effect: a run becomes running."""
        with self._change:
            self._change.wait_for(lambda: self._waiting or self._closed, timeout_s)
            if self._closed or not self._waiting:
                return None
            job = self._waiting.popleft()
            if isinstance(job, LabRun):
                job.begin()
            else:
                self._num_joined += 1
            return job

    def join(self) -> list[GenerationJob]:
        """The requests that may join the group on the device now: those before the first lab run in the line."""
        joined: list[GenerationJob] = []
        with self._change:
            while self._waiting and isinstance(self._waiting[0], GenerationJob):
                joined.append(self._waiting.popleft())
            self._num_joined += len(joined)
        return joined

    def retire(self, job: Job) -> None:
        """Effect: the worker is through with this job; the device is free for the next."""
        with self._change:
            if isinstance(job, LabRun):
                self._keep(job)
            else:
                self._open_generations.discard(job)
                self._num_joined -= 1

    def fail_waiting(self, reason: str) -> None:
        """Effect: everything that waits ends with ``reason``, because there is no engine to serve it."""
        with self._change:
            while self._waiting:
                job = self._waiting.popleft()
                if isinstance(job, LabRun):
                    job.end("failed", reason)
                    self._keep(job)
                else:
                    job.send(Failure(503, reason))
                    self._open_generations.discard(job)

    def close(self) -> None:
        """Effect: refuse newcomers, end everything that waits or runs, wake the worker. Idempotent."""
        with self._change:
            self._closed = True
            for run in list(self._open_runs.values()):
                self.cancel_run(run, SHUTTING_DOWN)
            for job in list(self._open_generations):
                job.send(Failure(503, SHUTTING_DOWN))
                self.cancel_generation(job)
            self._change.notify_all()

    def wait_closed(self, timeout_s: float | None) -> bool:
        """Sleep for ``timeout_s`` (None: for ever) or until the queue closes. True when it is closed."""
        with self._change:
            return self._change.wait_for(lambda: self._closed, timeout_s)

    @property
    def is_closed(self) -> bool:
        return self._closed

    def counts(self) -> dict[str, int]:
        """Numbers for the metrics page. Pure."""
        with self._change:
            waiting_runs = sum(isinstance(job, LabRun) for job in self._waiting)
            return {
                "runs_waiting": waiting_runs,
                "runs_running": sum(not run.is_over for run in self._open_runs.values()) - waiting_runs,
                "requests_waiting": len(self._waiting) - waiting_runs,
                "requests_running": self._num_joined,
            }

    def _keep(self, run: LabRun) -> None:
        self._open_runs.pop(run.run_id, None)
        self._finished[run.run_id] = run
        kept_bytes = sum(kept.num_kept_bytes for kept in self._finished.values())
        while len(self._finished) > 1 and (len(self._finished) > MAX_FINISHED_RUNS or kept_bytes > MAX_FINISHED_BYTES):
            _, dropped = self._finished.popitem(last=False)
            kept_bytes -= dropped.num_kept_bytes

    def _new_run_id(self) -> str:
        # The first half names the instance: a client whose run is unknown learns whether the engine was restarted.
        self._next_number = (self._next_number + 1) % 2**24
        return f"run-{self.instance[:6]}{self._next_number:06x}"
