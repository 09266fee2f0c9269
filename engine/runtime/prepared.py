"""A Scenario that can run: what has to be there before its clock starts, and what is left when it is over.

It decides which scenarios this engine cannot serve, and says so in one sentence before anything runs. It loads nothing
and runs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.lab.records import Run
from engine.lab.scenario import Scenario, ScenarioError
from engine.model.load import LoadedModel
from engine.runtime.prompts import prompt_token_ids
from engine.runtime.training import require_training_fits
from engine.scheduling.policies import POLICIES
from engine.scheduling.requests import Request


class RunCancelled(Exception):
    """The run was stopped before its end. Nothing of it is kept."""


@dataclass(frozen=True)
class PreparedRun:
    """A Scenario that can run: its model is loaded, its prompts are token ids, its requests fit."""

    scenario: Scenario
    loaded: LoadedModel
    prompts: tuple[list[int], ...]  # token ids, in the order of the scenario's requests

    def requests(self) -> list[Request]:
        """The requests as the engine wants them, new ones at every call: a request changes as it is served. Pure."""
        return [
            Request(
                request_id=name,
                prompt_token_ids=ids,
                max_tokens=spec.max_tokens,
                arrival_s=spec.arrival_s,
                ignore_eos=spec.ignore_eos,
                temperature=spec.temperature,
                top_p=spec.top_p,
                top_k=spec.top_k,
                seed=spec.seed if spec.seed is not None else (self.scenario.seed + index) % 2**63,
            )
            for index, (name, ids, spec) in enumerate(
                zip(self.scenario.request_ids(), self.prompts, self.scenario.requests, strict=True)
            )
        ]


@dataclass(frozen=True)
class PreparedOutside:
    """A Scenario for another server: nothing of it needs this engine's model."""

    scenario: Scenario


@dataclass(frozen=True)
class RunResult:
    """A finished run with what its tokens say. ``pieces``: one text per output token, for display."""

    run: Run
    texts: dict[str, str]
    pieces: dict[str, list[str]]


def require_available(scenario: Scenario) -> None:
    """Raises: ScenarioError for what a scenario may say and this engine does not do."""
    if scenario.policy not in POLICIES:
        raise ScenarioError(f"policy is {scenario.policy!r}; this engine has: {', '.join(sorted(POLICIES))}", "policy")
    if "training_step" in scenario.probes and scenario.num_kv_heads is not None:
        raise ScenarioError("training_step learns with the model's own KV heads; leave num_kv_heads out", "probes")
    if "training_step" in scenario.probes and scenario.weights is not None:
        raise ScenarioError(
            f"probes holds training_step and weights is {scenario.weights!r}; quantized weights cannot be trained, so "
            "leave one of them out",
            "probes",
        )


def tokenized(scenario: Scenario, loaded: LoadedModel) -> PreparedRun:
    """The scenario with its prompts as token ids, each checked against the model. Pure. Raises: ScenarioError."""
    prompts = []
    most_tokens: dict[str, int] = {}  # the longest the text of each request can get
    for name, spec in zip(scenario.request_ids(), scenario.requests, strict=True):
        ids = prompt_token_ids(spec, name, loaded.tokenizer, loaded.info.vocab_size)
        num_prompt_tokens = len(ids) + (most_tokens[spec.follows] if spec.follows else 0)
        most_tokens[name] = num_prompt_tokens + spec.max_tokens
        if most_tokens[name] > loaded.max_positions:
            raise ScenarioError(
                f"request {name} has {num_prompt_tokens} prompt tokens and max_tokens {spec.max_tokens}; "
                f"{loaded.info.name} "
                f"has {loaded.max_positions} positions in all, so shorten the prompt or the output",
                "max_tokens",
            )
        prompts.append(ids)
    if "training_step" in scenario.probes:
        require_training_fits(loaded, num_prompt_tokens)  # of the last request
    return PreparedRun(scenario, loaded, tuple(prompts))
