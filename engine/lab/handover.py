"""What the records say of a disaggregated Run: the four intervals of a request, what was sent, who stood in whose way.

Pure functions of Runs; a Run of one engine process has no transfer, and two of the four intervals are then one moment.
The intervals are DistServe's: waiting for prefill, prefill, waiting for decode (with the transfer in it), decode.
Invariant: the four of a request add up to its end-to-end time.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.lab.records import Header, Run, StepRecord, Transfer
from engine.lab.work import element_sizes


@dataclass(frozen=True)
class Intervals:
    """Where the time of a request went, as moments in seconds. ``transfer`` is None where nothing was sent.

    [arrival_s, prefill_s) waiting for prefill; [prefill_s, first_token_s) prefill; [first_token_s, decode_s) transfer
    and waiting for decode; [decode_s, completion_s) decode.
    """

    request_id: str
    arrival_s: float
    prefill_s: float
    first_token_s: float
    decode_s: float
    completion_s: float
    transfer: Transfer | None

    @property
    def parts_s(self) -> tuple[float, float, float, float]:
        """Lengths of the four intervals, in order."""
        return (
            self.prefill_s - self.arrival_s,
            self.first_token_s - self.prefill_s,
            self.decode_s - self.first_token_s,
            self.completion_s - self.decode_s,
        )


def block_bytes(header: Header) -> int:
    """Bytes of one block in all layers: 2 (K and V) x layers x block size x KV heads x head_dim x element. Pure."""
    model, kv_size = header.model, element_sizes(header)[1]
    return round(2 * model.num_layers * header.block_size * model.num_kv_heads * model.head_dim * kv_size)


def transfers(run: Run) -> list[Transfer]:
    """Everything that was sent, in the order in which it was received. Pure."""
    return [transfer for step in run.steps for transfer in step.received]


def intervals(run: Run) -> list[Intervals]:
    """The four intervals of each request that was served to its end. Pure."""
    sent = {transfer.request_id: transfer for transfer in transfers(run)}
    found = []
    for record in run.requests:
        first, token, done = record.first_scheduled_s, record.first_token_s, record.completion_s
        if first is None or token is None or done is None or record.finish_reason == "abort":
            continue
        decodes = (s.t_begin_s for s in run.steps if s.t_begin_s >= token - 1e-9 and _decodes(s, record.request_id))
        decode_s = min(decodes, default=done)
        transfer = sent.get(record.request_id)
        found.append(Intervals(record.request_id, record.arrival_s, first, token, decode_s, done, transfer))
    return found


def _decodes(step: StepRecord, request_id: str) -> bool:
    return any(row.request_id == request_id and row.phase != "prefill" for row in step.scheduled)


def stalled_steps(run: Run) -> dict[str, int]:
    """For each request: in how many of its decode steps prompt tokens of others were computed in the same pass. Pure.

    A pass is as long as everything in it, so each of them made the request's next token wait for somebody's prompt.
    """
    counts = {record.request_id: 0 for record in run.requests}
    for step in run.steps:
        if not any(row.phase in ("prefill", "recompute") for row in step.scheduled):
            continue
        for row in step.scheduled:
            if row.phase == "decode":
                counts[row.request_id] += 1
    return counts


def prompt_tokens_beside(run: Run, request_id: str) -> int:
    """Prompt tokens of others that were computed in this request's decode steps. Pure."""
    total = 0
    for step in run.steps:
        if any(row.request_id == request_id and row.phase == "decode" for row in step.scheduled):
            total += sum(row.num_tokens for row in step.scheduled if row.phase in ("prefill", "recompute"))
    return total
