"""transformers beside the engine: its model called step by step with a growing cache, and ``generate`` for a workload.

A loop around ``forward`` is faster than ``generate`` for one stream, so the loop is what is timed there; a workload is
served as ``generate`` serves it, batch after batch with left padding. Needs torch and transformers.
"""

from __future__ import annotations

import time
from itertools import pairwise

import common
import torch
import transformers


class Hf:
    def load(self, job: dict) -> dict:
        torch.set_num_threads(job["num_threads"])
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            job["model_dir"], dtype=torch.bfloat16, attn_implementation="sdpa", local_files_only=True
        ).eval()
        weights = {p.data_ptr(): p.numel() * p.element_size() for p in self.model.parameters()}  # a tied head once
        return {
            "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
            "weight_bytes": sum(weights.values()),
            "notes": "forward with DynamicCache and sdpa attention; workload: generate, static batches",
        }

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], num_tokens: int) -> common.Timing:
        begin_s = time.perf_counter()
        ids, cache = torch.tensor(prompts), transformers.DynamicCache()
        stamps, rows = [], []
        for _ in range(num_tokens):
            out = self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            ids = out.logits[:, -1].argmax(-1, keepdim=True)
            rows.append(ids[:, 0].tolist())
            stamps.append(time.perf_counter())
        steps = [end - start for start, end in pairwise(stamps)]
        return common.Timing(stamps[0] - begin_s, steps, [list(row) for row in zip(*rows, strict=True)])

    @torch.inference_mode()
    def serve(self, requests: list[dict], max_requests: int, policy: str) -> tuple[float, int]:
        begin_s = time.perf_counter()
        for first in range(0, len(requests), max_requests):
            batch = requests[first : first + max_requests]
            longest = max(len(request["prompt"]) for request in batch)
            pads = [longest - len(request["prompt"]) for request in batch]
            ids = torch.tensor([[0] * pad + request["prompt"] for pad, request in zip(pads, batch, strict=True)])
            mask = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in pads])
            most = max(request["num_tokens"] for request in batch)
            self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=most,
                min_new_tokens=most,
                do_sample=False,
                pad_token_id=0,
            )
        return time.perf_counter() - begin_s, sum(request["num_tokens"] for request in requests)


if __name__ == "__main__":
    common.main(Hf())
