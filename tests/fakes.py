"""Stand-ins for the expensive parts: a model that is a pure function of the tokens, a clock that obeys, a text stream.

The fake executor is a real paged executor in everything but arithmetic: it writes each token into the slot its block
table names, and reads the whole prefix back through the table before it answers. So a wrong table, a block given to two
requests or a position that was never computed changes the tokens, or is caught on the spot.
"""

from __future__ import annotations

import time
import zlib
from array import array
from collections.abc import Callable, Sequence

from engine.lab.records import DeviceInfo, Header, ModelInfo, Run, StepRecord, Work
from engine.lab.scenario import Limits, RequestSpec, Scenario, Speculation
from engine.lab.work import ChunkShape, step_work
from engine.runtime.engine import Engine
from engine.scheduling.decision import Chunk
from engine.scheduling.invariants import StepChecker, check_empty
from engine.scheduling.requests import Request

VOCAB = 97
REPETITIVE = 7  # a vocabulary so small that the model's texts run in circles
TINY_MODEL = ModelInfo(
    name="fake",
    source="tests",
    architecture="fake",
    num_layers=2,
    hidden_size=8,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    vocab_size=VOCAB,
    num_parameters=2000,
    weight_bytes=8000,
)


def next_token(prefix: Sequence[int], vocab: int = VOCAB) -> int:
    """The fake model: the token after ``prefix``. Pure. With ``vocab`` REPETITIVE it looks at the last two alone."""
    seen = prefix[-2:] if vocab == REPETITIVE else prefix
    return zlib.crc32(array("q", seen).tobytes()) % vocab


def expected_output(
    prompt: Sequence[int], max_tokens: int, eos_token_ids: frozenset[int] = frozenset(), vocab: int = VOCAB
) -> list[int]:
    """What the fake model says after ``prompt`` when nobody schedules anything."""
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(tokens, vocab))
        if tokens[-1] in eos_token_ids:
            break
    return tokens[len(prompt) :]


class FakeClock:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class FakeExecutor:
    """Runs the fake model over a paged store of ``num_blocks * block_size`` slots, and records every call.

    ``calls`` holds one list per forward pass: (request_id, start, num_tokens, phase). ``on_forward`` is called in the
    middle of the pass (to sleep, to move a clock, to raise, to abort somebody).
    """

    backend = "eager"

    def __init__(
        self,
        block_size: int,
        vocab: int = VOCAB,
        on_forward: Callable[[Sequence[Chunk]], None] | None = None,
        model: ModelInfo = TINY_MODEL,
        clock: FakeClock | None = None,
    ) -> None:
        self.block_size = block_size
        self.vocab = vocab
        self.on_forward = on_forward
        self.model = model
        self.clock = clock
        self.calls: list[list[tuple[str, int, int, str]]] = []
        self.released: list[str] = []
        self.slots: dict[int, tuple[int, int]] = {}  # slot -> (position, token_id)

    def prepare(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        return list(chunks)

    def forward(self, batch: list[Chunk]) -> list[int]:
        """Returns the next token of each sampling chunk, as its logits would give it."""
        self.calls.append([(c.request.request_id, c.start, c.num_tokens, c.phase) for c in batch])
        if self.on_forward is not None:
            self.on_forward(batch)
        for chunk in batch:
            if chunk.phase != "padding":
                self._store(chunk)
        return [next_token(self._load(chunk), self.vocab) for chunk in batch if chunk.samples]

    def sample(self, logits: list[int], chunks: Sequence[Chunk]) -> list[int]:
        assert len(logits) == sum(chunk.samples for chunk in chunks)
        return logits

    def release(self, request_id: str) -> None:
        self.released.append(request_id)

    def work(self, chunks: Sequence[Chunk]) -> Work:
        """The work of the model whose shape was given, in float32."""
        return step_work(self.model, [ChunkShape(c.start, c.num_tokens, c.phase, c.samples) for c in chunks], 4.0, 4.0)

    def _slot(self, chunk: Chunk, position: int) -> int:
        return chunk.block_ids[position // self.block_size] * self.block_size + position % self.block_size

    def _store(self, chunk: Chunk) -> None:
        for position, token_id in enumerate(chunk.token_ids, start=chunk.start):
            self.slots[self._slot(chunk, position)] = (position, token_id)

    def _load(self, chunk: Chunk) -> list[int]:
        """The prefix of a chunk's last position, read through its block table as attention would."""
        prefix = []
        for expected in range(chunk.start + chunk.num_tokens):
            position, token_id = self.slots[self._slot(chunk, expected)]
            assert position == expected, f"{chunk.request.request_id}: slot of {expected} holds position {position}"
            prefix.append(token_id)
        return prefix


class FakeText:
    """A text stream whose tokens print as ``<id>``; it stops when ``stop`` appears, which is cut off."""

    def __init__(self, stop: str | None = None) -> None:
        self.stop = stop
        self.stopped = False
        self.text = ""
        self.num_finished = 0

    def push(self, token_id: int) -> str:
        delta = f"<{token_id}>"
        if self.stop is not None and self.stop in self.text + delta:
            self.stopped = True
            return ""
        self.text += delta
        return delta

    def finish(self) -> str:
        assert not self.stopped, "a text that has stopped has nothing left to show"
        self.num_finished += 1
        return ""


def sleeper(ms_per_pass: float, ms_per_token: float) -> Callable[[Sequence[Chunk]], None]:
    """An ``on_forward`` that takes real time, as a small model on a laptop would."""

    def sleep(chunks: Sequence[Chunk]) -> None:
        time.sleep((ms_per_pass + ms_per_token * sum(c.num_tokens for c in chunks)) / 1000)

    return sleep


# ---- short ways to build and drive an engine -----------------------------------------------------------------------


def make_limits(
    requests: int = 4, tokens: int = 16, blocks: int = 32, prefix: str = "none", kv: str = "keep"
) -> Limits:
    return Limits(max_requests=requests, max_batch_tokens=tokens, num_blocks=blocks, prefix_cache=prefix, kv_cache=kv)


def make_engine(
    policy: str = "chunked",
    block_size: int = 4,
    step_s: float = 0.01,
    speculation: Speculation | None = None,
    vocab: int = VOCAB,
    **limits: int | str,
) -> Engine:
    """An engine on the fake model whose clock moves ``step_s`` in each forward pass. See ``make_limits``."""
    clock = FakeClock()
    executor = FakeExecutor(block_size, vocab, on_forward=lambda chunks: clock.advance(step_s), clock=clock)
    return Engine(executor, policy, make_limits(**limits), block_size, clock, speculation=speculation)


def make_request(request_id: str = "a", num_prompt_tokens: int = 5, max_tokens: int = 3, **fields: object) -> Request:
    """A request whose prompt differs from that of every other id."""
    first = zlib.crc32(request_id.encode()) % VOCAB
    return Request(request_id, [(first + i) % VOCAB for i in range(num_prompt_tokens)], max_tokens, **fields)


def as_run(engine: Engine, records: list[StepRecord]) -> Run:
    """What the engine did, as a Run whose scenario asks for exactly that. For engines that forget no request."""
    lookup = engine.scheduler.lookup
    scenario = Scenario(
        speculation=lookup and Speculation(ngram=lookup.ngram, num_draft_tokens=lookup.num_draft_tokens),
        policy=engine.scheduler.policy.name,
        block_size=engine.scheduler.pool.block_size,
        limits=engine.scheduler.limits,
        requests=[
            RequestSpec(
                request_id=r.request_id,
                arrival_s=r.arrival_s,
                prompt_token_ids=r.prompt_token_ids,
                max_tokens=r.max_tokens,
                ignore_eos=r.ignore_eos,
                temperature=r.temperature,
            )
            for r in engine.scheduler.requests.values()
        ],
    )
    header = Header(
        run_id="run-0123456789ab",
        created_utc="2026-01-01T00:00:00+00:00",
        scenario=scenario.model_dump(mode="json"),
        device=DeviceInfo(name="fake", type="cpu", threads=1, memory_bytes=1),
        model=engine.executor.model,
        dtype="float32",
        kv_dtype="float32",
        block_size=scenario.block_size,
        num_blocks=scenario.limits.num_blocks,
        versions={},
    )
    return Run(header=header, steps=records, requests=engine.request_records())


def checked_step(engine: Engine, checker: StepChecker) -> StepRecord | None:
    """One step, with the invariants checked after it. Lets the clock wait for the next arrival."""
    record = engine.step()
    if record is not None:
        checker.check(record)
    elif engine.next_arrival_s is not None:
        engine.executor.clock.advance(max(0.0, engine.next_arrival_s - engine.now_s()) + 1e-9)  # past any rounding
    return record


def drain(engine: Engine, checker: StepChecker | None = None, most: int = 100_000) -> list[StepRecord]:
    """Step until nothing is left, checking invariants after every step and emptiness at the end."""
    checker = checker or StepChecker(engine)
    records: list[StepRecord] = []
    for _ in range(most):
        if not engine.has_work:
            check_empty(engine.scheduler)
            return records
        record = checked_step(engine, checker)
        if record is not None:
            records.append(record)
    raise AssertionError(f"work is left after {most} steps")
