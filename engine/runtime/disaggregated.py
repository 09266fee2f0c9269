"""A disaggregated run: two engine processes, one for prompts and one for decoding, on half of everything each.

It starts them, tells them when time 0 is, collects their records and makes one Run of them
(``engine.runtime.merging``). It computes nothing itself, and it knows no more of a request than the records say.
Invariant: when ``run`` returns or raises, both processes are gone. Follows DistServe (Zhong et al. 2024);
``disaggregated_worker`` is what they do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.lab.records import RequestRecord, StepRecord, WorkerInfo
from engine.lab.scenario import Scenario, ScenarioError
from engine.runtime.disaggregated_worker import Abort, Begin, Ready, decode_main, prefill_main
from engine.runtime.merging import Ledger, in_order, own_blocks, request_records
from engine.runtime.workers import Crew, WorkerModel, context
from engine.scheduling.handover import positions_needed, split_blocks
from engine.scheduling.requests import Request

PREFILL, DECODE = "prefill", "decode"
START_S = 0.02  # time 0 lies this far ahead, so that both workers know of it when it comes
WAIT_S = 0.05
LOADING_LIMIT_S = 300.0


@dataclass(frozen=True)
class SplitResult:
    """What two workers did, as the records of one Run."""

    steps: list[StepRecord]
    requests: list[RequestRecord]
    workers: list[WorkerInfo]


@dataclass
class DisaggregatedRun:
    """One run. ``abort`` may be called from ``on_step``; ``pids`` are those of the workers while it runs."""

    scenario: Scenario
    model: WorkerModel  # ``num_threads`` is for each worker
    requests: Callable[[], list[Request]]  # new ones at every call
    pids: dict[str, int] = field(default_factory=dict)
    _crew: Crew | None = None

    def run(
        self,
        on_step: Callable[[StepRecord], None] = lambda record: None,
        should_stop: Callable[[], bool] = lambda: False,
        on_ready: Callable[[], None] = lambda: None,
    ) -> SplitResult | None:
        """Run it to its end; None if ``should_stop`` ended it. ``on_step`` gets records as they come in.

        Raises: ScenarioError, ModelError, WorkerDied. Effect: two processes are started, and are gone afterwards.
        """
        requests, workers = self.requests(), self._workers()
        require_fits(requests, workers, self.scenario.block_size)
        with self._start(workers) as crew:
            self._crew, self.pids = crew, crew.pids
            try:
                if not _all_ready(crew, len(workers), should_stop):
                    return None
                on_ready()
                records = _collect(crew, workers, requests, on_step, should_stop)
            finally:
                self._crew = None
        if records is None:
            return None
        steps = in_order(records, requests, workers)
        return SplitResult(steps, request_records(requests, steps), workers)

    def abort(self, request_id: str) -> None:
        """End a request wherever it is, on its way between the workers too. Effect: soon, and told by a record."""
        assert self._crew is not None, "nothing runs"
        for name in (PREFILL, DECODE):
            self._crew.send(name, Abort(request_id))

    def _workers(self) -> list[WorkerInfo]:
        first, second = split_blocks(self.scenario.limits.num_blocks)
        threads = self.model.num_threads
        return [
            WorkerInfo(name=PREFILL, threads=threads, first_block=0, num_blocks=first),
            WorkerInfo(name=DECODE, threads=threads, first_block=first, num_blocks=second),
        ]

    def _start(self, workers: Sequence[WorkerInfo]) -> Crew:
        scenario, ctx = self.scenario, context()
        receiving, sending = ctx.Pipe(duplex=False)
        prefill, decode = (scenario.limits.model_copy(update={"num_blocks": worker.num_blocks}) for worker in workers)
        asked = list(zip(self.requests(), scenario.requests, strict=True))
        assert scenario.disaggregated is not None
        pace = scenario.disaggregated.link_mb_per_s
        size = scenario.block_size
        crew = Crew(
            ctx,
            {
                PREFILL: (prefill_main, (sending, self.model, prefill, size, asked, pace)),
                DECODE: (decode_main, (receiving, self.model, decode, size, asked)),
            },
        )
        receiving.close()  # ours; theirs stay open, so that either notices when the other is gone
        sending.close()
        return crew


def require_fits(requests: Sequence[Request], workers: Sequence[WorkerInfo], block_size: int) -> None:
    """Raises: ScenarioError, before any process is started, for a request that one of the sides could never hold."""
    for request in requests:
        needed = positions_needed(request.num_prompt_tokens, request.max_tokens)
        for worker, num_positions in zip(workers, needed, strict=True):
            if num_positions > worker.num_blocks * block_size:
                num_blocks = 2 * -(-max(needed) // block_size)
                raise ScenarioError(
                    f"request {request.request_id} needs {num_positions} positions on the {worker.name} worker, whose "
                    f"{worker.num_blocks} KV blocks of {block_size} hold {worker.num_blocks * block_size}; each worker "
                    f"has half of limits.num_blocks, so raise it to {num_blocks} or shorten the request",
                    "limits.num_blocks",
                )


def _all_ready(crew: Crew, num_workers: int, should_stop: Callable[[], bool]) -> bool:
    """Wait until all have loaded, then tell them time 0. False when ``should_stop`` says so. Raises: WorkerDied."""
    num_ready, end_s = 0, time.monotonic() + LOADING_LIMIT_S
    while num_ready < num_workers:
        if should_stop():
            return False
        if time.monotonic() > end_s:
            raise ScenarioError(f"the workers were not ready after {LOADING_LIMIT_S:.0f} s; try a smaller model")
        num_ready += sum(isinstance(message, Ready) for _, message in crew.receive(WAIT_S))
    begin = Begin(time.perf_counter() + START_S)
    for name in (PREFILL, DECODE):
        crew.send(name, begin)
    return True


def _collect(
    crew: Crew,
    workers: Sequence[WorkerInfo],
    requests: Sequence[Request],
    on_step: Callable[[StepRecord], None],
    should_stop: Callable[[], bool],
) -> list[StepRecord] | None:
    """The workers' records until everybody is served and every block is back. None when ``should_stop`` says so."""
    by_name: Mapping[str, WorkerInfo] = {worker.name: worker for worker in workers}
    ledger, records = Ledger(requests, workers), []
    while not ledger.is_over:
        if should_stop():
            return None
        for name, message in crew.receive(WAIT_S):
            assert isinstance(message, StepRecord), "a worker that runs tells steps"
            record = own_blocks(message, by_name[name])
            records.append(record)
            on_step(ledger.restate(record))
    return records
