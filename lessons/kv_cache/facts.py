"""What one request served with and without a KV cache says about it, as values for the lesson's sentences."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from engine.lab.kv_use import KvUse
from engine.lab.metrics import duration_s, kv_of_request, step_spread
from engine.lab.records import RequestRecord, Run, StepRecord
from engine.lab.work import (
    decode_step_bytes,
    element_sizes,
    intensity,
    kv_bytes_per_token,
    kv_outgrows_weights_at,
    moved_bytes,
    roofline_s,
    with_kv_heads,
)
from lessons.facts_error import FactsError
from lessons.text import Fact, format_bytes, format_seconds

NOISY = 0.5  # spread of like decode steps, relative to their median, beyond which the page warns
FEW = 4  # tokens at either end over which a time per token is taken
NEAR = (1 / 1.4, 1.4)  # measured over modelled within which the model explains the time


@dataclass(frozen=True)
class Side:
    """One of the two Runs. ``steps`` are one per token, the first of them the prefill."""

    run: Run
    record: RequestRecord
    steps: tuple[StepRecord, ...]
    held: tuple[KvUse, ...]  # what the request held in each step

    @property
    def times_ms(self) -> list[float]:
        """Time per token, in order, the first one with the prompt."""
        return [1e3 * duration_s(step) for step in self.steps]

    @property
    def seconds(self) -> float:
        return sum(duration_s(step) for step in self.steps)

    @property
    def num_computed(self) -> int:
        """Positions that went through the model, counted again each time."""
        return sum(step.work.tokens for step in self.steps)

    @property
    def early_ms(self) -> float:
        """Time per token right after the first."""
        return statistics.median(self.times_ms[1 : 1 + FEW])

    @property
    def late_ms(self) -> float:
        """Time per token at the end."""
        return statistics.median(self.times_ms[-FEW:])

    @property
    def modelled_ms(self) -> list[float] | None:
        """Time per token by the roofline of the device, None without measured ceilings."""
        device = self.run.header.device
        if not device.read_gbps or not device.matmul_tflops:
            return None
        rates = device.read_gbps, device.matmul_tflops
        return [1e3 * roofline_s(s.work.flops, moved_bytes(s.work), *rates) for s in self.steps]


@dataclass(frozen=True)
class Pair:
    """The same request with and without the cache."""

    cached: Side
    uncached: Side

    @property
    def slowdown(self) -> float:
        return self.uncached.seconds / self.cached.seconds

    @property
    def same_tokens(self) -> int:
        """How many tokens of the two answers agree before the first that does not."""
        pairs = zip(self.cached.record.output_token_ids, self.uncached.record.output_token_ids, strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), self.cached.record.num_output_tokens)


def side(runs: Mapping[str, Run], role: str) -> Side:
    """Raises: FactsError when the Run is missing, was cut short, or has too few tokens to see anything grow."""
    run = runs.get(role)
    if run is None:
        raise FactsError("there is no run yet; run the lesson first")
    if not run.requests:
        raise FactsError("this run holds no request; run the lesson again")
    record = run.requests[0]
    if record.completion_s is None or record.finish_reason == "abort" or record.num_output_tokens < 2:
        raise FactsError("this run ended before its second token; run the lesson again")
    steps = tuple(s for s in run.steps if any(row.request_id == record.request_id for row in s.scheduled))
    if len(steps) != record.num_output_tokens:
        raise FactsError("this run did not compute its prompt in one step; run the lesson again")
    return Side(run, record, steps, kv_of_request(run, record.request_id))


def pair(runs: Mapping[str, Run]) -> Pair:
    """Raises: FactsError as ``side``."""
    return Pair(side(runs, "cached"), side(runs, "uncached"))


def position_bytes(run: Run) -> float:
    """KV bytes of one position, by the formula. Pure."""
    return kv_bytes_per_token(run.header.model, element_sizes(run.header)[1])


# ------------------------------------------------------------------ what the lesson asks for
def facts(runs: Mapping[str, Run]) -> dict[str, Fact]:
    found = pair(runs)
    return _time_facts(found) | _memory_facts(found.cached) | _model_facts(found)


def sections(runs: Mapping[str, Run]) -> list[str]:
    found = pair(runs)
    model = found.cached.run.header.model
    whole = found.same_tokens == found.cached.record.num_output_tokens
    shown = ["after", "why"]
    if (step_spread(found.cached.run, "decode").relative or 0.0) > NOISY:
        shown.append("note_noisy")
    shown.append("note_same" if whole else "note_not_same")
    if found.cached.modelled_ms is None:
        shown.append("note_no_ceilings")
    else:
        shown.append("note_growth_compute" if _is_compute_bound(found) else "note_growth_memory")
        near = all(NEAR[0] <= factor <= NEAR[1] for factor in _factors(found))
        shown.append("note_model_near" if near else "note_model_far")
    shown += ["note_not_constant", "note_blocks"]
    return [*shown, "note_gqa" if model.num_kv_heads < model.num_heads else "note_mha", "note_outgrow"]


def prediction_answers(runs: Mapping[str, Run]) -> dict[str, float | str]:
    found = pair(runs)
    return {"kv_kb_per_token": _measured_kb_per_token(found.cached), "slowdown": found.slowdown}


def _measured_kb_per_token(cached: Side) -> float:
    """From the block pool: bytes of a block over the positions it holds."""
    last = cached.held[-1]
    return last.reserved_bytes / last.num_blocks / cached.run.header.block_size / 1e3


def _time_facts(found: Pair) -> dict[str, Fact]:
    cached, uncached = found.cached, found.uncached
    first = cached.record.num_prompt_tokens + 1
    return {
        "num_prompt_tokens": cached.record.num_prompt_tokens,
        "num_output_tokens": cached.record.num_output_tokens,
        "cached_time": format_seconds(cached.seconds),
        "uncached_time": format_seconds(uncached.seconds),
        "slowdown": found.slowdown,
        "cached_early": format_seconds(cached.early_ms / 1e3),
        "cached_late": format_seconds(cached.late_ms / 1e3),
        "uncached_early": format_seconds(uncached.early_ms / 1e3),
        "uncached_late": format_seconds(uncached.late_ms / 1e3),
        "uncached_growth": uncached.late_ms / uncached.early_ms,
        "late_ratio": uncached.late_ms / cached.late_ms,
        "cached_computed": cached.num_computed,
        "uncached_computed": uncached.num_computed,
        "computed_ratio": uncached.num_computed / cached.num_computed,
        "second_pass": first,
        "last_pass": uncached.steps[-1].work.tokens,
        "work_ratio": sum(s.work.flops for s in uncached.steps) / sum(s.work.flops for s in cached.steps),
        "same_tokens": found.same_tokens,
        "next_token": found.same_tokens + 1,
        "spread_low": format_seconds(min(cached.times_ms[1:]) / 1e3),
        "spread_high": format_seconds(max(cached.times_ms[1:]) / 1e3),
    }


def _memory_facts(cached: Side) -> dict[str, Fact]:
    header, last = cached.run.header, cached.held[-1]
    model, size = header.model, element_sizes(header)[1]
    per_position = position_bytes(cached.run)
    largest = 8_192
    outgrown = kv_outgrows_weights_at(model, size)
    step_bytes = decode_step_bytes(model, last.num_tokens, size)
    far_bytes = decode_step_bytes(model, largest, size)
    slots = last.num_blocks * header.block_size
    return {
        "model": model.name,
        "num_layers": model.num_layers,
        "num_heads": model.num_heads,
        "num_kv_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "hidden_size": model.hidden_size,
        "hidden_factor": model.hidden_size / (model.num_kv_heads * model.head_dim),
        "all_heads": model.num_heads * model.head_dim,
        "element_bytes": int(size) if size == int(size) else size,
        "per_position": format_bytes(per_position),
        "kv_positions": last.num_tokens,
        "num_tokens": cached.record.num_prompt_tokens + cached.record.num_output_tokens,
        "kv_bytes": format_bytes(last.filled_bytes),
        "pool_bytes": format_bytes(last.reserved_bytes),
        "kv_blocks": last.num_blocks,
        "block_size": header.block_size,
        "block_bytes": format_bytes(last.reserved_bytes / last.num_blocks),
        "num_slots": slots,
        "unused_slots": slots - last.num_tokens,
        "unused_bytes": format_bytes(last.reserved_bytes - last.filled_bytes),
        "weights": format_bytes(model.weight_bytes),
        "kv_share": 100 * (step_bytes - model.weight_bytes) / step_bytes,
        "far": largest,
        "far_share": 100 * (far_bytes - model.weight_bytes) / far_bytes,
        "outgrown_at": outgrown,
        "group": model.num_heads // model.num_kv_heads,
        "mha_per_position": format_bytes(kv_bytes_per_token(with_kv_heads(model, model.num_heads), size)),
        "mqa_per_position": format_bytes(kv_bytes_per_token(with_kv_heads(model, 1), size)),
        "mha_outgrown_at": kv_outgrows_weights_at(with_kv_heads(model, model.num_heads), size),
        "half_per_position": format_bytes(kv_bytes_per_token(model, 1.0)),
    }


def _model_facts(found: Pair) -> dict[str, Fact]:
    device, cached, uncached = found.cached.run.header.device, found.cached, found.uncached
    if cached.modelled_ms is None:
        return {}
    ridge = device.matmul_tflops * 1e3 / device.read_gbps
    last = uncached.steps[-1]
    cached_factor, uncached_factor = _factors(found)
    return {
        "read_gbps": device.read_gbps,
        "matmul_tflops": device.matmul_tflops,
        "ridge": ridge,
        "last_intensity": intensity(last.work),
        "cached_model": format_seconds(statistics.median(cached.modelled_ms[1:]) / 1e3),
        "cached_factor": cached_factor,
        "uncached_model": format_seconds(statistics.median(uncached.modelled_ms[1:]) / 1e3),
        "uncached_factor": uncached_factor,
    }


def _factors(found: Pair) -> tuple[float, float]:
    """Measured over modelled, of all tokens but the first: with the cache, and without."""
    sides = (found.cached, found.uncached)
    with_cache, without = (sum(s.times_ms[1:]) / sum(s.modelled_ms[1:]) for s in sides)
    return with_cache, without


def _is_compute_bound(found: Pair) -> bool:
    """Whether the last pass without a cache has more arithmetic than this device does while it reads."""
    device = found.cached.run.header.device
    return intensity(found.uncached.steps[-1].work) > device.matmul_tflops * 1e3 / device.read_gbps
