"""The engine: one step is ``decide -> forward -> commit -> record``, and every step leaves one record.

The scheduler decides what runs, the executor runs it, the engine joins them: it feeds new tokens to each request's
text, knows when a request ends, keeps the clock and writes the records of ``engine.lab.records``. It knows no HTTP and
no tensor: it imports no torch, and an executor that fakes the model is as good as a real one. Its invariant: what
happened between two records, an abort above all, is told by the later one, so replaying the records gives the state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.lab.records import Backend, FinishReason, Output, RequestRecord, StepRecord, Work
from engine.lab.scenario import Limits, Speculation
from engine.runtime.recording import Laps, request_record, step_record
from engine.scheduling.decision import Chunk, Decision
from engine.scheduling.policies import POLICIES
from engine.scheduling.policies.base import Policy
from engine.scheduling.requests import Request
from engine.scheduling.scheduler import NewToken, Scheduler


class Executor(Protocol):
    """What runs the model. The three calls of a step come in this order, once each, with nothing in between."""

    backend: Backend

    def prepare(self, chunks: Sequence[Chunk]) -> Any:
        """Turn the chunks into a batch. Pure towards the scheduler's state."""

    def forward(self, batch: Any) -> Any:
        """One forward pass. Effect: stores K and V of every chunk but padding. Returns logits of the sampling rows."""

    def sample(self, logits: Any, chunks: Sequence[Chunk]) -> Sequence[int]:
        """One token for each chunk with ``samples``, in order. Returns when the device has finished."""

    def work(self, chunks: Sequence[Chunk]) -> Work:
        """What the step had to do, from shapes alone. Pure."""

    def release(self, request_id: str) -> None:
        """Forget what is kept for sampling a request. Effect: none if there is nothing."""


class TextStream(Protocol):
    """The text of one request, as its tokens come in."""

    stopped: bool  # a stop string has matched
    text: str

    def push(self, token_id: int) -> str:
        """The text that can now be shown: never half a character, never what may yet become a stop string."""

    def finish(self) -> str:
        """What was held back, at the end of the request."""


@dataclass(frozen=True, slots=True)
class _Reader:
    """How one request's tokens are read: into which text, and which of them end it."""

    text: TextStream | None
    eos_token_ids: frozenset[int]


class Engine:
    """Serves requests with one policy on one executor. Time 0 is when it was made, or the call of ``start_clock``."""

    def __init__(
        self,
        executor: Executor,
        policy: str,
        limits: Limits,
        block_size: int,
        clock: Callable[[], float] = time.perf_counter,
        namespace: str = "",
        speculation: Speculation | None = None,
        policies: Mapping[str, type[Policy]] = POLICIES,
    ) -> None:
        """``namespace``: whose keys and values these are (model and KV dtype), for the prefix cache.

        Raises: ScenarioError for a policy this engine does not have or limits it cannot work under.
        """
        self.executor = executor
        self.policy = policy
        self.scheduler = Scheduler(policy, limits, block_size, namespace, speculation, policies)
        self.text_deltas: dict[str, str] = {}  # what the last step made printable, by request_id
        self._clock = clock
        self._origin_s = clock()
        self._num_steps = 0
        self._readers: dict[str, _Reader] = {}
        self._untold: list[Output] = []  # requests aborted since the last record

    # ---- requests come and go ----------------------------------------------------------------------------------

    def add(
        self, request: Request, text: TextStream | None = None, eos_token_ids: frozenset[int] = frozenset()
    ) -> None:
        """Take a request, to be served from its ``arrival_s`` on. Raises: ScenarioError if it can never be."""
        self.scheduler.add(request)
        self._readers[request.request_id] = _Reader(text, eos_token_ids)

    def abort(self, request_id: str) -> bool:
        """End a request in whatever state it is; safe to repeat. Effect: its blocks are free when this returns.

        The next ``step`` tells it; if nothing is left to compute, that step is a closing record with an empty batch.
        Returns whether anything changed.
        """
        request = self.scheduler.requests.get(request_id)
        was_finished = request is None or request.is_finished
        changed = self.scheduler.abort(request_id, self.now_s())
        if not was_finished:
            self._untold.append(Output(request_id=request_id, token_id=None, finish_reason="abort"))
            self.executor.release(request_id)
        return changed

    def forget_finished(self) -> list[RequestRecord]:
        """The records of requests that are over and hold nothing. Effect: the engine no longer knows them."""
        done = [r for r in self.scheduler.requests.values() if r.is_finished and not r.block_ids]
        for request in done:
            self.scheduler.forget(request.request_id)
            del self._readers[request.request_id]
        return [request_record(request) for request in done]

    def request_records(self) -> list[RequestRecord]:
        """One record for each request not forgotten, in the order they were added. Pure."""
        return [request_record(request) for request in self.scheduler.requests.values()]

    @property
    def has_work(self) -> bool:
        """Whether a ``step``, now or after ``next_arrival_s``, has anything to do or to tell."""
        return self.scheduler.has_unfinished or self._has_untold

    @property
    def next_arrival_s(self) -> float | None:
        """When the next request that has not arrived will. When ``step`` returned None, nothing happens before."""
        return self.scheduler.next_arrival_s

    @property
    def _has_untold(self) -> bool:
        return bool(self._untold) or self.scheduler.pool.has_events

    # ---- the clock ---------------------------------------------------------------------------------------------

    def start_clock(self, origin_s: float | None = None) -> None:
        """Effect: time 0 is now. For a run that prepares and warms up first; arrivals count from here.

        ``origin_s``: time 0 is that reading of the clock, for engines that share one.
        """
        assert self._num_steps == 0, "the clock of a run starts before its first step"
        self._origin_s = self._clock() if origin_s is None else origin_s

    def now_s(self) -> float:
        return self._clock() - self._origin_s

    # ---- the step ----------------------------------------------------------------------------------------------

    def step(self) -> StepRecord | None:
        """One forward pass over whatever the policy chose. None when nothing can run now and nothing is untold.

        Raises: whatever the executor raises. Nothing has been committed then: every request can still be aborted and
        gives its blocks back, but the Run ends here, because what the failed step admitted has no record.
        """
        laps = Laps(self.now_s)
        decision = self.scheduler.decide(laps.begin_s)
        chunks = self.scheduler.chunks(decision)
        if not chunks and not self._has_untold:
            return None
        laps.lap("schedule")
        token_ids = self._forward(chunks, laps)
        produced = self._commit(chunks, token_ids)
        laps.lap("commit")
        return self._record(decision, chunks, produced, laps)

    def _forward(self, chunks: Sequence[Chunk], laps: Laps) -> Sequence[int]:
        if not chunks:
            return []
        batch = self.executor.prepare(chunks)
        laps.lap("prepare")
        logits = self.executor.forward(batch)
        laps.lap("forward")
        token_ids = self.executor.sample(logits, chunks)
        laps.lap("sample")
        return token_ids

    def _commit(self, chunks: Sequence[Chunk], token_ids: Sequence[int]) -> list[NewToken]:
        """Effect: counters advance, texts grow, finished requests leave. Returns the tokens that requests got."""
        self.text_deltas = {}
        produced = self.scheduler.commit(chunks, token_ids, self._read)
        for new in produced:
            if new.finish_reason is not None:
                self.executor.release(new.request.request_id)
        return produced

    def _read(self, request: Request, token_id: int) -> FinishReason | None:
        """Put a new token into its request's text and say whether, and why, the request ends with it.

        An end-of-sequence token ends the text without being part of it, but it is one of the output tokens.
        """
        reader = self._readers[request.request_id]
        reason: FinishReason | None = None
        delta = ""
        if token_id in reader.eos_token_ids and not request.ignore_eos:
            reason = "stop"
        elif reader.text is not None:
            delta = reader.text.push(token_id)
            reason = "stop" if reader.text.stopped else None
        if reason is None and request.num_output_tokens >= request.max_tokens:
            reason = "length"
        if reason is not None and reader.text is not None and not reader.text.stopped:
            delta += reader.text.finish()
        if delta:
            self.text_deltas[request.request_id] = self.text_deltas.get(request.request_id, "") + delta
        return reason

    def _record(
        self, decision: Decision, chunks: Sequence[Chunk], produced: Sequence[NewToken], laps: Laps
    ) -> StepRecord:
        """Tell the step to everybody else. Effect: stamps the times of tokens; what was untold is told.

        A token's time is ``t_end_s`` of its step, so the request records can be derived from the step records.
        """
        outputs = self._untold
        for request, token_id, finish_reason in produced:
            request.first_token_s = laps.end_s if request.first_token_s is None else request.first_token_s
            request.completion_s = laps.end_s if finish_reason is not None else request.completion_s
            outputs.append(Output(request_id=request.request_id, token_id=token_id, finish_reason=finish_reason))
        work = self.executor.work(chunks) if chunks else Work()
        record = step_record(
            self._num_steps, self.scheduler, self.executor.backend, decision, chunks, outputs, laps, work
        )
        self._untold = []
        self._num_steps += 1
        return record
