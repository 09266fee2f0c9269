"""The workload of the KV cache lesson: one request, served with the cache and then without it.

Both parts differ in ``limits.kv_cache`` alone, so they give the same tokens and may be set side by side. Sizes are such
that the slow part takes seconds, not minutes, on a laptop.
"""

from __future__ import annotations

from engine.lab.scenario import DEFAULT_MODEL, DType, Scenario
from lessons.parts import Part
from lessons.text import Lang

PARTS = ("cached", "uncached")
PROMPT_LENGTHS: tuple[int, ...] = (16, 32, 64, 128)
OUTPUT_RANGE = (8, 64)
BLOCK_SIZES: tuple[int, ...] = (4, 16, 64)
DEFAULT_SIZES = (32, 32, 16)  # prompt tokens, output tokens, slots of a block
POOL_POSITIONS = 256  # what the pool holds in all, however it is cut into blocks

# Long enough for every prompt length: it is cut, never repeated, so that the model has something to go on with.
PASSAGE = (
    "The lighthouse stood at the end of a long stone pier, and every evening old Marten walked out to light the lamp. "
    "He counted his steps, for in winter the fog was so thick that he could not see his own boots. Three hundred and "
    "twelve steps out, three hundred and twelve steps back. One night in November he had counted two hundred when he "
    "heard somebody else walking in front of him. The steps were slow and even, like his own, and they did not stop "
    "when he stopped. Marten held up his lantern and called out, but the fog gave back nothing except the sound of the "
    "sea. He thought of the door of the tower, which he had locked himself that morning, and of the key in his pocket. "
    "Then he heard the door open, and"
)


def one_request(
    num_prompt_tokens: int,
    max_tokens: int,
    block_size: int,
    part: str,
    dtype: DType = "float32",
    *,
    model: str = DEFAULT_MODEL,
) -> Scenario:
    """The request with (``cached``) or without (``uncached``) a KV cache. Raises: ScenarioError."""
    return Scenario.parse(
        {
            "name": f"kv_cache/{part}",
            "model": model,
            "policy": "chunked",
            "limits": {
                "max_requests": 1,
                "max_batch_tokens": POOL_POSITIONS,
                "num_blocks": POOL_POSITIONS // block_size,
                "kv_cache": "none" if part == "uncached" else "keep",
            },
            "dtype": dtype,
            "block_size": block_size,
            "requests": [
                {
                    "request_id": "you",
                    "prompt": PASSAGE,
                    "num_prompt_tokens": num_prompt_tokens,
                    "max_tokens": max_tokens,
                    "ignore_eos": True,
                }
            ],
        }
    )


def default_parts(lang: Lang) -> list[Part]:
    """See ``lessons.parts``. The passage is English in both languages."""
    return [Part(part, one_request(*DEFAULT_SIZES, part)) for part in PARTS]
