"""Genuine Runs for the tests of engine.lab: the real scheduler and engine loop, with a fake model and a fake clock."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from engine.lab.records import DeviceInfo, Header, ModelInfo, Run
from engine.lab.scenario import Scenario
from engine.lab.work import ChunkShape, step_work
from engine.runtime.engine import Engine
from engine.runtime.followers import Followers
from engine.scheduling.decision import Chunk
from engine.scheduling.requests import Request
from tests.fakes import VOCAB, FakeClock, FakeExecutor
from tests.probe_kit import add_probes

Records = list[dict]  # a Run file as decoded JSON, to be corrupted

MODEL = ModelInfo(
    name="fake",
    source="tests",
    architecture="llama",
    num_layers=2,
    hidden_size=8,
    num_heads=4,
    num_kv_heads=2,
    head_dim=2,
    vocab_size=VOCAB,
    num_parameters=2000 + 8 * VOCAB,
    weight_bytes=4 * (2000 + 8 * VOCAB),
)


class CountingExecutor(FakeExecutor):
    """The fake model with the real work accounting; a pass takes 10 ms and 0.1 ms a token on the fake clock."""

    def __init__(self, block_size: int, clock: FakeClock) -> None:
        super().__init__(block_size, on_forward=self._take_time)
        self.clock = clock

    def _take_time(self, chunks: Sequence[Chunk]) -> None:
        self.clock.advance(0.01 + 0.0001 * sum(c.num_tokens for c in chunks))

    def work(self, chunks: Sequence[Chunk]):
        return step_work(MODEL, [ChunkShape(c.start, c.num_tokens, c.phase, c.samples) for c in chunks], 4, 4)


def make_run(scenario: dict, aborts: dict[int, str] | None = None) -> Run:
    """Serve a scenario whose prompts are token ids. ``aborts`` maps a step number to the request aborted before it."""
    parsed = Scenario.parse(scenario)
    clock = FakeClock()
    engine = Engine(CountingExecutor(parsed.block_size, clock), parsed.policy, parsed.limits, parsed.block_size, clock)
    requests = [
        Request(request_id, list(spec.prompt_token_ids or ()), spec.max_tokens, spec.arrival_s, spec.ignore_eos)
        for request_id, spec in zip(parsed.request_ids(), parsed.requests, strict=True)
    ]
    followers = Followers(parsed, requests)
    for request in followers.first:
        assert request.prompt_token_ids
        engine.add(request)
    steps = []
    while engine.has_work:
        if aborts and len(steps) in aborts:
            engine.abort(aborts[len(steps)])
        record = engine.step()
        if record is None:
            clock.advance(max(engine.next_arrival_s - engine.now_s(), 0) + 1e-9)
        else:
            steps.append(record)
            for request in followers.due(record):
                engine.add(request)
    header = Header(
        run_id="run-0123456789ab",
        created_utc="2026-01-02T03:04:05+00:00",
        scenario=parsed.model_dump(mode="json"),
        device=DeviceInfo(name="test bench", type="cpu", threads=2, memory_bytes=8_000_000_000),
        model=MODEL,
        dtype=parsed.dtype,
        kv_dtype=parsed.dtype,
        block_size=parsed.block_size,
        num_blocks=parsed.limits.num_blocks,
        versions={"engine": "test"},
    )
    run = Run(header=header, steps=steps, requests=engine.request_records())
    add_probes(run)
    return run


def prompt(length: int, first: int = 1) -> list[int]:
    return [(first + i) % VOCAB for i in range(length)]


def static_scenario() -> dict:
    """A batch of three with unequal lengths (padding), and a fourth that arrives late and waits for it to drain."""
    return {
        "policy": "static",
        "block_size": 4,
        "limits": {"max_requests": 3, "max_batch_tokens": 16, "num_blocks": 32},
        "requests": [
            {"request_id": "A", "prompt_token_ids": prompt(5), "max_tokens": 5, "ignore_eos": True},
            {"request_id": "B", "prompt_token_ids": prompt(9, 20), "max_tokens": 2, "ignore_eos": True},
            {"request_id": "C", "prompt_token_ids": prompt(3, 40), "max_tokens": 8, "ignore_eos": True},
            {
                "request_id": "D",
                "prompt_token_ids": prompt(4, 60),
                "max_tokens": 3,
                "arrival_s": 0.015,
                "ignore_eos": True,
            },
        ],
    }


def chunked_scenario() -> dict:
    """The same requests under the token budget: chunks of prompts beside decodes, D joins at once."""
    return {**static_scenario(), "policy": "chunked"} | {
        "limits": {"max_requests": 4, "max_batch_tokens": 8, "num_blocks": 32}
    }


def preempting_scenario() -> dict:
    """Three requests that outgrow the pool, so that the youngest is preempted and recomputed."""
    return {
        "policy": "chunked",
        "block_size": 2,
        "limits": {"max_requests": 4, "max_batch_tokens": 8, "num_blocks": 9},
        "requests": [{"prompt_token_ids": prompt(4, 10 * i), "max_tokens": 8} for i in range(3)],
    }


def random_scenario(seed: int) -> dict:
    """A small random workload, tight enough that requests wait and now and then are preempted."""
    rng = random.Random(seed)
    return {
        "policy": rng.choice(["static", "chunked"]),
        "block_size": rng.choice([1, 2, 4, 16]),
        "limits": {
            "max_requests": rng.randint(1, 5),
            "max_batch_tokens": rng.randint(5, 40),
            "num_blocks": rng.randint(40, 70),
        },
        "requests": [
            {
                "arrival_s": rng.choice([0.0, round(rng.random() * 0.3, 3)]),
                "prompt_token_ids": prompt(rng.randint(1, 20), rng.randrange(VOCAB)),
                "max_tokens": rng.randint(1, 20),
            }
            for _ in range(rng.randint(1, 8))
        ],
    }


def decoded(run: Run) -> Records:
    return [json.loads(line) for line in run.to_jsonl().splitlines()]


def encoded(records: Records) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)
