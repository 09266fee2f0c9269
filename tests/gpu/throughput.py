"""The engine on a random-weight Llama of 1B: graphs against eager, tokens per second, and transformers on the same
weights.

Nothing is downloaded: the weights are noise, made on the device, and shared by both. Speed does not depend on what a
model knows. Step times come from the engine's own records, so scheduling, sampling and copies are in them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from engine.lab.records import ModelInfo, StepRecord
from engine.lab.scenario import Limits
from engine.model.load import LoadedModel
from engine.model.ops_triton import TritonOps
from engine.model.spec import ModelSpec, spec_from_config
from engine.model.weights import MemoryTensors, build_decoder, num_decode_parameters, num_parameters
from engine.runtime.engine import Engine
from engine.runtime.graphs import CudaRecorder, Recorder
from engine.runtime.triton_executor import TritonExecutor
from engine.scheduling.requests import Request
from tests.gpu.stage import Stage

BLOCK_SIZE = 16
WHOLE_STEP_TARGET = 0.6  # of the measured copy, for the 1B shape with graphs


class CallAgain:
    """In a rehearsal there is nothing to record: a replay calls the function again."""

    def __call__(self, function):
        out = function()

        def replay() -> None:
            with torch.inference_mode():
                out.copy_(function())

        return out, replay


def llama_config(stage: Stage):
    """Llama-3.2-1B, or in a rehearsal something with the same parts."""
    from transformers import LlamaConfig

    if stage.is_dry_run:
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
        sizes |= {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 97, "max_position_embeddings": 256}
    else:
        sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
        sizes |= {"num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128_256, "max_position_embeddings": 16_384}
    return LlamaConfig(**sizes, tie_word_embeddings=True, rms_norm_eps=1e-5, torch_dtype="bfloat16")


def both_models(stage: Stage) -> tuple[torch.nn.Module, LoadedModel]:
    """transformers' model with random weights, and ours of the same."""
    from transformers import LlamaForCausalLM

    config = llama_config(stage)
    torch.manual_seed(0)
    with torch.device(stage.device):
        theirs = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    raw = {**config.to_dict(), "architectures": ["LlamaForCausalLM"]}
    spec = spec_from_config(raw)
    tensors = {name: tensor for name, tensor in theirs.state_dict().items() if name != "lm_head.weight"}
    decoder = build_decoder(spec, MemoryTensors(tensors), torch.bfloat16, stage.device, TritonOps())
    info = ModelInfo(
        name="random-llama-1b",
        source="random weights",
        architecture="LlamaForCausalLM",
        num_parameters=num_parameters(spec),
        weight_bytes=2 * num_decode_parameters(spec),
        **{name: getattr(spec, name) for name in _SHAPE},
    )
    return theirs, LoadedModel(info, spec, decoder, None, frozenset(), spec.max_positions, "bfloat16")


_SHAPE = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "vocab_size")


def prompt(spec: ModelSpec, length: int, seed: int) -> list[int]:
    noise = torch.Generator().manual_seed(seed)
    return torch.randint(0, spec.vocab_size, (length,), generator=noise).tolist()


def run(
    executor: TritonExecutor, limits: Limits, prompts: Sequence[list[int]], max_tokens: int
) -> tuple[list[StepRecord], list[list[int]]]:
    """All prompts at once through the engine: its records, and each request's tokens."""
    engine = Engine(executor, "chunked", limits, BLOCK_SIZE)
    requests = [Request(f"r{i}", ids, max_tokens=max_tokens, ignore_eos=True) for i, ids in enumerate(prompts)]
    for request in requests:
        engine.add(request, None, frozenset())
    steps = []
    while engine.has_work:
        record = engine.step()
        if record is not None:
            steps.append(record)
    return steps, [request.output_token_ids for request in requests]


def recorder_for(stage: Stage) -> Recorder:
    return CallAgain() if stage.is_dry_run else CudaRecorder()


def graphs_against_eager(stage: Stage, loaded: LoadedModel) -> dict[str, Any]:
    """The same workload with and without graphs gives the same tokens; padding leaves foreign blocks as they were."""
    num_blocks, sizes = (16, (9, 3)) if stage.is_dry_run else (512, (200, 17, 64, 1, 330))
    limits = Limits(max_requests=len(sizes), max_batch_tokens=8 if stage.is_dry_run else 128, num_blocks=num_blocks)
    prompts = [prompt(loaded.spec, length, seed) for seed, length in enumerate(sizes)]
    tokens, backends = {}, {}
    for name, recorder in (("graphs", recorder_for(stage)), ("eager", None)):
        executor = TritonExecutor(loaded, limits, BLOCK_SIZE, recorder=recorder)
        executor.cache.slots[:, :] = float("nan")  # whatever reads a slot that nobody wrote shows
        steps, tokens[name] = run(executor, limits, prompts, 4 if stage.is_dry_run else 48)
        backends[name] = sorted({step.backend for step in steps})
    return {
        "same_tokens": tokens["graphs"] == tokens["eager"],
        "backends": backends,
        "num_requests": len(sizes),
        "padding_writes_nowhere": _padding_writes_nowhere(stage, loaded),
    }


def _padding_writes_nowhere(stage: Stage, loaded: LoadedModel) -> bool:
    """Three rows in a bucket of four change three slots of a cache full of noise and no other."""
    from engine.scheduling.decision import Chunk

    limits = Limits(max_requests=4, max_batch_tokens=4, num_blocks=16)
    executor = TritonExecutor(loaded, limits, BLOCK_SIZE, recorder=recorder_for(stage))
    executor.cache.slots.normal_()
    before = executor.cache.slots.clone()
    rows = [Chunk(Request(f"r{i}", [1] * 6, max_tokens=4), 5, 1, "decode", [3 * i + 1], samples=True) for i in range(3)]
    executor.forward(executor.prepare(rows))
    changed = (executor.cache.slots != before).flatten(2).any(-1).any(0).nonzero().flatten().tolist()
    return changed == [(3 * i + 1) * BLOCK_SIZE + 5 for i in range(3)]


def decode_rates(stage: Stage, loaded: LoadedModel, copy_gbps: float) -> list[dict[str, Any]]:
    """Decode at batch 1 to 64 after prompts of 128, with graphs and without."""
    batches, context, count = ((1, 3), 3, 2) if stage.is_dry_run else ((1, 2, 4, 8, 16, 32, 64), 128, 64)
    rows = []
    for batch in batches:
        if stage.time_left() < 60:
            rows.append({"batch": batch, "skipped": "out of time"})
            continue
        num_blocks = batch * -(-(context + count) // BLOCK_SIZE) + 1
        limits = Limits(
            max_requests=batch, max_batch_tokens=max(batch, 8 if stage.is_dry_run else 4096), num_blocks=num_blocks
        )
        prompts = [prompt(loaded.spec, context, seed) for seed in range(batch)]
        row: dict[str, Any] = {"batch": batch, "context": context}
        for name, recorder in (("graphs", recorder_for(stage)), ("eager", None)):
            executor = TritonExecutor(loaded, limits, BLOCK_SIZE, recorder=recorder)
            if not stage.is_dry_run:  # where nothing is compiled there is nothing to warm up
                executor.warm_up()
            steps, _ = run(executor, limits, prompts, count)
            decoding = [s for s in steps if len(s.outputs) == batch and all(c.num_tokens == 1 for c in s.scheduled)]
            step_s = statistics.median(step.t_end_s - step.t_begin_s for step in decoding)
            forward_s = statistics.median(step.time_ms.forward for step in decoding) / 1e3
            work = decoding[len(decoding) // 2].work
            moved = work.weight_bytes + work.kv_read_bytes
            row[name] = {
                "tokens_per_s": batch / step_s,
                "step_ms": step_s * 1e3,
                "forward_ms": forward_s * 1e3,
                "gbps": moved / step_s / 1e9,
                "share_of_copy": moved / step_s / 1e9 / copy_gbps,
                "backends": sorted({step.backend for step in decoding}),
            }
        rows.append(row)
    return rows


def prefill_rates(stage: Stage, loaded: LoadedModel, theirs: torch.nn.Module) -> list[dict[str, Any]]:
    """One prompt in one step, ours and transformers' in turn."""
    lengths = (5,) if stage.is_dry_run else (128, 256, 512, 1024, 2048, 4096, 8192)
    rows = []
    for length in lengths:
        if stage.time_left() < 45:
            rows.append({"num_tokens": length, "skipped": "out of time"})
            continue
        limits = Limits(max_requests=1, max_batch_tokens=length, num_blocks=-(-(length + 2) // BLOCK_SIZE))
        ids = prompt(loaded.spec, length, length)
        executor = TritonExecutor(loaded, limits, BLOCK_SIZE, recorder=None)
        there = torch.tensor([ids], device=stage.device)
        ours, peers = [], []
        for attempt in range(2 if stage.is_dry_run else 5):
            steps, _ = run(executor, limits, [ids], 1)
            theirs_ms = stage.wall_ms(lambda there=there: _forward(theirs, there, None))
            if attempt:  # the first compiles and chooses algorithms
                ours.append((steps[0].t_end_s - steps[0].t_begin_s) * 1e3)
                peers.append(theirs_ms)
        row = {"num_tokens": length, "ours_ms": statistics.median(ours), "transformers_ms": statistics.median(peers)}
        row["ours_tokens_per_s"] = length / row["ours_ms"] * 1e3
        row["transformers_tokens_per_s"] = length / row["transformers_ms"] * 1e3
        rows.append(row)
    return rows


def transformers_decode(stage: Stage, theirs: torch.nn.Module, loaded: LoadedModel) -> list[dict[str, Any]]:
    """transformers' eager decode on the same weights and prompts: the median step."""
    batches, context, count = ((1, 3), 5, 2) if stage.is_dry_run else ((1, 8, 64), 128, 32)
    rows = []
    for batch in batches:
        if stage.time_left() < 30:
            rows.append({"batch": batch, "skipped": "out of time"})
            continue
        ids = torch.tensor([prompt(loaded.spec, context, seed) for seed in range(batch)], device=stage.device)
        out = _forward(theirs, ids, None)
        times = []
        for _ in range(count):
            token, cache = out.logits[:, -1:].argmax(-1), out.past_key_values
            stage.synchronize()
            begin = time.perf_counter()
            out = _forward(theirs, token, cache)
            stage.synchronize()
            times.append(time.perf_counter() - begin)
        step_s = statistics.median(times[len(times) // 4 :])
        rows.append({"batch": batch, "context": context, "step_ms": step_s * 1e3, "tokens_per_s": batch / step_s})
    return rows


@torch.inference_mode()
def _forward(theirs: torch.nn.Module, ids: torch.Tensor, cache: Any) -> Any:
    return theirs(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)


def logits_agree(stage: Stage, loaded: LoadedModel, theirs: torch.nn.Module) -> dict[str, Any]:
    """The last logits of one prompt, ours and transformers': the two compute the same model."""
    ids = prompt(loaded.spec, 9 if stage.is_dry_run else 300, 7)
    limits = Limits(max_requests=1, max_batch_tokens=len(ids), num_blocks=-(-len(ids) // BLOCK_SIZE))
    executor = TritonExecutor(loaded, limits, BLOCK_SIZE, recorder=None)
    from engine.scheduling.decision import Chunk

    chunk = Chunk(Request("r", ids, max_tokens=1), 0, len(ids), "prefill", list(range(limits.num_blocks)), samples=True)
    ours = executor.forward(executor.prepare([chunk]))[0].float()
    wanted = _forward(theirs, torch.tensor([ids], device=stage.device), None).logits[0, -1].float()
    error = ((ours - wanted).norm() / wanted.norm()).item()
    return {"relative_error": error, "same_argmax": bool(ours.argmax() == wanted.argmax()), "agree": error < 0.05}
