"""The workload of the last lesson: several equal requests at once, so that a learner can predict the whole run.

It decides which sizes are offered; all are such that memory and time follow from the course's formulas, with a
calculator. It never runs anything. The number of KV blocks is the same for all, so that the engine keeps its cache.
"""

from __future__ import annotations

from engine.lab.scenario import DEFAULT_MODEL, DType, Limits, RequestSpec, Scenario, ScenarioError
from lessons.parts import Part
from lessons.text import Lang

REQUESTS = (1, 4, 8, 16)
PROMPT_TOKENS = (16, 64, 128)
OUTPUT_TOKENS = (17, 33, 65)
NUM_BLOCKS = 208  # enough for the largest choice

_PROMPTS: dict[Lang, str] = {
    "en": "Tell a guest in plain words what happens between a question and the last word of its answer.",
    "zh": "请用平实的话告诉一位客人：从提出问题到答完最后一个字，中间发生了什么。",
}


def whole_run(
    num_requests: int = 8,
    prompt_tokens: int = 64,
    output_tokens: int = 33,
    dtype: DType = "float32",
    lang: Lang = "en",
    *,
    model: str = DEFAULT_MODEL,
) -> Scenario:
    """``num_requests`` requests that arrive together and all want ``output_tokens``. Raises: ScenarioError."""
    for name, value, allowed in (
        ("num_requests", num_requests, REQUESTS),
        ("prompt_tokens", prompt_tokens, PROMPT_TOKENS),
        ("output_tokens", output_tokens, OUTPUT_TOKENS),
    ):
        if value not in allowed:
            raise ScenarioError(f"{name} is {value}; allowed: {', '.join(map(str, allowed))}", name)
    requests = tuple(
        RequestSpec(
            request_id=f"r{index}",
            prompt=_PROMPTS[lang],
            num_prompt_tokens=prompt_tokens,
            max_tokens=output_tokens,
            ignore_eos=True,
        )
        for index in range(1, num_requests + 1)
    )
    limits = Limits(max_requests=num_requests, max_batch_tokens=512, num_blocks=NUM_BLOCKS)
    return Scenario(name="summary", model=model, policy="chunked", limits=limits, dtype=dtype, requests=requests)


def default_parts(lang: Lang) -> list[Part]:
    """See ``lessons.parts``."""
    return [Part("run", whole_run(lang=lang))]
