"""What the scheduler itself costs: one decide + commit with 256 running requests, for every policy.

No model and no torch: the "model" answers with the same token at once, so all that is timed is the scheduler.
"""

from __future__ import annotations

import statistics
import time

from engine.lab.scenario import Limits
from engine.scheduling.policies import POLICIES
from engine.scheduling.requests import Request
from engine.scheduling.scheduler import Scheduler, ends_at_max_tokens

NUM_REQUESTS = 256
PROMPT_TOKENS = 32
BLOCK_SIZE = 16
NUM_STEPS = 100  # timed, all of them decoding all the requests


def decide_and_commit_ms(policy: str, num_steps: int = NUM_STEPS) -> float:
    """Milliseconds of the median step in which all 256 requests decode. Raises: AssertionError if one does not."""
    blocks = NUM_REQUESTS * -(-(PROMPT_TOKENS + num_steps + 2) // BLOCK_SIZE)
    limits = Limits(max_requests=NUM_REQUESTS, max_batch_tokens=8_192, num_blocks=blocks)
    scheduler = Scheduler(policy, limits, BLOCK_SIZE)
    for index in range(NUM_REQUESTS):
        prompt = list(range(index, index + PROMPT_TOKENS))
        scheduler.add(Request(f"r{index}", prompt, max_tokens=num_steps + 2, ignore_eos=True))
    _step(scheduler, 0.0)  # the prompts
    times_ms = []
    for _ in range(num_steps):
        begin_s = time.perf_counter()
        num_rows = _step(scheduler, begin_s)
        times_ms.append((time.perf_counter() - begin_s) * 1000)
        assert num_rows == NUM_REQUESTS, f"{policy} ran {num_rows} of {NUM_REQUESTS} requests"
    return statistics.median(times_ms)


def _step(scheduler: Scheduler, now_s: float) -> int:
    chunks = scheduler.chunks(scheduler.decide(now_s))
    scheduler.commit(chunks, [7] * len(chunks), ends_at_max_tokens)
    scheduler.pool.take_events()  # as the record of a step does; their number would grow
    return len(chunks)


def all_policies() -> dict[str, float]:
    """Milliseconds by policy."""
    return {policy: decide_and_commit_ms(policy) for policy in POLICIES}
