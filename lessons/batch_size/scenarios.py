"""The workloads of the batching lesson: one decode with 1 to 32 requests at once, and a batch of unequal lengths.

It decides sizes that a slow processor gets through in a minute. Every part has the same number of KV blocks, so that
the engine keeps its cache from one part to the next. It never runs anything. Invariant: the parts ``batch_<n>`` differ
in the number of requests alone.
"""

from __future__ import annotations

from types import MappingProxyType

from engine.lab.scenario import DEFAULT_MODEL, DType, Limits, RequestSpec, Scenario, ScenarioError
from lessons.parts import Part
from lessons.text import Lang

BATCHES = (1, 2, 4, 8, 16, 32)
UNEVEN = "uneven"
ROLES = (*(f"batch_{n}" for n in BATCHES), UNEVEN)
CONTEXTS = (16, 128)  # prompt tokens of each request
NUM_BLOCKS = MappingProxyType({16: 96, 128: 320})
DECODE_TOKENS = 24
UNEVEN_LENGTHS = (40, 8, 8, 8, 8, 8, 8, 8)
UNEVEN_CONTEXT = 16  # its padding is the same at any context

_PROMPTS: dict[Lang, str] = {
    "en": "Eight people in one lift reach the top no later than one does, and the lift has made the way only once.",
    "zh": "一部电梯载八个人到顶楼，并不比载一个人慢，而电梯只跑了一趟。",
}


def size_of(role: str) -> int:
    """Requests of a part ``batch_<n>``. Pure."""
    return int(role.rpartition("_")[2])


def scenario(
    role: str, dtype: DType = "float32", context: int = CONTEXTS[0], lang: Lang = "en", *, model: str = DEFAULT_MODEL
) -> Scenario:
    """The part ``role`` of the study with ``context`` prompt tokens a request. Raises: ScenarioError."""
    if role not in ROLES:
        raise ScenarioError(f"role is {role[:40]!r}; allowed: {', '.join(ROLES)}", "role")
    if context not in CONTEXTS:
        raise ScenarioError(f"context is {context}; allowed: {', '.join(map(str, CONTEXTS))}", "context")
    lengths = UNEVEN_LENGTHS if role == UNEVEN else (DECODE_TOKENS,) * size_of(role)
    requests = tuple(
        RequestSpec(
            request_id=f"r{index}",
            prompt=_PROMPTS[lang],
            num_prompt_tokens=UNEVEN_CONTEXT if role == UNEVEN else context,
            max_tokens=num_tokens,
            ignore_eos=True,
        )
        for index, num_tokens in enumerate(lengths, start=1)
    )
    return Scenario(
        name=f"batch_size/{role}",
        model=model,
        policy="static" if role == UNEVEN else "chunked",
        limits=Limits(max_requests=len(requests), max_batch_tokens=512, num_blocks=NUM_BLOCKS[context]),
        dtype=dtype,
        requests=requests,
    )


def default_parts(lang: Lang) -> list[Part]:
    """See ``lessons.parts``."""
    return [Part(role, scenario(role, lang=lang)) for role in ROLES]
