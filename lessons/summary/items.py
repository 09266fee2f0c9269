"""Questions about the learner's own last run. The words are in generated.yaml."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from types import MappingProxyType

from engine.lab.metrics import num_rows, request_metrics, run_metrics, step_kind
from engine.lab.records import Run
from engine.lab.work import moved_bytes
from lessons.facts_error import FactsError
from lessons.generated import Draft, Generator
from lessons.summary.facts import Whole, whole
from lessons.text import Fact, format_bytes

Runs = Mapping[str, Run]
SHOWN = 3  # steps of a trace before the one that is asked about


def _whole(runs: Runs) -> Whole | None:
    try:
        return whole(runs)
    except FactsError:
        return None


def identity(runs: Runs, rng: random.Random) -> Draft | None:
    """The latency of one request from its TTFT and TPOT."""
    found = _whole(runs)
    if found is None:
        return None
    metrics = request_metrics(rng.choice(found.run.requests))
    if metrics.tpot_s is None or metrics.num_output_tokens < 4:
        return None
    ttft, tpot, tokens = 1e3 * metrics.ttft_s, 1e3 * metrics.tpot_s, metrics.num_output_tokens
    return Draft(
        values={
            "request": metrics.request_id,
            "ttft": f"{ttft:.1f}",
            "tpot": f"{tpot:.2f}",
            "num_tokens": tokens,
            "gaps": tokens - 1,
            "e2e": f"{1e3 * metrics.e2e_s:.1f}",
        },
        runs=(found.run,),
        answer=1e3 * metrics.e2e_s,
        tolerance=0.3 * tpot,
        traps={
            "off_by_one_gap": ttft + tokens * tpot,
            "ttft_forgotten": (tokens - 1) * tpot,
            "tpot_is_latency": ttft + tpot,
        },
    )


def throughput(runs: Runs, rng: random.Random) -> Draft | None:
    """Tokens per second of the whole run."""
    found = _whole(runs)
    if found is None or found.num_requests == 1:
        return None
    answer = run_metrics(found.run).output_tokens_per_s
    return Draft(
        values={
            "num_requests": found.num_requests,
            "prompt": found.prompt_tokens,
            "output": found.output_tokens,
            "seconds": f"{found.total_s:.3f}",
            "all": found.num_output_tokens,
            "tps": answer,
        },
        runs=(found.run,),
        answer=answer,
        tolerance=0.02 * answer,
        traps={
            "prompt_tokens_counted": found.num_requests * (found.prompt_tokens + found.output_tokens) / found.total_s,
            "throughput_per_request": answer / found.num_requests,
            "throughput_upside_down": found.total_s / found.num_output_tokens,
        },
    )


def least_step(runs: Runs, rng: random.Random) -> Draft | None:
    """The least time of one of the decode steps by the memory ceiling."""
    found = _whole(runs)
    device = found.run.header.device if found else None
    if found is None or not found.decode or not device.read_gbps:
        return None
    step = rng.choice(found.decode)
    weights, cache = step.work.weight_bytes, moved_bytes(step.work) - step.work.weight_bytes
    answer = (weights + cache) / device.read_gbps / 1e6
    rows = num_rows(step)
    return Draft(
        values={
            "step": step.step,
            "size": _requests(rows),
            "weights": format_bytes(weights),
            "cache": format_bytes(cache),
            "gbps": f"{device.read_gbps:.1f}",
            "both": format_bytes(weights + cache),
            "least": answer,
        },
        runs=(found.run,),
        answer=answer,
        tolerance=0.02 * answer,
        traps={
            "own_cache_forgotten": weights / device.read_gbps / 1e6,
            "weights_read_per_row": (rows * weights + cache) / device.read_gbps / 1e6 if rows > 1 else None,
            "measured_time_is_least": step.time_ms.forward,
        },
    )


def next_blocks(runs: Runs, rng: random.Random) -> Draft | None:
    """The blocks in use after the next step of a trace in which every request decodes."""
    found = _whole(runs)
    if found is None:
        return None
    run, size = found.run, found.run.header.block_size
    cases = []
    for index in range(SHOWN, len(run.steps) - 1):  # after the last step nothing is in use
        window = run.steps[index - SHOWN : index + 1]
        if all(step_kind(s) == "decode" and num_rows(s) == found.num_requests for s in window) and not any(
            o.finish_reason for s in window for o in s.outputs
        ):
            cases.append(window)
    if not cases:
        return None
    grows = [w for w in cases if w[-1].blocks.in_use != w[-2].blocks.in_use]
    window = rng.choice(grows or cases)
    target, before = window[-1], window[-2]
    return Draft(
        values={
            "size": size,
            "num_requests": _requests(found.num_requests),
            "table": {lang: _table(heads, window) for lang, heads in _HEADS.items()},
            "blocks": target.blocks.in_use,
            "new": target.blocks.in_use - before.blocks.in_use,
        },
        runs=(run,),
        answer=target.blocks.in_use,
        whole=True,
        traps={
            "blocks_never_grow": before.blocks.in_use,
            "one_block_per_step": before.blocks.in_use + 1,
            "block_per_token": before.blocks.in_use + found.num_requests,
            "blocks_shared_by_requests": math.ceil(sum(row.start + row.num_tokens for row in target.scheduled) / size),
        },
    )


_HEADS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "en": ("step", "requests", "shortest", "longest", "blocks"),
        "zh": ("步", "请求数", "最短", "最长", "块"),
    }
)


def _table(heads: tuple[str, ...], window: list) -> str:
    """Positions of the shortest and the longest request after each step; a Chinese character is two letters wide."""
    rows = []
    for step in window:
        ends = [row.start + row.num_tokens for row in step.scheduled]
        held = "?" if step is window[-1] else str(step.blocks.in_use)
        rows.append((str(step.step), str(len(ends)), str(min(ends)), str(max(ends)), held))
    widths = [max(sum(1 if c.isascii() else 2 for c in head), 4) for head in heads]
    pads = [wide - sum(1 if c.isascii() else 2 for c in head) for head, wide in zip(heads, widths, strict=True)]
    lines = ["  ".join(" " * pad + head for head, pad in zip(heads, pads, strict=True))]
    lines += ["  ".join(f"{cell:>{wide}}" for cell, wide in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(lines)


def _requests(count: int) -> Fact:
    return {"en": "one request" if count == 1 else f"{count} requests", "zh": f"{count} 个请求"}


GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {"identity": identity, "throughput": throughput, "least_step": least_step, "next_blocks": next_blocks}
)
