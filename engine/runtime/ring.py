"""A ring of worker processes as one executor: to the engine a pass over them is a pass like any other.

It starts the workers, hands each step to all of them and puts what they did beside the step's record. It keeps no keys
and values (the workers do) and decides no order: one request at a time, its prompt in one pass. Invariant: after
``close`` no worker is left. Follows ring attention (Liu et al. 2023); ``ring_worker`` is what they do.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from engine.lab.records import Backend, RingStep, StepRecord, Work, WorkerInfo
from engine.lab.ring import fewest_tokens
from engine.lab.scenario import Ring, Scenario, ScenarioError
from engine.lab.work import ChunkShape, step_work
from engine.model.load import LoadedModel
from engine.runtime.ring_worker import Answer, Loaded, Prompt, Token, ring_main
from engine.runtime.sampling import SamplingParams, sample, seed_of
from engine.runtime.workers import Crew, WorkerModel, context
from engine.scheduling.decision import Chunk
from engine.scheduling.requests import Request

WAIT_S = 0.05
WARM_UP_TOKENS = 16


class RingExecutor:
    """Runs steps over ``ring.num_workers`` processes. Use ``close`` (or a ``with``) whatever happens."""

    backend: Backend = "eager"

    def __init__(
        self,
        loaded: LoadedModel,
        model: WorkerModel,
        ring: Ring,
        kv_bytes_per_element: float,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """``loaded`` says what the model is; the workers load their own. Raises: ModelError, WorkerDied."""
        self.loaded, self.ring = loaded, ring
        self.weight_bytes_per_element = loaded.weight_bytes_per_element
        self.kv_bytes_per_element = kv_bytes_per_element
        self._should_stop = should_stop
        self._threads = model.num_threads
        self._answers: list[Answer] = []
        self._folder = tempfile.TemporaryDirectory(prefix="ring-")
        meeting = str(Path(self._folder.name) / "meeting")
        n = ring.num_workers
        self._names = [f"ring {rank}" for rank in range(n)]
        try:
            self._crew = Crew(
                context(),
                {name: (ring_main, (model, i, n, ring.layout, meeting)) for i, name in enumerate(self._names)},
            )
        except BaseException:
            self._folder.cleanup()
            raise
        try:
            self._replies(Loaded)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RingExecutor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def pids(self) -> dict[str, int]:
        return self._crew.pids

    @property
    def workers(self) -> list[WorkerInfo]:
        """For the Run's header. Blocks are the whole ring's: a request's positions are spread over all workers."""
        return [WorkerInfo(name=name, threads=self._threads) for name in self._names]

    def close(self) -> None:
        """Effect: the workers are gone. Safe to repeat."""
        self._crew.close()
        self._folder.cleanup()

    # ---- the executor's calls ----------------------------------------------------------------------------------
    def prepare(self, chunks: Sequence[Chunk]) -> Chunk:
        """There is one request, so a step is one chunk. Pure."""
        assert len(chunks) == 1, "a ring computes one request at a time"
        return chunks[0]

    def forward(self, batch: Chunk) -> torch.Tensor:
        """Logits [1, V]. Effect: the workers keep the keys and values. Raises: WorkerDied."""
        message: Prompt | Token
        if batch.start == 0:
            assert batch.samples, "a ring computes a prompt in one pass"
            message = Prompt(batch.token_ids)
        else:
            message = Token(batch.token_ids[0], batch.start)
        return self._ask(message)

    def sample(self, logits: torch.Tensor, chunks: Sequence[Chunk]) -> list[int]:
        """One token for each chunk that samples. Pure."""
        request = chunks[0].request
        index = chunks[0].start + chunks[0].num_tokens - request.num_prompt_tokens
        seed = seed_of(0, request.request_id) if request.seed is None else request.seed
        return sample(logits, [SamplingParams(request.temperature, request.top_p, request.top_k, seed)], [index])

    def work(self, chunks: Sequence[Chunk]) -> Work:
        """What the model has to compute and move, all workers together and each thing once. Pure."""
        shapes = [ChunkShape(c.start, c.num_tokens, c.phase, c.samples) for c in chunks]
        return step_work(self.loaded.info, shapes, self.weight_bytes_per_element, self.kv_bytes_per_element)

    def release(self, request_id: str) -> None:
        """The next prompt takes the place of this one."""

    def warm_up(self) -> None:
        """Before a run: each kind of step once. Effect: the workers hold a prompt that the next one replaces."""
        self._ask(Prompt([0] * WARM_UP_TOKENS))
        self._ask(Token(0, WARM_UP_TOKENS))

    # ---- the workers -------------------------------------------------------------------------------------------
    def tell(self, record: StepRecord, origin_s: float) -> None:
        """Put what the workers did in the last step into its record. ``origin_s``: the clock's reading at time 0."""
        if not record.scheduled:
            return
        spans = [
            span.model_copy(update={"t_begin_s": span.t_begin_s - origin_s, "t_end_s": span.t_end_s - origin_s})
            for answer in self._answers
            for span in answer.spans
        ]
        record.ring = RingStep(
            positions=[answer.positions for answer in self._answers],
            kv_bytes=[answer.kv_bytes for answer in self._answers],
            buffer_bytes=[answer.buffer_bytes for answer in self._answers],
            sent_bytes=[answer.sent_bytes for answer in self._answers],
            pairs=[answer.pairs for answer in self._answers],
            spans=sorted(spans, key=lambda span: span.t_begin_s),
        )

    def _ask(self, message: object) -> torch.Tensor:
        for name in self._names:
            self._crew.send(name, message)
        self._answers = self._replies(Answer)
        logits = next(answer.logits for answer in reversed(self._answers) if answer.logits is not None)
        return logits[None]

    def _replies(self, kind: type[Any]) -> list[Any]:
        """One message of each worker, in order of rank. Raises: WorkerDied."""
        found: dict[str, Any] = {}
        while len(found) < len(self._names):
            if self._should_stop():
                raise RingStopped
            for name, message in self._crew.receive(WAIT_S):
                assert isinstance(message, kind), "a worker answers what it was asked"
                found[name] = message
        return [found[name] for name in self._names]


class RingStopped(Exception):
    """The run was stopped while the workers computed; they are ended with it."""


def require_ring_fits(scenario: Scenario, requests: Sequence[Request]) -> None:
    """Raises: ScenarioError for a prompt that a ring cannot divide or cannot compute in one pass."""
    ring, budget = scenario.ring, scenario.limits.max_batch_tokens
    assert ring is not None
    if ring.num_workers > 1 and not (dist.is_available() and dist.is_gloo_available()):
        raise ScenarioError(
            f"ring.num_workers is {ring.num_workers}, and this torch was built without gloo; set it to 1, or install a "
            "torch that has torch.distributed",
            "ring.num_workers",
        )
    fewest = fewest_tokens(ring.num_workers, ring.layout)
    for request in requests:
        if request.num_prompt_tokens < fewest:
            raise ScenarioError(
                f"request {request.request_id} has {request.num_prompt_tokens} prompt tokens; a {ring.layout} ring of "
                f"{ring.num_workers} workers needs {fewest} or more",
                "ring.num_workers",
            )
        if request.num_prompt_tokens > budget:
            raise ScenarioError(
                f"request {request.request_id} has {request.num_prompt_tokens} prompt tokens and a ring computes a "
                f"prompt in one pass; limits.max_batch_tokens is {budget}, so raise it",
                "limits.max_batch_tokens",
            )


def clock_origin_s(now_s: float) -> float:
    """What the machine's clock read at time 0 of a run in which it is now ``now_s``. Pure but for the clock."""
    return time.perf_counter() - now_s
