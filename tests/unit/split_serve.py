"""Genuine Runs of several workers without several processes: the real schedulers and merging, fake models and clocks.

The prefill side depends on nobody but the wire, so it is served first; then the decode side, with parcels that arrive
when the wire has brought them. A ring's records are what its workers would tell: from the formulas, with made-up times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.lab.records import DeviceInfo, Header, ModelInfo, RingSpan, RingStep, Run, StepRecord, Transfer, WorkerInfo
from engine.lab.ring import decode_sent_bytes, num_pairs, num_positions, parts, position_bytes, prompt_sent_bytes
from engine.lab.scenario import Scenario
from engine.runtime.engine import Engine
from engine.runtime.merging import in_order, own_blocks, request_records
from engine.scheduling.decision import Chunk
from engine.scheduling.handover import PrefillSide, arrive_computed, split_blocks
from engine.scheduling.policies.chunked import Chunked
from engine.scheduling.requests import Request
from tests.fakes import FakeClock, FakeExecutor

MakeExecutor = Callable[[FakeClock], FakeExecutor]
FAST_BYTES_PER_S = 5e8


@dataclass
class _Parcel:
    request_id: str
    token_id: int
    transfer: Transfer


def serve_disaggregated(
    scenario: Scenario, requests: Callable[[], list[Request]], make: MakeExecutor, model: ModelInfo, eos: frozenset[int]
) -> tuple[list[StepRecord], list, list[WorkerInfo]]:
    """(steps, request records, workers) of a disaggregated scenario; each worker computes as ``make``'s executor."""
    first, second = split_blocks(scenario.limits.num_blocks)
    workers = [
        WorkerInfo(name="prefill", threads=1, first_block=0, num_blocks=first),
        WorkerInfo(name="decode", threads=1, first_block=first, num_blocks=second),
    ]
    told, parcels = _prefill(scenario, requests(), make, model, eos, first)
    records = [own_blocks(record, workers[0]) for record in told]
    records += [own_blocks(r, workers[1]) for r in _decode(scenario, requests(), make, eos, second, parcels)]
    asked = requests()
    steps = in_order(records, asked, workers)
    return steps, request_records(asked, steps), workers


def _engine(scenario: Scenario, make: MakeExecutor, num_blocks: int, policy: type[Chunked]) -> tuple[Engine, FakeClock]:
    clock = FakeClock()
    limits = scenario.limits.model_copy(update={"num_blocks": num_blocks})
    engine = Engine(make(clock), "chunked", limits, scenario.block_size, clock, policies={"chunked": policy})
    return engine, clock


def _prefill(
    scenario: Scenario,
    requests: Sequence[Request],
    make: MakeExecutor,
    model: ModelInfo,
    eos: frozenset[int],
    blocks: int,
) -> tuple[list[StepRecord], list[_Parcel]]:
    engine, clock = _engine(scenario, make, blocks, PrefillSide)
    policy = engine.scheduler.policy
    policy.complete = frozenset(r.request_id for r in requests if r.max_tokens == 1)
    for request in requests:
        request.max_tokens = 1
        engine.add(request, eos_token_ids=eos)
    pace = scenario.disaggregated.link_mb_per_s
    rate = FAST_BYTES_PER_S if pace is None else pace * 1e6
    records: list[StepRecord] = []
    parcels: list[_Parcel] = []
    unsent: list[_Parcel] = []
    while engine.has_work or unsent:
        while unsent and unsent[0].transfer.t_end_s <= engine.now_s():
            policy.sent(unsent.pop(0).request_id)
        record = engine.step()
        if record is None:
            moments = [
                m for m in (engine.next_arrival_s, unsent[0].transfer.t_end_s if unsent else None) if m is not None
            ]
            if not moments:
                break
            clock.advance(max(min(moments) - engine.now_s(), 0) + 1e-9)
            continue
        for output in record.outputs:
            request = policy.leaving.get(output.request_id)
            if request is None:
                continue
            output.finish_reason = None
            begin_s = max(record.t_end_s, parcels[-1].transfer.t_end_s if parcels else 0.0)
            num_bytes = len(request.block_ids) * scenario.block_size * position_bytes(model, 4.0)
            transfer = Transfer(
                request_id=request.request_id,
                num_tokens=request.num_prompt_tokens,
                num_blocks=len(request.block_ids),
                num_bytes=num_bytes,
                ready_s=record.t_end_s,
                t_begin_s=begin_s,
                t_end_s=begin_s + num_bytes / rate,
            )
            parcels.append(_Parcel(request.request_id, output.token_id, transfer))
            unsent.append(parcels[-1])
        records.append(record)
    return records, parcels


def _decode(
    scenario: Scenario,
    requests: Sequence[Request],
    make: MakeExecutor,
    eos: frozenset[int],
    blocks: int,
    parcels: Sequence[_Parcel],
) -> list[StepRecord]:
    engine, clock = _engine(scenario, make, blocks, Chunked)
    by_id = {request.request_id: request for request in requests}
    coming, fresh = list(parcels), set()
    plain_prepare = engine.executor.prepare

    def prepare(chunks: Sequence[Chunk]) -> list[Chunk]:
        for chunk in chunks:
            if chunk.request.request_id in fresh:
                fresh.discard(chunk.request.request_id)
                whole = Chunk(chunk.request, 0, chunk.start, "prefill", chunk.block_ids, False)
                engine.executor._store(whole)
        return plain_prepare(chunks)

    engine.executor.prepare = prepare
    records: list[StepRecord] = []
    while coming or engine.has_work:
        received = []
        while coming and coming[0].transfer.t_end_s <= engine.now_s():
            parcel = coming.pop(0)
            request = by_id[parcel.request_id]
            arrive_computed(request, parcel.token_id, engine.now_s(), parcel.transfer.ready_s)
            engine.add(request, eos_token_ids=eos)
            fresh.add(request.request_id)
            received.append(parcel.transfer)
        record = engine.step()
        if record is None:
            clock.advance(max(coming[0].transfer.t_end_s - engine.now_s(), 0) + 1e-9)
            continue
        record.received = received
        records.append(record)
    return records


# ------------------------------------------------------------------ rings
def tell_ring(run: Run, compute_share: float = 0.5, send_share: float = 0.2) -> Run:
    """Put into each step of a Run with one request at a time what a ring of workers would have told.

    A layer takes its part of the step; in it each round's arithmetic takes time by its pairs, a transfer by its bytes.
    """
    asked = Scenario.parse(run.header.scenario).ring
    n, layout, model = asked.num_workers, asked.layout, run.header.model
    prompts = {record.request_id: record.num_prompt_tokens for record in run.requests}
    run.header.workers = [WorkerInfo(name=f"ring {rank}", threads=1) for rank in range(n)]
    for step in run.steps:
        if not step.scheduled:
            continue
        row = step.scheduled[0]
        num_prompt, end = prompts[row.request_id], row.start + row.num_tokens
        kept = num_positions(end, num_prompt, n, layout)
        per_position = position_bytes(model, 4.0)
        if row.start:
            pairs, sent = [count * model.num_layers for count in kept], [decode_sent_bytes(model, n)] * n
            buffers, spans = [0] * n, []
        else:
            owned = parts(num_prompt, n, layout)
            pairs = [model.num_layers * sum(num_pairs(own, other) for other in owned) for own in owned]
            sent = prompt_sent_bytes(model, num_prompt, n, layout, 4.0)
            buffers = [0 if n == 1 else per_position // model.num_layers] * n
            spans = _spans(step, owned, model, compute_share, send_share)
        step.ring = RingStep(
            positions=kept,
            kv_bytes=[count * per_position for count in kept],
            buffer_bytes=buffers,
            sent_bytes=sent,
            pairs=pairs,
            spans=spans,
        )
    return run


def _spans(
    step: StepRecord, owned: list[list[range]], model: ModelInfo, compute_share: float, send_share: float
) -> list[RingSpan]:
    n, layers = len(owned), model.num_layers
    round_s = (step.t_end_s - step.t_begin_s) / layers / n
    most = max(num_pairs(own, other) for own in owned for other in owned)
    spans = []
    for layer in range(layers):
        for hop in range(n):
            begin_s = step.t_begin_s + (layer * n + hop) * round_s
            for rank, own in enumerate(owned):
                source = (rank - hop) % n
                pairs = num_pairs(own, owned[source])
                at = {"worker": rank, "layer": layer, "source": source, "t_begin_s": begin_s}
                if pairs:
                    spans.append(RingSpan(op="compute", t_end_s=begin_s + compute_share * round_s * pairs / most, **at))
                if hop < n - 1:
                    size = sum(len(r) for r in owned[source]) * position_bytes(model, 4.0) // layers
                    spans.append(RingSpan(op="send", t_end_s=begin_s + send_share * round_s, num_bytes=size, **at))
    return spans


def header_of(scenario: Scenario, run_id: str, model: ModelInfo, rates: tuple[float | None, float | None]) -> Header:
    """A header as a run on a fake device has it."""
    return Header(
        run_id=run_id,
        created_utc="2026-01-02T03:04:05+00:00",
        scenario=scenario.model_dump(mode="json"),
        device=DeviceInfo(
            name="fake", type="cpu", threads=2, memory_bytes=8 * 10**9, read_gbps=rates[0], matmul_tflops=rates[1]
        ),
        model=model,
        dtype=scenario.dtype,
        kv_dtype=scenario.dtype,
        block_size=scenario.block_size,
        num_blocks=scenario.limits.num_blocks,
        versions={},
    )
