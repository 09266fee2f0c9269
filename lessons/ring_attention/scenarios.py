"""The workload of the ring attention lesson: one long prompt, by one worker and by a ring of several.

It decides lengths that two slow cores get through in half a minute. It never runs anything. Invariant: both parts run
the same code on the same prompt and differ in the number of workers alone.
"""

from __future__ import annotations

from engine.lab.scenario import DEFAULT_MODEL, DType, Limits, RequestSpec, Ring, Scenario, ScenarioError
from lessons.parts import Part
from lessons.text import Lang

ROLES = ("alone", "ring")
LENGTHS = (1024, 512, 2048)  # prompt tokens
WORKERS = (2, 3, 4)
LAYOUTS = ("contiguous", "zigzag")
OUTPUT_TOKENS = 6
NUM_BLOCKS = 160

_PROMPT: dict[Lang, str] = {
    "en": "The keeper of the lighthouse wrote down every hour what he saw: ships, weather, birds, and the light. ",
    "zh": "灯塔看守人每过一小时就记下他看到的东西：船、天气、鸟，还有灯光。",
}


def scenario(
    role: str,
    length: int = LENGTHS[0],
    workers: int = WORKERS[0],
    layout: str = LAYOUTS[0],
    lang: Lang = "en",
    dtype: DType = "float32",
    *,
    model: str = DEFAULT_MODEL,
) -> Scenario:
    """The part ``role``: one worker with the whole prompt, or a ring. Raises: ScenarioError."""
    for name, value, allowed in (
        ("role", role, ROLES),
        ("length", length, LENGTHS),
        ("workers", workers, WORKERS),
        ("layout", layout, LAYOUTS),
    ):
        if value not in allowed:
            raise ScenarioError(f"{name} is {str(value)[:40]!r}; allowed: {', '.join(sorted(map(str, allowed)))}", name)
    return Scenario(
        name=f"ring_attention/{role}",
        model=model,
        policy="chunked",
        limits=Limits(max_requests=1, max_batch_tokens=2048, num_blocks=NUM_BLOCKS),
        ring=Ring(num_workers=workers if role == "ring" else 1, layout=layout if role == "ring" else "contiguous"),
        dtype=dtype,
        requests=(
            RequestSpec(
                request_id="you",
                prompt=_PROMPT[lang],
                num_prompt_tokens=length,
                max_tokens=OUTPUT_TOKENS,
                ignore_eos=True,
            ),
        ),
    )


def default_parts(lang: Lang) -> list[Part]:
    """See ``lessons.parts``."""
    return [Part(role, scenario(role, lang=lang)) for role in ROLES]
