"""Genuine Runs of the lessons' own scenarios for tests: the real scheduler and engine, a fake model, a fake clock.

A pass costs what a small memory-bound model would: a reading of the weights, and a little for each token.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

from engine.lab.records import ModelInfo, Run
from engine.lab.scenario import RequestSpec, Scenario
from engine.runtime.engine import Engine
from engine.runtime.followers import Followers
from engine.scheduling.decision import Chunk
from engine.scheduling.requests import Request
from lessons.scenarios import batching, prefill_decode
from tests.fakes import VOCAB, FakeClock, FakeExecutor
from tests.probe_kit import add_probes
from tests.unit.split_serve import header_of, serve_disaggregated, tell_ring

MODEL = ModelInfo(
    name="smollm2-135m",
    source="fake",
    architecture="llama",
    num_layers=30,
    hidden_size=576,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    vocab_size=49_152,
    num_parameters=134_515_008,
    weight_bytes=538_060_032,
)
EOS = frozenset({1, 2, 3})


def serve(
    scenario: Scenario,
    *,
    pass_ms: float = 25.0,
    token_ms: float = 1.0,
    ceilings: tuple[float, float] | None = (21.3, 0.118),
    eos: frozenset[int] = EOS,
    jitter: float = 0.02,
) -> Run:
    """Serve a scenario; a prompt becomes one made-up token per four characters, beside thirty of a chat template."""
    rng = random.Random(scenario.model_dump_json(exclude_defaults=True))  # a later field must not change the noise

    def make(clock: FakeClock) -> FakeExecutor:
        def take_time(chunks: Sequence[Chunk]) -> None:
            clock.advance((pass_ms + token_ms * sum(c.num_tokens for c in chunks)) / 1e3 * (1 + jitter * rng.random()))

        return FakeExecutor(scenario.block_size, vocab=VOCAB, on_forward=take_time, model=MODEL)

    def make_requests() -> list[Request]:
        return [
            Request(request_id, fake_prompt(spec), spec.max_tokens, spec.arrival_s, spec.ignore_eos)
            for request_id, spec in zip(scenario.request_ids(), scenario.requests, strict=True)
        ]

    run_id = "run-" + hashlib.sha256(scenario.model_dump_json(exclude_defaults=True).encode()).hexdigest()[:12]
    header = header_of(scenario, run_id, MODEL, ceilings or (None, None))
    if scenario.disaggregated is not None:
        steps, records, header.workers = serve_disaggregated(scenario, make_requests, make, MODEL, eos)
        return Run(header=header, steps=steps, requests=records)
    clock = FakeClock()
    engine = Engine(make(clock), scenario.policy, scenario.limits, scenario.block_size, clock)
    requests = make_requests()
    followers = Followers(scenario, requests)
    for request in followers.first:
        engine.add(request, eos_token_ids=eos)
    steps = []
    while engine.has_work:
        record = engine.step()
        if record is None:
            clock.advance(max(engine.next_arrival_s - engine.now_s(), 0) + 1e-9)
        else:
            steps.append(record)
            for request in followers.due(record):
                engine.add(request, eos_token_ids=eos)
    run = Run(header=header, steps=steps, requests=engine.request_records())
    add_probes(run, pass_ms, token_ms)
    return run if scenario.ring is None else tell_ring(run)


def fake_prompt(spec: RequestSpec) -> list[int]:
    """Made-up token ids for a prompt, as many as a tokenizer would about give. Pure."""
    if spec.prompt_token_ids is not None:
        return list(spec.prompt_token_ids)
    if spec.prompt is None:
        return []
    count = spec.num_prompt_tokens or len(spec.prompt) // 4 + (30 if spec.chat else 1)
    rng = random.Random(spec.prompt)
    return [rng.randrange(4, VOCAB) for _ in range(count)]


def disturbed_batching_runs(preset: str) -> dict[str, Run]:
    """The static run while something else used the machine."""
    return {
        "static": serve(batching(preset, "static"), pass_ms=60, token_ms=4),
        "chunked": serve(batching(preset, "chunked")),
    }


def batching_runs(preset: str, **options) -> dict[str, Run]:
    return {policy: serve(batching(preset, policy), **options) for policy in ("static", "chunked")}


def prefill_decode_runs(num_prompt_tokens: int | None = 37, max_tokens: int = 64, **options) -> dict[str, Run]:
    return {"run": serve(prefill_decode("Why is the sky blue?", num_prompt_tokens, max_tokens), **options)}


def random_batching_runs(seed: int) -> dict[str, Run]:
    """A workload of random size under both policies, with limits that make requests wait for every recorded reason."""
    rng = random.Random(seed)
    max_requests = rng.randint(1, 5)
    block_size = rng.choice([4, 8, 16])
    requests = [
        {
            "arrival_s": round(rng.choice([0.0, rng.random()]), 3),
            "prompt_token_ids": [rng.randrange(4, VOCAB) for _ in range(rng.randint(1, 60))],
            "max_tokens": rng.randint(1, 40),
            "ignore_eos": rng.random() < 0.5,
        }
        for _ in range(rng.randint(1, 9))
    ]
    scenario = {
        "limits": {
            "max_requests": max_requests,
            "max_batch_tokens": max(max_requests, rng.choice([8, 32, 256])),
            "num_blocks": rng.choice([28, 40, 200]) * 16 // block_size,
        },
        "block_size": block_size,
        "requests": requests,
    }
    token_ms = rng.choice([0.1, 1.0])
    return {p: serve(Scenario.parse({**scenario, "policy": p}), token_ms=token_ms) for p in ("static", "chunked")}
