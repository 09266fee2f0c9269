"""What the bench measures: which cases, on which prompts, at which precisions. Nothing here measures or prints.

Everything is drawn from fixed seeds, so two runs, on two machines or years apart, ask for the same work.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from engine.bench.results import BenchError
from engine.scheduling.policies import POLICIES

SUITES = ("roofs", "scheduler", "start", "decode", "prefill", "streams", "mixed")
PEERS = ("hf", "llamacpp", "vllm")
PRECISIONS = ("bfloat16", "int8", "int4")
PRECISIONS_OF = {"ours": PRECISIONS, "hf": ("bfloat16",), "llamacpp": PRECISIONS, "vllm": ("bfloat16",)}
NAMES_IN = {"llamacpp": {"bfloat16": "BF16", "int8": "Q8_0", "int4": "Q4_1"}}

FIRST_TEXT = (
    "Explain in plain words what a key-value cache is, and why a server of language models keeps one for each user."
)
NUM_FIRST_TOKENS = 20
NUM_TEXT_TOKENS = 16  # greedy tokens of every system, to see that they hold the same model
VOCABULARY = range(1_000, 40_000)  # ids that every model of interest has, none of them special
STREAM_CONTEXT = 32


@dataclass(frozen=True)
class Plan:
    """How much is measured. ``quick`` keeps every kind of case and makes all of them small."""

    repeats: int = 5
    contexts: tuple[int, ...] = (64, 1_024)
    decode_tokens: int = 32
    prompts: tuple[int, ...] = (128, 512, 2_048)
    streams: tuple[int, ...] = (2, 4, 8, 16, 32)
    stream_tokens: int = 8
    num_requests: int = 32
    max_requests: int = 16
    policies: tuple[str, ...] = tuple(POLICIES)

    @classmethod
    def quick(cls, repeats: int) -> Plan:
        return cls(repeats, (64,), 4, (64,), (2,), 4, 4, 2, ("static", "chunked"))

    def cases(self, system: str, precision: str, suites: Sequence[str]) -> list[dict]:
        """The cases one process measures, in order. Pure."""
        found = [case for suite, make in _MAKERS.items() if suite in suites for case in make(self)]
        if precision != "bfloat16":
            found = [case for case in found if case["suite"] == "decode"]
        if system != "ours":  # a peer has one way to serve
            found = [case for case in found if case.get("policy", self.policies[0]) == self.policies[0]]
            found = [{**case, "policy": "", "name": "mixed"} if case["suite"] == "mixed" else case for case in found]
        return found

    def decode_cases(self) -> list[dict]:
        return [
            _case("decode", context, prompts=[tokens(context, context)], num_tokens=self.decode_tokens)
            for context in self.contexts
        ]

    def prefill_cases(self) -> list[dict]:
        return [_case("prefill", n, prompts=[tokens(max(n // 4, 1), n + 1), tokens(n, n)]) for n in self.prompts]

    def stream_cases(self) -> list[dict]:
        return [
            _case("streams", n, prompts=[tokens(STREAM_CONTEXT, i) for i in range(n)], num_tokens=self.stream_tokens)
            for n in self.streams
        ]

    def mixed_cases(self) -> list[dict]:
        requests = workload(self.num_requests)
        return [
            _case("mixed", policy, requests=requests, max_requests=self.max_requests, policy=policy)
            for policy in self.policies
        ]


_MAKERS = {
    "decode": Plan.decode_cases,
    "prefill": Plan.prefill_cases,
    "streams": Plan.stream_cases,
    "mixed": Plan.mixed_cases,
}


def _case(suite: str, what: object, **parts: object) -> dict:
    return {"suite": suite, "name": f"{suite} {what}", **parts}


def tokens(count: int, seed: int) -> list[int]:
    """So many token ids. Speed does not depend on what a text says. Pure."""
    return random.Random(seed).choices(VOCABULARY, k=count)


def workload(num_requests: int) -> list[dict]:
    """Prompts of 8 to 128 tokens, outputs of 4 to 64, most short and a few long, as in a chat. Pure."""
    dice = random.Random(2026)
    lengths = [(round(8 * 16 ** dice.random()), round(4 * 16 ** dice.random())) for _ in range(num_requests)]
    return [{"prompt": tokens(prompt, i), "num_tokens": output} for i, (prompt, output) in enumerate(lengths)]


def spread_of_lengths(requests: Sequence[dict]) -> str:
    """The workload in one sentence. Pure."""

    def told(values: list[int]) -> str:
        return f"{min(values)} to {max(values)} tokens (median {statistics.median(values):g})"

    prompts = [len(request["prompt"]) for request in requests]
    outputs = [request["num_tokens"] for request in requests]
    return f"{len(requests)} requests, all there at once; prompts of {told(prompts)}, outputs of {told(outputs)}"


def chosen(option: str, text: str, allowed: Sequence[str]) -> list[str]:
    """The names of a comma-separated list, in the order of ``allowed``. Pure. Raises: BenchError for an unknown one."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in allowed:
            raise BenchError(f"{option} names {name!r}; allowed: {', '.join(allowed)}, separated by commas")
    return [name for name in allowed if name in names]
