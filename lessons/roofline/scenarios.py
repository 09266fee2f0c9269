"""The workloads of the roofline lesson: prompts of several lengths, each alone, and decode of several requests at once.

It decides how many tokens and requests give a point that a slow processor measures within two seconds. Every part has
the same number of KV blocks, so that the engine keeps its cache from one part to the next. It never runs anything.
"""

from __future__ import annotations

from engine.lab.scenario import DEFAULT_MODEL, DType, Limits, RequestSpec, Scenario, ScenarioError
from lessons.parts import Part
from lessons.text import Lang

PREFILL_LENGTHS = (8, 32, 128, 512)
DECODE_BATCHES = (1, 2, 4, 8, 16)
REPEATS = {8: 6, 32: 6, 128: 4, 512: 3}  # prompts of one length; the shorter, the more a single one is disturbed
NUM_BLOCKS = 96
CONTEXT_TOKENS = 16  # prompt of a request that is there to decode
DECODE_TOKENS = 20
ROLES = tuple([f"prefill_{n}" for n in PREFILL_LENGTHS] + [f"decode_{n}" for n in DECODE_BATCHES])

_PROMPTS: dict[Lang, str] = {
    "en": "A processor waits for its memory far more often than most people think, and what it waits for is data.",
    "zh": "处理器等内存的时间，比多数人想的要多得多；它等的，就是数据。",
}


def size_of(role: str) -> int:
    """Prompt tokens of a prefill part, requests of a decode part. Pure."""
    return int(role.rpartition("_")[2])


def scenario(role: str, dtype: DType = "float32", lang: Lang = "en", *, model: str = DEFAULT_MODEL) -> Scenario:
    """The part ``role`` of the study. Raises: ScenarioError."""
    if role not in ROLES:
        raise ScenarioError(f"role is {role[:40]!r}; allowed: {', '.join(ROLES)}", "role")
    size = size_of(role)
    prefill = role.startswith("prefill")
    count, prompt_tokens, max_tokens = (REPEATS[size], size, 1) if prefill else (size, CONTEXT_TOKENS, DECODE_TOKENS)
    requests = tuple(
        RequestSpec(
            request_id=f"r{index + 1}",
            prompt=_PROMPTS[lang],
            num_prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            ignore_eos=True,
        )
        for index in range(count)
    )
    limits = Limits(max_requests=1 if prefill else size, max_batch_tokens=512, num_blocks=NUM_BLOCKS)
    return Scenario(
        name=f"roofline/{role}", model=model, policy="chunked", limits=limits, dtype=dtype, requests=requests
    )


def default_parts(lang: Lang) -> list[Part]:
    """See ``lessons.parts``."""
    return [Part(role, scenario(role, lang=lang)) for role in ROLES]
