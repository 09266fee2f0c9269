"""What the last run says beside the course's formulas, as values for the lesson's sentences.

It decides what is modelled (each step by the roofline from its recorded work, the KV memory from lengths and shapes)
and which notes hold. Invariant: measured and modelled of one quantity cover the same steps and positions.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from engine.lab.metrics import all_request_metrics, duration_s, makespan_s, run_metrics, step_kind, step_spread
from engine.lab.records import Run, StepRecord
from engine.lab.work import element_sizes, kv_bytes_per_token, roofline_s
from lessons.facts_error import FactsError
from lessons.text import Fact, format_bytes, format_seconds

NEAR = (0.75, 1.4)  # measured over modelled time within which the formulas explain the run
NOISY = 0.5  # spread of like decode steps, relative to their median, beyond which the page warns

Runs = Mapping[str, Run]


@dataclass(frozen=True)
class Whole:
    """The run as a whole. Seconds of pure prefill or mixed steps, and of pure decode steps, measured and modelled."""

    run: Run
    num_requests: int
    prompt_tokens: int
    output_tokens: int
    total_s: float
    prefill: tuple[StepRecord, ...]
    decode: tuple[StepRecord, ...]

    @property
    def num_output_tokens(self) -> int:
        return sum(r.num_output_tokens for r in self.run.requests)

    @property
    def positions(self) -> int:
        """Positions of one request in the cache at its end: the last token made is never stored."""
        return self.prompt_tokens + self.output_tokens - 1

    @property
    def bytes_per_position(self) -> float:
        return kv_bytes_per_token(self.run.header.model, element_sizes(self.run.header)[1])

    @property
    def peak_blocks(self) -> int:
        return max(step.blocks.in_use for step in self.run.steps)

    @property
    def peak_bytes(self) -> float:
        return self.peak_blocks * self.run.header.block_size * self.bytes_per_position

    @property
    def modelled_blocks(self) -> int:
        """Every request at its end, each with whole blocks of its own."""
        return self.num_requests * math.ceil(self.positions / self.run.header.block_size)

    @property
    def modelled_bytes(self) -> float:
        return self.modelled_blocks * self.run.header.block_size * self.bytes_per_position

    def seconds(self, steps: tuple[StepRecord, ...]) -> float:
        return sum(duration_s(step) for step in steps)

    def modelled_s(self, steps: tuple[StepRecord, ...]) -> float | None:
        """The least time the device's ceilings allow for these steps; None while they are not measured."""
        device = self.run.header.device
        if not device.read_gbps or not device.matmul_tflops:
            return None
        return sum(roofline_s(s.work.flops, _moved(s), device.read_gbps, device.matmul_tflops) for s in steps)


def _moved(step: StepRecord) -> int:
    return step.work.weight_bytes + step.work.kv_read_bytes + step.work.kv_write_bytes


def whole(runs: Runs) -> Whole:
    """Raises: FactsError when there is no run, or it ended before all its requests had."""
    run = runs.get("run")
    if run is None or not run.requests:
        raise FactsError("there is no run yet; run the lesson first")
    total = makespan_s(run)
    if not total or any(r.completion_s is None or r.finish_reason == "abort" for r in run.requests):
        raise FactsError("this run ended before all its requests did; run the lesson again")
    kinds = {kind: tuple(s for s in run.steps if step_kind(s) in of) for kind, of in _KINDS.items()}
    return Whole(
        run=run,
        num_requests=len(run.requests),
        prompt_tokens=run.requests[0].num_prompt_tokens,
        output_tokens=run.requests[0].num_output_tokens,
        total_s=total,
        prefill=kinds["prefill"],
        decode=kinds["decode"],
    )


_KINDS = {"prefill": ("prefill", "mixed"), "decode": ("decode",)}


def facts(runs: Runs) -> dict[str, Fact]:
    found = whole(runs)
    run, metrics = found.run, run_metrics(found.run)
    request = max(all_request_metrics(run).values(), key=lambda m: m.e2e_s)
    model = run.header.model
    values: dict[str, Fact] = {
        "model": model.name,
        "dtype": run.header.dtype,
        "num_requests": found.num_requests,
        "prompt_tokens": found.prompt_tokens,
        "output_tokens": found.output_tokens,
        "all_tokens": found.num_output_tokens,
        "num_steps": len(run.steps),
        "total": format_seconds(found.total_s),
        "tps": metrics.output_tokens_per_s,
        "weights": format_bytes(model.weight_bytes),
        "weights_read": format_bytes(sum(s.work.weight_bytes for s in run.steps)),
        "alone_read": format_bytes(found.num_output_tokens * model.weight_bytes),
        "peak_blocks": found.peak_blocks,
        "block_size": run.header.block_size,
        "per_position": format_bytes(found.bytes_per_position),
        "positions": found.positions,
        "blocks_each": math.ceil(found.positions / run.header.block_size),
        "modelled_blocks": found.modelled_blocks,
        "peak": format_bytes(found.peak_bytes),
        "peak_model": format_bytes(found.modelled_bytes),
        "peak_percent": 100 * found.peak_bytes / model.weight_bytes,
        "ttft_ms": 1e3 * request.ttft_s,
        "tpot_ms": 1e3 * (request.tpot_s or 0.0),
        "gaps": request.num_output_tokens - 1,
        "e2e_ms": 1e3 * request.e2e_s,
        "last_one": request.request_id,
        "prefill_time": format_seconds(found.seconds(found.prefill)),
        "decode_time": format_seconds(found.seconds(found.decode)),
        "decode_steps": len(found.decode),
        "decode_percent": 100 * found.seconds(found.decode) / found.total_s,
        "spread": step_spread(run, "decode").relative or 0.0,
    }
    if found.decode:
        durations = sorted(duration_s(s) for s in found.decode)
        values |= {
            "step_ms": 1e3 * statistics.median(durations),
            "spread_low_ms": 1e3 * durations[len(durations) // 10],
            "spread_high_ms": 1e3 * durations[-1 - len(durations) // 10],
        }
    return values | _model_facts(found)


def _model_facts(found: Whole) -> dict[str, Fact]:
    prefill, decode = found.modelled_s(found.prefill), found.modelled_s(found.decode)
    if prefill is None or decode is None:
        return {}
    device = found.run.header.device
    return {
        "read_gbps": device.read_gbps,
        "matmul_tflops": device.matmul_tflops,
        "total_model": format_seconds(prefill + decode),
        "total_factor": found.total_s / (prefill + decode),
        "prefill_model": format_seconds(prefill),
        "prefill_factor": found.seconds(found.prefill) / prefill if prefill else 1.0,
        "decode_model": format_seconds(decode),
        "decode_factor": found.seconds(found.decode) / decode if decode else 1.0,
    }


def sections(runs: Runs) -> list[str]:
    found, values = whole(runs), facts(runs)
    shown = ["after", "why"]
    if values["spread"] > NOISY:
        shown.append("note_noisy")
    if "total_model" not in values:
        shown.append("note_no_ceilings")
    else:
        low, high = NEAR
        factor = values["total_factor"]
        shown.append(f"note_time_{'below' if factor < low else 'near' if factor <= high else 'above'}")
    if found.peak_blocks == found.modelled_blocks:
        shown.append("note_memory")
    shown.append("note_identity")
    if found.num_requests > 1:
        shown.append("note_shared")
    return shown


def prediction_answers(runs: Runs) -> dict[str, float | str]:
    found = whole(runs)
    return {"kv_peak_mb": found.peak_bytes / 1e6, "total_s": found.total_s}
