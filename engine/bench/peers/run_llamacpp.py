"""llama.cpp beside the engine, through its C interface: no sampler objects and no Python layer in the timed loop.

A workload is served as llama.cpp's own server does it: one batch shared by all slots, filled at every turn with one
token of each running request and then with prompts, a free slot taken by the next request. Needs llama-cpp-python,
built for this machine (GGML_NATIVE), and numpy.
"""

from __future__ import annotations

import ctypes
import time
from itertools import pairwise

import common
import llama_cpp
import numpy as np

BATCH = 2048  # tokens in one call; the library itself cuts them into pieces of its default size


class Batch:
    """A ``llama_batch`` that is filled anew for every call."""

    def __init__(self) -> None:
        self.raw = llama_cpp.llama_batch_init(BATCH, 0, 1)

    def fill(self, rows: list[tuple[int, int, int, bool]]) -> llama_cpp.llama_batch:
        """``rows``: (token id, position, sequence, whether its logits are wanted)."""
        raw = self.raw
        raw.n_tokens = len(rows)
        for index, (token_id, position, sequence, wants_logits) in enumerate(rows):
            raw.token[index], raw.pos[index], raw.logits[index] = token_id, position, wants_logits
            raw.n_seq_id[index], raw.seq_id[index][0] = 1, sequence
        return raw


class LlamaCpp:
    def load(self, job: dict) -> dict:
        self._silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self.num_threads = job["num_threads"]
        params = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(job["gguf"].encode(), params)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {job['gguf']}")
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = Batch()
        return {
            "versions": {"llama-cpp-python": llama_cpp.__version__},
            "weight_bytes": llama_cpp.llama_model_size(self.model),
            "notes": "C interface; workload: slots that share one batch, as llama.cpp's server does",
        }

    def _context(self, num_sequences: int, positions_each: int, is_shared: bool = False):
        """``is_shared``: one cache for all sequences, as llama.cpp's server has it; faster where lengths differ."""
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = num_sequences * -(-positions_each // 256) * 256
        params.n_batch, params.n_seq_max = BATCH, num_sequences
        params.n_threads = params.n_threads_batch = self.num_threads
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO
        params.kv_unified = is_shared
        context = llama_cpp.llama_init_from_model(self.model, params)
        if not context:
            raise RuntimeError(f"llama.cpp cannot make a context of {params.n_ctx} positions")
        return context

    def _decode(self, context, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        """The greedy token of every row that wants logits, in order."""
        if llama_cpp.llama_decode(context, self.batch.fill(rows)) != 0:
            raise RuntimeError(f"llama_decode failed on {len(rows)} rows")
        return [
            int(np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, index), (self.vocab_size,)).argmax())
            for index, row in enumerate(rows)
            if row[3]
        ]

    def generate(self, prompts: list[list[int]], num_tokens: int) -> common.Timing:
        length = len(prompts[0])
        context = self._context(len(prompts), length + num_tokens)
        try:
            begin_s = time.perf_counter()
            todo = [
                (token, position, sequence, position == length - 1)
                for sequence, prompt in enumerate(prompts)
                for position, token in enumerate(prompt)
            ]
            tokens = [t for first in range(0, len(todo), BATCH) for t in self._decode(context, todo[first:][:BATCH])]
            stamps, outputs = [time.perf_counter()], [[token] for token in tokens]
            for step in range(num_tokens - 1):
                rows = [(token, length + step, sequence, True) for sequence, token in enumerate(tokens)]
                tokens = self._decode(context, rows)
                stamps.append(time.perf_counter())
                for output, token in zip(outputs, tokens, strict=True):
                    output.append(token)
        finally:
            llama_cpp.llama_free(context)
        steps = [end - start for start, end in pairwise(stamps)]
        return common.Timing(stamps[0] - begin_s, steps, outputs)

    def serve(self, requests: list[dict], max_requests: int, policy: str) -> tuple[float, int]:
        longest = max(len(request["prompt"]) + request["num_tokens"] for request in requests)
        context = self._context(max_requests, longest, is_shared=True)
        try:
            begin_s = time.perf_counter()
            serve_slots(self, context, requests, max_requests)
            return time.perf_counter() - begin_s, sum(request["num_tokens"] for request in requests)
        finally:
            llama_cpp.llama_free(context)


def serve_slots(system: LlamaCpp, context, requests: list[dict], num_slots: int) -> None:
    """Serve all requests. ``running``: slot -> [request, computed positions, next token, tokens still wanted]."""
    waiting, running = list(requests), {}
    memory = llama_cpp.llama_get_memory(context)
    while waiting or running:
        for slot in range(num_slots):
            if slot not in running and waiting:
                llama_cpp.llama_memory_seq_rm(memory, slot, -1, -1)
                request = waiting.pop(0)
                running[slot] = [request["prompt"], 0, None, request["num_tokens"]]
        rows, sampling = [], []
        for slot, state in running.items():
            if state[2] is not None:
                rows.append((state[2], state[1], slot, True))
                sampling.append(slot)
                state[1] += 1
        for slot, state in running.items():
            prompt, computed, token, _ = state
            if token is not None:
                continue
            end = min(len(prompt), computed + BATCH - len(rows))
            rows += [(prompt[p], p, slot, p == len(prompt) - 1) for p in range(computed, end)]
            sampling += [slot] if end == len(prompt) and end > computed else []
            state[1] = end
        for slot, token in zip(sampling, system._decode(context, rows), strict=True):
            running[slot][2] = token
            running[slot][3] -= 1
            if running[slot][3] == 0:
                del running[slot]


if __name__ == "__main__":
    common.main(LlamaCpp())
