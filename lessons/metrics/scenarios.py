"""The workloads of the metrics lesson: one request alone, two full batches, then like requests at several loads.

It decides how a load is offered (an open loop: requests arrive by a clock, whatever the engine has done) and how large
each is, from the capacity that the full batches have shown. A sweep so fits a laptop and a data-centre card alike, and
stays under a minute. Arrivals are a seeded Poisson process, given its number and its first and last arrival: their mean
rate is exactly the load that is asked for. It never runs anything.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from typing import Any

from engine.lab.metrics import makespan_s
from engine.lab.records import Run
from engine.lab.scenario import DEFAULT_MODEL, DType, Limits, RequestSpec, Scenario, ScenarioError
from lessons.facts_error import FactsError
from lessons.parts import Part
from lessons.text import Lang

PLACES = (4, 8, 16)
DEFAULT_PLACES = 8
SEED = 1
SHARES: Mapping[str, float] = {"load_1": 0.25, "load_2": 0.5, "load_3": 0.75, "load_4": 1.0, "load_5": 1.5}
ROLES = ("alone", "burst", *SHARES)
PROMPT_TOKENS = 24
OUTPUT_TOKENS = 16
NUM_BLOCKS = 96
NUM_BATCHES = 2  # full batches, one after the other, from which the capacity is taken
WINDOW_S = 5.0  # for so long requests arrive, unless there are too few or too many of them
LONGEST_WINDOW_S = 8.0
FEWEST, MOST = 4, 96  # requests of one load

_PROMPTS: dict[Lang, tuple[str, ...]] = {
    "en": (
        "Explain in simple words why a queue grows when people come faster than they can be served.",
        "Describe the way of a letter from the sender to the reader, step by step.",
        "What should one look at when comparing two trains, their speed or how often they leave?",
        "Write a short note to a colleague who waits too long for an answer.",
    ),
    "zh": (
        "用简单的话解释：来的人比服务得过来的多，队伍为什么会越排越长？",
        "一封信从寄信人到收信人手里，要经过哪些步骤？请一步一步地讲。",
        "比较两班火车，应该看它跑得多快，还是看多久发一班？请说说理由。",
        "给一位等回复等得太久的同事写一张简短的便条，语气要客气一些。",
    ),
}


def alone(places: int = 8, dtype: DType = "float32", lang: Lang = "en", *, model: str = DEFAULT_MODEL) -> Scenario:
    """One request on the idle engine. Raises: ScenarioError."""
    return _scenario("alone", [0.0], places, dtype, lang, model)


def burst(places: int = 8, dtype: DType = "float32", lang: Lang = "en", *, model: str = DEFAULT_MODEL) -> Scenario:
    """Twice as many requests as there are places, all at once: what the device carries. Raises: ScenarioError."""
    return _scenario("burst", [0.0] * (NUM_BATCHES * places), places, dtype, lang, model)


def load(
    role: str,
    capacity_rps: float,
    places: int = 8,
    dtype: DType = "float32",
    lang: Lang = "en",
    seed: int = 1,
    *,
    model: str = DEFAULT_MODEL,
) -> Scenario:
    """The load ``role``, a share of the capacity in requests per second. Raises: ScenarioError."""
    if role not in SHARES:
        raise ScenarioError(f"role is {role[:40]!r}; allowed: {', '.join(SHARES)}", "role")
    rate = SHARES[role] * capacity_rps
    count = min(max(round(rate * WINDOW_S), FEWEST), MOST)
    window_s = min((count - 1) / rate, LONGEST_WINDOW_S)
    return _scenario(role, arrivals(count, window_s, seed), places, dtype, lang, model, seed)


def arrivals(count: int, window_s: float, seed: int) -> list[float]:
    """Arrival times: exponential gaps, scaled so that the first is at 0 and the last at ``window_s``. Pure."""
    rng = random.Random(seed)
    gaps = [rng.expovariate(1.0) for _ in range(count - 1)]
    ends = itertools.accumulate(gaps, initial=0.0)
    return [round(end / sum(gaps) * window_s, 4) for end in ends]


def later(label: str, asked: Mapping[str, Any], runs: Mapping[str, Run]) -> Scenario:
    """A load of the sweep, sized by the Run of the full batches (see ``lessons.later``). Raises: FactsError."""
    return load(label, capacity_rps(runs), int(asked["places"]), asked["dtype"], asked["lang"], int(asked["seed"]))


def capacity_rps(runs: Mapping[str, Run]) -> float:
    """Requests per second that the device carries with all places taken, from the full batches. Raises: FactsError."""
    run = runs.get("burst")
    span = makespan_s(run) if run is not None else None
    if not span or any(r.completion_s is None or r.finish_reason == "abort" for r in run.requests):
        raise FactsError("there is no finished run of full batches yet; run the whole study")
    return len(run.requests) / span


def _scenario(
    role: str, times: list[float], places: int, dtype: DType, lang: Lang, model: str, seed: int = 0
) -> Scenario:
    if places not in PLACES:
        raise ScenarioError(f"places is {places}; allowed: {', '.join(map(str, PLACES))}", "places")
    prompts = _PROMPTS[lang]
    requests = tuple(
        RequestSpec(
            request_id=f"r{index + 1}",
            arrival_s=time_s,
            prompt=prompts[index % len(prompts)],
            num_prompt_tokens=PROMPT_TOKENS,
            max_tokens=OUTPUT_TOKENS,
            ignore_eos=True,
        )
        for index, time_s in enumerate(times)
    )
    return Scenario(
        name=f"metrics/{role}",
        model=model,
        policy="chunked",
        limits=Limits(max_requests=places, max_batch_tokens=256, num_blocks=NUM_BLOCKS),
        dtype=dtype,
        seed=seed,
        requests=requests,
    )


def default_parts(lang: Lang) -> list[Part]:
    """See ``lessons.parts``."""
    asked = {"places": DEFAULT_PLACES, "dtype": "float32", "lang": lang, "seed": SEED}
    first = [
        Part("alone", alone(DEFAULT_PLACES, lang=lang)),
        Part("burst", burst(DEFAULT_PLACES, lang=lang)),
    ]
    return first + [Part(role, None, asked) for role in SHARES]
