"""A runtime without torch for the server's tests, and a server process around it: ``python -m tests.fake_runtime``.

It counts a token per request and step, as slowly as it is told, and logs every stretch of device use, so that a test
can prove that none overlaps another. Its model reads and writes characters: a token is one character.
"""

from __future__ import annotations

import argparse
import gc
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel

from engine.lab.records import (
    Blocks,
    DeviceInfo,
    Header,
    ModelInfo,
    Output,
    Queues,
    RequestRecord,
    Run,
    Scheduled,
    StepRecord,
)
from engine.lab.scenario import Scenario, ScenarioError
from engine.server.jobs import GenerationSpec

MODEL = ModelInfo(
    name="fake",
    source="tests",
    architecture="fake",
    num_layers=1,
    hidden_size=8,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    vocab_size=0x110000,
    num_parameters=0x110000 * 8,
    weight_bytes=1000,
)
MAX_POSITIONS = 2048
NUM_BLOCKS = 64


class FakeModelError(ValueError):
    """Stands for engine.model's ModelError: its module name begins with engine too."""


FakeModelError.__module__ = "engine.model.spec"


class Cancelled(Exception):
    pass


class FakeTokenizer:
    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        return self.encode("".join(f"<{m['role']}>{m['content']}" for m in messages))

    def piece(self, token_id: int) -> str:
        return chr(token_id)


@dataclass(frozen=True)
class FakeLoaded:
    info: ModelInfo = field(default_factory=lambda: MODEL)
    tokenizer: FakeTokenizer = field(default_factory=FakeTokenizer)
    max_positions: int = MAX_POSITIONS


@dataclass(frozen=True)
class FakeResult:
    run: Run
    texts: dict[str, str]
    pieces: dict[str, list[str]]


class FakeCeilings(BaseModel):
    read_gbps: float = 12.5
    disturbed: bool = False


@dataclass(frozen=True)
class FakeEvent:
    request_id: str
    text: str
    token_ids: list[int]
    finish_reason: str | None
    num_prompt_tokens: int
    num_output_tokens: int


@dataclass
class Knobs:
    """What a test can set, and what it can look at afterwards. ``stretches``: (what, id, begin, end) of device use."""

    step_s: float = 0.001
    load_s: float = 0.0
    load_errors: list[Exception] = field(default_factory=list)  # raised one after the other, then loading works
    import_error: Exception | None = None
    run_error: Exception | None = None
    step_error: Exception | None = None
    gate: threading.Event | None = None  # steps wait for it
    stretches: list[tuple[str, str, float, float]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    num_calibrations: int = 0
    num_disturbed: int = 0  # the first measurement that is quiet
    serving: FakeServing | None = None
    collecting: list[bool] = field(default_factory=list)  # whether the garbage collector was on in each step of a run


class FakeRuntime:
    def __init__(self, knobs: Knobs, on_progress: Callable[[str, float | None, str], None]) -> None:
        if knobs.import_error is not None:
            raise knobs.import_error
        self._knobs = knobs
        self._on_progress = on_progress
        self._serving: FakeServing | None = None

    def load(self, model: str, dtype: str) -> FakeLoaded:
        self._on_progress("load", 0.5, "half of the fake model")
        time.sleep(self._knobs.load_s)
        if self._knobs.load_errors:
            raise self._knobs.load_errors.pop(0)
        return FakeLoaded()

    def prepare(self, scenario: Scenario) -> Scenario:
        if any("unpreparable" in (request.prompt or "") for request in scenario.requests):
            raise ScenarioError("requests[0].prompt cannot be prepared; write another", "requests[0].prompt")
        self._on_progress("prepare", None, "tokenizing")
        return scenario

    def run(
        self,
        prepared: Scenario,
        run_id: str,
        on_step: Callable[[StepRecord, Mapping[str, str]], None],
        should_stop: Callable[[], bool],
    ) -> FakeResult:
        begin = time.perf_counter()
        if self._knobs.run_error is not None:
            raise self._knobs.run_error
        if any("lose the device" in (request.prompt or "") for request in prepared.requests):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        ids = prepared.request_ids()
        left = {request_id: r.max_tokens for request_id, r in zip(ids, prepared.requests, strict=True)}
        steps: list[StepRecord] = []
        try:
            while any(left.values()):
                if should_stop():
                    raise Cancelled("stopped")
                self._pause()
                self._knobs.collecting.append(gc.isenabled())
                steps.append(_step(len(steps), left, time.perf_counter() - begin))
                on_step(steps[-1], {output.request_id: "x" for output in steps[-1].outputs})
        finally:
            self._knobs.stretches.append(("run", run_id, begin, time.perf_counter()))
        texts = {i: "x" * r.max_tokens for i, r in zip(ids, prepared.requests, strict=True)}
        run = Run(header=_header(prepared, run_id), steps=steps, requests=_records(prepared))
        return FakeResult(run, texts, {i: list(text) for i, text in texts.items()})

    def serving(self) -> FakeServing:
        if self._serving is None:
            self._serving = self._knobs.serving = FakeServing(self._knobs, self._pause)
        return self._serving

    def calibrate(self) -> FakeCeilings:
        self._on_progress("calibrate", 0.5, "measuring")
        self._knobs.num_calibrations += 1
        return FakeCeilings(disturbed=self._knobs.num_calibrations < self._knobs.num_disturbed)

    def describe(self) -> dict:
        return {"device": {"name": "fake"}, "default_model": MODEL.model_dump(), "ceilings": None}

    def _pause(self) -> None:
        if self._knobs.gate is not None:
            assert self._knobs.gate.wait(20), "the test never opened its gate"
        time.sleep(self._knobs.step_s)


class FakeServing:
    """Answers "abcabc..." one character a step; each request holds one block. A prompt with "poison" is refused."""

    total_blocks = NUM_BLOCKS

    def __init__(self, knobs: Knobs, pause: Callable[[], None]) -> None:
        self._knobs = knobs
        self._pause = pause
        self._active: dict[str, tuple[GenerationSpec, int]] = {}
        self._num_added = 0

    @property
    def has_work(self) -> bool:
        return bool(self._active)

    @property
    def free_blocks(self) -> int:
        return self.total_blocks - len(self._active)

    @property
    def num_active(self) -> int:
        return len(self._active)

    def add(self, spec: GenerationSpec) -> str:
        if "poison" in "".join(chr(token_id) for token_id in spec.prompt):
            raise ScenarioError("the prompt does not fit the KV cache", "prompt")
        self._num_added += 1
        request_id = f"g{self._num_added}"
        self._active[request_id] = (spec, 0)
        return request_id

    def abort(self, request_id: str) -> bool:
        self._knobs.aborted.append(request_id)
        return self._active.pop(request_id, None) is not None

    def step(self) -> list[FakeEvent]:
        begin = time.perf_counter()
        self._pause()
        if self._knobs.step_error is not None:
            error, self._knobs.step_error = self._knobs.step_error, None
            raise error
        events = []
        for request_id, (spec, num_tokens) in list(self._active.items()):
            text = "abc"[num_tokens % 3]
            finish = "stop" if text in spec.stop else "length" if num_tokens + 1 == spec.max_tokens else None
            shown = "" if finish == "stop" else text
            events.append(FakeEvent(request_id, shown, [ord(text)], finish, len(spec.prompt), num_tokens + 1))
            if finish is None:
                self._active[request_id] = (spec, num_tokens + 1)
            else:
                del self._active[request_id]
        members = ",".join(event.request_id for event in events)
        self._knobs.stretches.append(("serve", members, begin, time.perf_counter()))
        return events


def _step(number: int, left: dict[str, int], now_s: float) -> StepRecord:
    rows = [request_id for request_id, num_left in left.items() if num_left]
    for request_id in rows:
        left[request_id] -= 1
    return StepRecord(
        step=number,
        t_begin_s=now_s,
        t_end_s=now_s,
        policy="chunked",
        backend="eager",
        scheduled=[Scheduled(request_id=r, start=number, num_tokens=1, phase="decode") for r in rows],
        queues=Queues(waiting=0, running=len(rows), finished=len(left) - len(rows)),
        blocks=Blocks(total=NUM_BLOCKS, free=NUM_BLOCKS, cached=0, in_use=0),
        outputs=[Output(request_id=r, token_id=120, finish_reason=None if left[r] else "length") for r in rows],
    )


def _header(scenario: Scenario, run_id: str) -> Header:
    return Header(
        run_id=run_id,
        created_utc="2026-01-01T00:00:00+00:00",
        scenario=scenario.model_dump(mode="json"),
        device=DeviceInfo(name="fake", type="cpu", threads=1, memory_bytes=1),
        model=MODEL,
        dtype=scenario.dtype,
        kv_dtype="float32",
        block_size=scenario.block_size,
        num_blocks=scenario.limits.num_blocks,
        versions={},
    )


def _records(scenario: Scenario) -> list[RequestRecord]:
    return [
        RequestRecord(
            request_id=request_id,
            num_prompt_tokens=len(request.prompt or "x"),
            num_output_tokens=request.max_tokens,
            arrival_s=request.arrival_s,
            first_scheduled_s=0.0,
            first_token_s=0.0,
            completion_s=0.0,
            num_preemptions=0,
            num_cached_tokens=0,
            finish_reason="length",
            output_token_ids=[120] * request.max_tokens,
        )
        for request_id, request in zip(scenario.request_ids(), scenario.requests, strict=True)
    ]


def main() -> int:
    """A real server process around the fake, with the options the supervisor passes."""
    from engine.server import app

    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--exit-with-parent", action="store_true")
    parser.add_argument("--step-s", type=float, default=0.001)
    options = parser.parse_args()
    knobs = Knobs(step_s=options.step_s)
    sock = app.bind(options.port)
    return app.serve(
        sock, "fake", lambda on_progress: FakeRuntime(knobs, on_progress), exit_with_parent=options.exit_with_parent
    )


if __name__ == "__main__":
    sys.exit(main())
