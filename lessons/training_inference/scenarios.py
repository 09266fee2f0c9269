"""The workload of the lesson: a text is written token by token, read in one pass, and learned from in one step.

All three handle the same tokens on the same device in one Run: the reader follows the writer and takes its whole text
as a prompt; the training step is a probe on that prompt. Sizes are such that a run takes some seconds on a laptop.
"""

from __future__ import annotations

from engine.lab.scenario import DEFAULT_MODEL, DType, Scenario
from lessons.parts import Part
from lessons.text import Lang

STARTS: tuple[str, ...] = ("Once upon a time", "The sun is a", "A computer is a", "In the year 2100")
NUM_START_TOKENS = 4
LENGTHS: tuple[int, ...] = (32, 64, 128, 256)
DEFAULT_LENGTH = 128


def three_ways(start: str, num_tokens: int, dtype: DType = "float32", *, model: str = DEFAULT_MODEL) -> Scenario:
    """A text of exactly ``num_tokens``, of which the first NUM_START_TOKENS are given. Raises: ScenarioError."""
    return Scenario.parse(
        {
            "name": "training_inference",
            "model": model,
            "policy": "chunked",
            "limits": {"max_requests": 1, "max_batch_tokens": 512, "num_blocks": 34},
            "dtype": dtype,
            "probes": ["training_step"],
            "requests": [
                {
                    "request_id": "write",
                    "prompt": start,
                    "num_prompt_tokens": NUM_START_TOKENS,
                    "max_tokens": num_tokens - NUM_START_TOKENS,
                    "ignore_eos": True,
                },
                {"request_id": "read", "follows": "write", "max_tokens": 1, "ignore_eos": True},
            ],
        }
    )


def default_parts(lang: Lang) -> list[Part]:
    """See ``lessons.parts``. The model writes English in both languages."""
    return [Part("run", three_ways(STARTS[0], DEFAULT_LENGTH))]
