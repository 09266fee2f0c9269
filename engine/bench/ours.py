"""Our engine as a measured system: the same process a run of the lab would be, driven step by step.

``python -m engine.bench.ours`` reads a job as the peers' scripts do. What is timed is whole steps (decide, forward,
commit, record) on the clock of the wall, with nothing taken out.
"""

from __future__ import annotations

import time
from itertools import pairwise

from engine.bench.peers import common
from engine.lab.scenario import Limits
from engine.runtime.engine import Engine
from engine.runtime.kernels_choice import make_executor
from engine.runtime.lab import LabRuntime
from engine.runtime.versions import versions
from engine.scheduling.requests import Request
from engine.settings import settings

BLOCK_SIZE = 16
NUM_BLOCKS = 512
WHOLE_PROMPTS = 2_048  # tokens in a step, where a prompt shall be computed at once
SERVING_TOKENS = 512  # and where many requests share a step


class Ours:
    def load(self, job: dict) -> dict:
        limits = Limits(max_requests=32, max_batch_tokens=WHOLE_PROMPTS, num_blocks=NUM_BLOCKS)
        runtime = LabRuntime(settings(), kernels=job.get("kernels"))
        weights = None if job["precision"] == "bfloat16" else job["precision"]
        self.loaded = runtime.load(job["model"], "bfloat16", weights)
        self.executor = make_executor(self.loaded, limits, BLOCK_SIZE)
        self.executor.warm_up()
        return {
            "versions": versions(),
            "weight_bytes": self.loaded.info.weight_bytes,
            "notes": f"backend {self.executor.backend}, kernels {self.loaded.decoder.ops.name}",
        }

    def generate(self, prompts: list[list[int]], num_tokens: int) -> common.Timing:
        """Steps are counted from the one after which every prompt has a token."""
        requests = [_request(index, prompt, num_tokens) for index, prompt in enumerate(prompts)]
        limits = Limits(max_requests=32, max_batch_tokens=WHOLE_PROMPTS, num_blocks=NUM_BLOCKS)
        begin_s, stamps = time.perf_counter(), []
        engine = self._engine("chunked", limits, requests)
        while engine.has_work:
            engine.step()
            if all(request.num_output_tokens for request in requests):
                stamps.append(time.perf_counter())
        steps = [end - start for start, end in pairwise(stamps)]
        return common.Timing(stamps[0] - begin_s, steps, [request.output_token_ids for request in requests])

    def serve(self, requests: list[dict], max_requests: int, policy: str) -> tuple[float, int]:
        limits = Limits(max_requests=max_requests, max_batch_tokens=SERVING_TOKENS, num_blocks=NUM_BLOCKS)
        ours = [_request(index, request["prompt"], request["num_tokens"]) for index, request in enumerate(requests)]
        begin_s = time.perf_counter()
        engine = self._engine(policy, limits, ours)
        while engine.has_work:
            engine.step()
        return time.perf_counter() - begin_s, sum(request.num_output_tokens for request in ours)

    def _engine(self, policy: str, limits: Limits, requests: list[Request]) -> Engine:
        engine = Engine(self.executor, policy, limits, BLOCK_SIZE)
        for request in requests:
            engine.add(request)
        return engine


def _request(index: int, prompt: list[int], num_tokens: int) -> Request:
    return Request(f"r{index}", prompt, max_tokens=num_tokens, ignore_eos=True)


if __name__ == "__main__":
    common.main(Ours())
