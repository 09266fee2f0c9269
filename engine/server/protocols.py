"""What the server needs of the engine's runtime, as types only.

The real thing is ``engine.runtime.lab.LabRuntime``, which imports torch; the tests use a fake. Every call on a Runtime
and on a ServingEngine is made from the worker thread; a Tokenizer is also used from pool threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from engine.lab.records import ModelInfo, StepRecord
from engine.lab.scenario import Scenario
from engine.server.jobs import GenerationSpec
from engine.server.runs import RunResult

OnProgress = Callable[[str, float | None, str], None]


class Tokenizer(Protocol):
    def encode(self, text: str) -> list[int]: ...
    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]: ...
    def piece(self, token_id: int) -> str: ...


class LoadedModel(Protocol):
    info: ModelInfo
    tokenizer: Tokenizer
    max_positions: int


class GenerationEvent(Protocol):
    request_id: str
    text: str
    token_ids: Sequence[int]
    finish_reason: str | None
    num_prompt_tokens: int
    num_output_tokens: int


class Ceilings(Protocol):
    disturbed: bool


class ServingEngine(Protocol):
    has_work: bool
    free_blocks: int
    total_blocks: int

    def add(self, spec: GenerationSpec) -> str: ...
    def step(self) -> list[GenerationEvent]: ...
    def abort(self, request_id: str) -> object: ...


class Runtime(Protocol):
    def load(self, model: str, dtype: str) -> LoadedModel: ...
    def prepare(self, scenario: Scenario) -> object: ...
    def run(
        self,
        prepared: object,
        run_id: str,
        on_step: Callable[[StepRecord | None, Mapping[str, str]], None],
        should_stop: Callable[[], bool],
    ) -> RunResult: ...
    def serving(self) -> ServingEngine: ...
    def calibrate(self) -> Ceilings: ...
    def describe(self) -> dict[str, Any]: ...


RuntimeFactory = Callable[[OnProgress], Runtime]
