"""The two engine processes of a disaggregated run: one computes prompts and sends their blocks, one decodes.

Each is an ordinary engine with its own blocks and its own half of the threads. A thread beside the engine sends (or
receives) the keys and values over a pipe, so that a transfer does not hold up the next step; bytes are counted where
they arrive. Nothing is scheduled here. Invariant: a block is free again only when the sender has read it, and a request
decodes only when its last byte is there. Follows DistServe (Zhong et al. 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from engine.lab.records import Transfer
from engine.lab.scenario import Limits, RequestSpec
from engine.model.load import LoadedModel
from engine.runtime.engine import Engine
from engine.runtime.executor import TorchExecutor
from engine.runtime.kernels_choice import make_executor
from engine.runtime.link import Parcel, Receiver, Sender, transfer_of
from engine.runtime.text import TextStream
from engine.runtime.workers import STOP, WorkerModel
from engine.scheduling.decision import Chunk
from engine.scheduling.handover import PrefillSide, arrive_computed
from engine.scheduling.policies.chunked import Chunked
from engine.scheduling.requests import Request

IDLE_S = 0.003  # how long a worker without work sleeps before it looks again

Asked = tuple[Request, RequestSpec]


@dataclass(frozen=True)
class Begin:
    """Time 0 of the run, on the clock that all processes of a machine share."""

    origin_s: float


@dataclass(frozen=True)
class Abort:
    request_id: str


@dataclass(frozen=True)
class Ready:
    """The model is loaded and warm."""

    block_bytes: int
    backend: str


def prefill_main(
    pipe: Connection,
    link: Connection,
    model: WorkerModel,
    limits: Limits,
    block_size: int,
    asked: Sequence[Asked],
    link_mb_per_s: float | None,
) -> None:
    """The prefill worker's process. Effect: sends records on ``pipe``, keys and values on ``link``."""
    loaded, executor, engine = _engine(model, limits, block_size, PrefillSide)
    policy = engine.scheduler.policy
    assert isinstance(policy, PrefillSide)
    policy.complete = frozenset(request.request_id for request, _ in asked if request.max_tokens == 1)
    for request, spec in asked:
        request.max_tokens = 1
        engine.add(request, _stream(loaded, spec), loaded.eos_token_ids)
    sender = Sender(link, executor, engine, link_mb_per_s)
    _begin(pipe, engine, executor)
    while _obey(pipe, engine.abort):
        for request_id in sender.taken():
            policy.sent(request_id)
        record = engine.step()
        if record is None:
            pipe.poll(IDLE_S)
            continue
        for output in record.outputs:
            request = policy.leaving.get(output.request_id)
            if request is None or output.token_id is None:
                continue
            output.finish_reason = None  # "length" of the one token it may have here: it goes on elsewhere
            blocks = tuple(request.block_ids)
            sender.send(Parcel(request.request_id, output.token_id, record.t_end_s, request.num_prompt_tokens, blocks))
        pipe.send(record)


def decode_main(
    pipe: Connection,
    link: Connection,
    model: WorkerModel,
    limits: Limits,
    block_size: int,
    asked: Sequence[Asked],
) -> None:
    """The decode worker's process. Effect: sends records on ``pipe``."""
    loaded, executor, engine = _engine(model, limits, block_size, Chunked)
    arriving = ArrivingExecutor(executor)
    engine.executor = arriving
    waiting = {request.request_id: (request, spec) for request, spec in asked}
    dropped: set[str] = set()

    def abort(request_id: str) -> None:
        arriving.forget(request_id)
        if request_id in waiting:
            dropped.add(request_id)  # its bytes are on the way: it ends when they are here
        engine.abort(request_id)

    _begin(pipe, engine, executor)
    receiver = Receiver(link, engine, executor.cache.slots)
    while _obey(pipe, abort):
        received: list[Transfer] = []
        for parcel in receiver.arrived(IDLE_S if not engine.has_work else 0.0):
            request, spec = waiting.pop(parcel.request_id)
            arrive_computed(request, parcel.first_token_id, engine.now_s(), parcel.ready_s)
            stream = _stream(loaded, spec)
            stream.push(parcel.first_token_id)
            arriving.hold(parcel)
            engine.add(request, stream, loaded.eos_token_ids)
            received.append(transfer_of(parcel))
            if parcel.request_id in dropped:
                abort(parcel.request_id)
        record = engine.step()
        if record is not None:
            record.received = received
            pipe.send(record)
        assert record is not None or not received, "who arrives waits, runs or has been aborted: each makes a record"


class ArrivingExecutor:
    """An executor that first puts keys and values that came from elsewhere where the scheduler has made room."""

    def __init__(self, executor: TorchExecutor) -> None:
        self._executor = executor
        self._held: dict[str, Parcel] = {}
        self.backend = executor.backend
        self.forward, self.sample, self.work = executor.forward, executor.sample, executor.work

    def hold(self, parcel: Parcel) -> None:
        """Effect: its bytes are kept until its request has blocks."""
        self._held[parcel.request_id] = parcel

    def forget(self, request_id: str) -> None:
        self._held.pop(request_id, None)

    def prepare(self, chunks: Sequence[Chunk]) -> Any:
        """Effect: who runs for the first time here finds its prompt in its blocks."""
        for chunk in chunks:
            parcel = self._held.pop(chunk.request.request_id, None)
            if parcel is not None:
                assert chunk.start == parcel.num_tokens, "it goes on behind its prompt"
                self._executor.cache.import_blocks(chunk.block_ids[: len(parcel.block_ids)], parcel.kv)
        return self._executor.prepare(chunks)

    def release(self, request_id: str) -> None:
        self.forget(request_id)
        self._executor.release(request_id)


def _engine(
    model: WorkerModel, limits: Limits, block_size: int, policy: type[Chunked]
) -> tuple[LoadedModel, TorchExecutor, Engine]:
    loaded = model.load()
    executor = make_executor(loaded, limits, block_size)
    return loaded, executor, Engine(executor, "chunked", limits, block_size, policies={"chunked": policy})


def _begin(pipe: Connection, engine: Engine, executor: TorchExecutor) -> None:
    """Effect: warm, says so, and waits for time 0, which is the same for all."""
    executor.warm_up()
    pipe.send(Ready(executor.cache.block_bytes, executor.backend))
    message = pipe.recv()
    if message == STOP:
        raise EOFError
    assert isinstance(message, Begin), "a run begins before anything else"
    engine.start_clock(message.origin_s)


def _obey(pipe: Connection, abort: Any) -> bool:
    """Carry out what the parent has said meanwhile. False when that was to stop."""
    while pipe.poll():
        message = pipe.recv()
        if message == STOP:
            return False
        if isinstance(message, Abort):
            abort(message.request_id)
    return True


def _stream(loaded: LoadedModel, spec: RequestSpec) -> TextStream:
    return TextStream(loaded.tokenizer, spec.stop)
