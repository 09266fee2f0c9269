"""What the bench's workloads could take at best: ``python -m tests.bench.bound --read-gbps 28 --matmul-tflops 0.42``.

The real scheduler serves the bench's requests with a model that computes nothing; each of its steps then takes what the
roofline allows, the longer of FLOPs over the matmul rate and bytes over the read rate (``engine.lab.work.roofline_s``).
No engine that makes the same steps with the same weights can be faster on a device with these two rates, so this tells
which part of a target is left to win. The rates are those that ``python -m engine bench`` prints.
"""

from __future__ import annotations

import argparse

from engine.bench.ours import BLOCK_SIZE, NUM_BLOCKS, SERVING_TOKENS, WHOLE_PROMPTS
from engine.bench.plan import STREAM_CONTEXT, Plan, tokens, workload
from engine.lab.records import ModelInfo
from engine.lab.scenario import Limits
from engine.lab.work import moved_bytes, roofline_s
from engine.runtime.engine import Engine
from engine.runtime.lab import LabRuntime
from engine.scheduling.requests import Request
from engine.settings import settings
from tests.fakes import FakeExecutor


def steps_s(
    model: ModelInfo, policy: str, limits: Limits, asked: list[tuple[list[int], int]], rates: tuple[float, float]
) -> list[float]:
    """Seconds of each step at the roof. ``asked``: (prompt, output tokens); ``rates``: GB/s, TFLOP/s."""
    engine = Engine(FakeExecutor(BLOCK_SIZE, model=model), policy, limits, BLOCK_SIZE)
    for index, (prompt, num_tokens) in enumerate(asked):
        engine.add(Request(f"r{index}", prompt, num_tokens, ignore_eos=True))
    found = []
    while engine.has_work:
        work = engine.step().work
        found.append(roofline_s(work.flops, moved_bytes(work), *rates))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--read-gbps", type=float, required=True)
    parser.add_argument("--matmul-tflops", type=float, required=True)
    asked = parser.parse_args()
    rates, plan = (asked.read_gbps, asked.matmul_tflops), Plan()
    model = LabRuntime(settings()).load("smollm2-135m", "bfloat16").info
    for streams in plan.streams:
        limits = Limits(max_requests=streams, max_batch_tokens=WHOLE_PROMPTS, num_blocks=NUM_BLOCKS)
        prompts = [(tokens(STREAM_CONTEXT, i), plan.stream_tokens) for i in range(streams)]
        decode = steps_s(model, "chunked", limits, prompts, rates)[1:]
        print(f"streams {streams}: {streams * len(decode) / sum(decode):.0f} tok/s, {1e3 * decode[0]:.2f} ms a step")
    requests = [(request["prompt"], request["num_tokens"]) for request in workload(plan.num_requests)]
    num_outputs = sum(num_tokens for _, num_tokens in requests)
    for policy in plan.policies:
        limits = Limits(max_requests=plan.max_requests, max_batch_tokens=SERVING_TOKENS, num_blocks=NUM_BLOCKS)
        found = steps_s(model, policy, limits, requests, rates)
        print(f"mixed {policy}: {num_outputs / sum(found):.0f} tok/s, {sum(found):.3f} s in {len(found)} steps")


if __name__ == "__main__":
    main()
