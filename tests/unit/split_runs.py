"""What the tests of the multi-process engines share: the tiny model in one process and the rule for near ties."""

from __future__ import annotations

import os

from engine.lab.records import Run
from engine.lab.scenario import Limits, Scenario
from engine.model.load import LoadedModel
from engine.runtime.executor import TorchExecutor
from engine.runtime.lab import LabRuntime
from engine.runtime.workers import WorkerModel
from engine.scheduling.decision import Chunk
from engine.scheduling.requests import Request
from engine.settings import Settings
from tests.oracle.near_ties import Answer, count_near_ties

RUN_ID = "run-0123456789ab"
TIE = 1e-4  # logits this close may change places when rows are grouped otherwise


def prompt(num_tokens: int, seed: int = 0) -> list[int]:
    return [3 + (seed * 31 + i * i * 7 + i) % 250 for i in range(num_tokens)]


def request(name: str, num_tokens: int, max_tokens: int, arrival_s: float = 0.0, **more: object) -> dict:
    ids = prompt(num_tokens, len(name) + ord(name[-1]))
    asked = {"request_id": name, "prompt_token_ids": ids, "max_tokens": max_tokens, "arrival_s": arrival_s}
    return {"ignore_eos": True, **asked, **more}


def runtime_in(home) -> LabRuntime:
    return LabRuntime(Settings(home, f"sqlite:///{home}/lab.sqlite3", 8600, "tiny-random"))


def worker_model(home) -> WorkerModel:
    return WorkerModel("tiny-random", "float32", None, home, "torch", 1)


def run(runtime: LabRuntime, scenario: Scenario) -> Run:
    return runtime.run(runtime.prepare(scenario), RUN_ID).run


def gaps(loaded: LoadedModel, prompt_ids: list[int], token_ids: list[int]) -> list[float]:
    """How far apart the two best logits were at each output token, the request alone and whole."""
    found = []
    for i in range(len(token_ids)):
        tokens = prompt_ids + token_ids[:i]
        executor = TorchExecutor(loaded, Limits(num_blocks=len(tokens) // 16 + 1), 16)
        chunk = Chunk(Request("a", tokens, 1), 0, len(tokens), "prefill", list(range(len(tokens) // 16 + 1)), True)
        best = executor.forward(executor.prepare([chunk]))[0].topk(2).values
        found.append(float(best[0] - best[1]))
    return found


def assert_same_tokens(loaded: LoadedModel, ours: Run, single: Run) -> None:
    """Every output equals the single engine's, but where the model itself hesitates."""
    differing = [
        (a, b) for a, b in zip(ours.requests, single.requests, strict=True) if a.output_token_ids != b.output_token_ids
    ]
    prompts = {r["request_id"]: list(r["prompt_token_ids"]) for r in single.header.scenario["requests"]}
    for mine, theirs in differing:
        ids = prompts[theirs.request_id]
        answer = Answer(ids, theirs.output_token_ids, gaps(loaded, ids, theirs.output_token_ids))
        count_near_ties([answer], [mine.output_token_ids], TIE)
    assert len(differing) <= 1, f"near ties are rare, and {len(differing)} outputs differ"


def is_gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False
