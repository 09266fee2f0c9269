"""One Run from the records of two engine processes: one order, one set of block ids, one count of who waits and runs.

Each worker tells its own steps with its own numbers. Here they are put in the order in which they began, numbered anew,
and what a record says of the whole system (queues, blocks) is derived by carrying the records out. Nothing is invented:
times, rows, tokens, events and transfers are the workers' own. It imports no torch. Invariant: what the merged records
imply of a request is what its two workers did to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.lab.records import Blocks, Queues, RequestRecord, StepRecord, WorkerInfo
from engine.lab.replay import BlockMap
from engine.scheduling.requests import Request


class Ledger:
    """Carries merged records out, in order, and fills in what they say of the whole system."""

    def __init__(self, requests: Sequence[Request], workers: Sequence[WorkerInfo]) -> None:
        self._arrivals = {request.request_id: request.arrival_s for request in requests}
        self._states = dict.fromkeys(self._arrivals, "waiting")
        self._blocks = BlockMap(sum(worker.num_blocks for worker in workers))
        self._num_steps = 0

    @property
    def is_over(self) -> bool:
        """Whether every request is finished and every block given back."""
        return not self._blocks.users and all(state == "finished" for state in self._states.values())

    def restate(self, record: StepRecord) -> StepRecord:
        """The record with its number, queues and blocks in the whole system. Effect: the ledger advances."""
        for transfer in record.received:
            self._states[transfer.request_id] = "waiting"  # now on the decode side
        for request_id in record.preempted:
            self._states[request_id] = "waiting"
        for request_id in record.admitted:
            self._states[request_id] = "running"
        for output in record.outputs:
            if output.finish_reason is not None:
                self._states[output.request_id] = "finished"
        for event in record.block_events:
            self._blocks.apply(event)
        number, self._num_steps = self._num_steps, self._num_steps + 1
        return record.model_copy(
            update={"step": number, "queues": self._queues(record.t_begin_s), "blocks": self._counts()}
        )

    def _queues(self, t_begin_s: float) -> Queues:
        states = list(self._states.values())
        waiting = sum(s == "waiting" and self._arrivals[r] <= t_begin_s for r, s in self._states.items())
        return Queues(waiting=waiting, running=states.count("running"), finished=states.count("finished"))

    def _counts(self) -> Blocks:
        return self._blocks.counts()


def own_blocks(record: StepRecord, worker: WorkerInfo) -> StepRecord:
    """The record of a worker with its name, and its blocks under their ids in the whole system. Pure."""
    events = [
        event.model_copy(update={"block_id": event.block_id + worker.first_block}) for event in record.block_events
    ]
    return record.model_copy(update={"worker": worker.name, "block_events": events})


def in_order(
    records: Sequence[StepRecord], requests: Sequence[Request], workers: Sequence[WorkerInfo]
) -> list[StepRecord]:
    """The records in the order in which their steps began, restated. Pure.

    A request reaches its second worker only after the step that computed it has ended, so this order never tells an
    effect before its cause.
    """
    ledger = Ledger(requests, workers)
    return [ledger.restate(record) for record in sorted(records, key=lambda record: record.t_begin_s)]


def request_records(requests: Sequence[Request], steps: Sequence[StepRecord]) -> list[RequestRecord]:
    """What the steps say of each request. Pure."""
    found = {r.request_id: RequestRecord(
        request_id=r.request_id, num_prompt_tokens=r.num_prompt_tokens, num_output_tokens=0, arrival_s=r.arrival_s,
        first_scheduled_s=None, first_token_s=None, completion_s=None, num_preemptions=0, num_cached_tokens=0,
        finish_reason=None, output_token_ids=[],
    ) for r in requests}  # fmt: skip
    for step in steps:
        for row in step.scheduled:
            record = found[row.request_id]
            if record.first_scheduled_s is None:
                record.first_scheduled_s = step.t_begin_s
        for request_id in step.preempted:
            found[request_id].num_preemptions += 1
        _take_outputs(step, found)
    return list(found.values())


def _take_outputs(step: StepRecord, found: Mapping[str, RequestRecord]) -> None:
    for output in step.outputs:
        record = found[output.request_id]
        if output.token_id is not None:
            record.output_token_ids.append(output.token_id)
            record.num_output_tokens += 1
            record.first_token_s = step.t_end_s if record.first_token_s is None else record.first_token_s
        if output.finish_reason is not None:
            record.finish_reason = output.finish_reason
            latest = [record.arrival_s, record.first_token_s or 0.0, step.t_begin_s]
            record.completion_s = step.t_end_s if output.token_id is not None else max(latest)
