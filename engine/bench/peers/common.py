"""What every measured system does in its process: load, say it is ready, then the asked cases one after the other.

A peer's script runs with that peer's own interpreter, so this module needs the standard library only. A system gives
three methods (``System``); what is timed, what is warm-up and what is left out is decided here, once for all, so that
no system is measured in a way of its own. A result is one line on stdout behind ``MARK``; other output is ignored.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Protocol

MARK = "@bench "
WARM_STEPS = 3  # decode steps that are not counted: caches, thread pools and compilers settle


@dataclass
class Timing:
    """One call of ``generate``: when the first tokens of all prompts were there, and how long each later step took."""

    first_s: float
    steps_s: list[float]
    tokens: list[list[int]] = field(default_factory=list)  # by prompt


class System(Protocol):
    def load(self, job: dict) -> dict:
        """Be ready to serve. Returns facts: ``versions``, ``weight_bytes`` (read for one token), ``notes``."""

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Timing:
        """All prompts side by side, greedily, so many tokens each, nothing kept from earlier calls."""

    def serve(self, requests: list[dict], max_requests: int, policy: str) -> tuple[float, int]:
        """Requests {prompt, num_tokens}, all there at once, at most so many at a time.

        Returns seconds until the last one is done, and output tokens that were asked for.
        """


def main(system: System) -> None:
    job = json.load(sys.stdin)
    facts = system.load(job)
    ready_s = time.time() - job["spawned_at"]
    first = system.generate([job["first_prompt"]], 1)
    say("start", ready_s=ready_s, first_token_s=first.first_s, **facts)
    say("text", tokens=system.generate([job["first_prompt"]], job["num_text_tokens"]).tokens[0])
    for case in job["cases"]:
        CASES[case["suite"]](system, case)
    say("end", peak_bytes=peak_bytes())


def say(kind: str, **values: object) -> None:
    sys.stdout.write(MARK + json.dumps({"kind": kind, **values}) + "\n")
    sys.stdout.flush()


def _steps(system: System, case: dict) -> None:
    """decode and streams: the median decode step. Effect: says it."""
    timing = system.generate(case["prompts"], case["num_tokens"] + WARM_STEPS + 1)
    step_s = statistics.median(timing.steps_s[WARM_STEPS:])
    say("result", case=case["name"], seconds=step_s)


def _prefill(system: System, case: dict) -> None:
    """The second of two prompts: the first, shorter one is the warm-up. Effect: says it."""
    for index, prompt in enumerate(case["prompts"]):
        timing = system.generate([prompt], 1)
        if index == len(case["prompts"]) - 1:
            say("result", case=case["name"], seconds=timing.first_s)


def _mixed(system: System, case: dict) -> None:
    seconds, num_tokens = system.serve(case["requests"], case["max_requests"], case["policy"])
    say("result", case=case["name"], seconds=seconds, num_tokens=num_tokens)


CASES = {"decode": _steps, "streams": _steps, "prefill": _prefill, "mixed": _mixed}


def peak_bytes() -> int:
    """Most memory this process, or a child it has waited for, ever held."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
