"""The workloads of the chunked-prefill lesson: some requests decode, then a long prompt arrives among them.

It decides when the long prompt arrives: after a few tokens of the others, as the Run without it has timed them, so that
it meets them decoding on a fast card and on a slow laptop alike. It never runs anything. Invariant: all parts but
``without`` serve the same requests; they differ in the policy (``whole``) or in ``max_batch_tokens`` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.lab.metrics import token_times
from engine.lab.records import Run
from engine.lab.scenario import DEFAULT_MODEL, DType, Limits, RequestSpec, Scenario, ScenarioError
from lessons.facts_error import FactsError
from lessons.parts import Part
from lessons.text import Lang

OTHERS = (3, 6, 12)
LENGTHS = (192, 384, 768)  # tokens of the long prompt
DEFAULT_OTHERS, DEFAULT_LENGTH = 6, 384
BUDGETS = (32, 64, 128, 256)  # max_batch_tokens of the chunked runs
WITHOUT, WHOLE = "without", "whole"
CHUNKED = {f"budget_{budget}": budget for budget in BUDGETS}
ROLES = (WITHOUT, WHOLE, *CHUNKED)
LONG = "long"
WHOLE_BUDGET = 1_024  # more than the longest prompt and everybody's tokens: nothing is ever cut
OTHER_PROMPT, OTHER_TOKENS = 16, 48
LONG_TOKENS = 4
TOKENS_BEFORE = 8  # the others have so many tokens when the long prompt arrives
NUM_BLOCKS = 120

_OTHER: dict[Lang, str] = {
    "en": "Tell me in a few sentences what a conductor does while the orchestra is playing.",
    "zh": "请用几句话说说，乐队演奏的时候，指挥在做些什么。",
}
_LONG: dict[Lang, str] = {
    "en": "Here are the minutes of the meeting. We first went through the open points of last week, then through the "
    "budget, and at last we spoke about who takes the key of the hall. Please sum up what was decided. ",
    "zh": "下面是会议记录。我们先讨论了上周没有办完的事，再讨论了预算，"
    "最后商量由谁保管会议室的钥匙。请把会议的决定归纳一下。",
}


def budget_of(role: str) -> int:
    """``max_batch_tokens`` of a part. Pure."""
    return CHUNKED.get(role, WHOLE_BUDGET)


def without(others: int, dtype: DType = "float32", lang: Lang = "en", *, model: str = DEFAULT_MODEL) -> Scenario:
    """The decoders alone: what their gaps are when nobody disturbs them. Raises: ScenarioError."""
    return _scenario(WITHOUT, others, dtype, lang, model)


def disturbed(
    role: str,
    others: int,
    length: int,
    arrival_s: float,
    dtype: DType = "float32",
    lang: Lang = "en",
    *,
    model: str = DEFAULT_MODEL,
) -> Scenario:
    """The decoders and a prompt of ``length`` tokens that arrives at ``arrival_s``. Raises: ScenarioError."""
    if role not in (WHOLE, *CHUNKED):
        raise ScenarioError(f"role is {role[:40]!r}; allowed: {', '.join((WHOLE, *CHUNKED))}", "role")
    if length not in LENGTHS:
        raise ScenarioError(f"length is {length}; allowed: {', '.join(map(str, LENGTHS))}", "length")
    long = RequestSpec(
        request_id=LONG,
        arrival_s=round(arrival_s, 4),
        prompt=_LONG[lang],
        num_prompt_tokens=length,
        max_tokens=LONG_TOKENS,
        ignore_eos=True,
    )
    return _scenario(role, others, dtype, lang, model, (long,))


def later(label: str, asked: Mapping[str, Any], runs: Mapping[str, Run]) -> Scenario:
    """A part with the long prompt, timed by the Run without it (see ``lessons.later``). Raises: FactsError."""
    arrival_s = arrival_for(runs)
    return disturbed(label, int(asked["others"]), int(asked["length"]), arrival_s, asked["dtype"], asked["lang"])


def arrival_for(runs: Mapping[str, Run]) -> float:
    """When every decoder had ``TOKENS_BEFORE`` tokens in the Run without the long prompt. Raises: FactsError."""
    run = runs.get(WITHOUT)
    times = token_times(run).values() if run is not None else ()
    if not times or any(len(tokens) <= TOKENS_BEFORE for tokens in times):
        raise FactsError("there is no finished run of the others alone yet; run the whole study")
    return max(tokens[TOKENS_BEFORE - 1].t_s for tokens in times)


def _scenario(
    role: str, others: int, dtype: DType, lang: Lang, model: str, more: tuple[RequestSpec, ...] = ()
) -> Scenario:
    if others not in OTHERS:
        raise ScenarioError(f"others is {others}; allowed: {', '.join(map(str, OTHERS))}", "others")
    requests = tuple(
        RequestSpec(
            request_id=f"d{index}",
            prompt=_OTHER[lang],
            num_prompt_tokens=OTHER_PROMPT,
            max_tokens=OTHER_TOKENS,
            ignore_eos=True,
        )
        for index in range(1, others + 1)
    )
    return Scenario(
        name=f"chunked_prefill/{role}",
        model=model,
        policy="paged" if role == WHOLE else "chunked",
        limits=Limits(max_requests=max(OTHERS) + 1, max_batch_tokens=budget_of(role), num_blocks=NUM_BLOCKS),
        dtype=dtype,
        requests=requests + more,
    )


def default_parts(lang: Lang) -> list[Part]:
    """See ``lessons.parts``."""
    asked = {"others": DEFAULT_OTHERS, "length": DEFAULT_LENGTH, "dtype": "float32", "lang": lang}
    return [Part(WITHOUT, without(DEFAULT_OTHERS, lang=lang))] + [Part(role, None, asked) for role in ROLES[1:]]
