"""Live serving: the same engine, fed by requests that come and go, reporting text as it is made.

It is what the OpenAI API talks to. It decides nothing the policy does not; it gives each request an id, a text stream
and events. A request that is over is forgotten at once, so the engine stays small however long it serves.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.lab.records import FinishReason
from engine.lab.scenario import ScenarioError
from engine.model.load import LoadedModel
from engine.runtime.engine import Engine
from engine.runtime.text import TextStream
from engine.scheduling.requests import Request


class GenerationSpec(Protocol):
    """What to generate; ``prompt`` is already token ids."""

    prompt: Sequence[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stop: tuple[str, ...]
    ignore_eos: bool


@dataclass(frozen=True, slots=True)
class GenerationEvent:
    """What one step did for one request. ``finish_reason`` is set on its last event."""

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    num_prompt_tokens: int
    num_output_tokens: int


class ServingEngine:
    """Add requests at any time between steps; step while ``has_work``."""

    def __init__(self, loaded: LoadedModel, engine: Engine) -> None:
        self._loaded = loaded
        self._engine = engine
        self._requests: dict[str, Request] = {}
        self._ids = itertools.count()

    def add(self, spec: GenerationSpec) -> str:
        """Take a request. Returns its id. Raises: ScenarioError if it can never be served."""
        length = len(spec.prompt)
        if length + spec.max_tokens > self._loaded.max_positions:
            raise ScenarioError(
                f"the prompt has {length} tokens and max_tokens is {spec.max_tokens}; {self._loaded.info.name} has "
                f"{self._loaded.max_positions} positions in all",
                "max_tokens",
            )
        request = Request(
            request_id=f"g{next(self._ids)}",
            prompt_token_ids=list(spec.prompt),
            max_tokens=spec.max_tokens,
            arrival_s=self._engine.now_s(),
            temperature=spec.temperature,
            top_p=spec.top_p,
            top_k=spec.top_k,
            seed=spec.seed if spec.seed is not None else secrets.randbits(62),
        )
        ends = frozenset() if spec.ignore_eos else self._loaded.eos_token_ids
        self._engine.add(request, TextStream(self._loaded.tokenizer, spec.stop), ends)
        self._requests[request.request_id] = request
        return request.request_id

    def step(self) -> list[GenerationEvent]:
        """One forward pass. Returns an event for every request that got a token or ended."""
        record = self._engine.step()
        if record is None:
            return []
        events = []
        for output in record.outputs:
            request = self._requests.get(output.request_id)
            if request is None:
                continue
            events.append(
                GenerationEvent(
                    request_id=output.request_id,
                    text=self._engine.text_deltas.get(output.request_id, ""),
                    token_ids=() if output.token_id is None else (output.token_id,),
                    finish_reason=output.finish_reason,
                    num_prompt_tokens=request.num_prompt_tokens,
                    num_output_tokens=request.num_output_tokens,
                )
            )
            if output.finish_reason is not None:
                del self._requests[output.request_id]
        self._engine.forget_finished()
        return events

    def abort(self, request_id: str) -> bool:
        """End a request; its blocks are free when this returns. Safe to repeat."""
        self._requests.pop(request_id, None)
        return self._engine.abort(request_id)

    @property
    def has_work(self) -> bool:
        return self._engine.has_work

    @property
    def free_blocks(self) -> int:
        return self._engine.scheduler.pool.num_available

    @property
    def total_blocks(self) -> int:
        return self._engine.scheduler.pool.num_blocks
