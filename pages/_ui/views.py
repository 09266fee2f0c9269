"""What the lesson pages read out of a Run: plain numbers for figures and tables, through ``engine.lab``.

Pure functions of Runs; no Streamlit, no engine. Definitions (TTFT, TPOT, FLOPs, bytes) are those of ``engine.lab``:
this module only picks and pairs them. What a Run does not say is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.lab.metrics import (
    all_request_metrics,
    duration_s,
    kv_of_request,
    percentile,
    request_metrics,
    run_metrics,
    step_kind,
    token_times,
)
from engine.lab.records import Run, StepRecord
from engine.lab.work import element_sizes, kv_bytes_per_token, prefill_flops


@dataclass(frozen=True)
class OneRequest:
    """A Run with one request, as the prefill-and-decode page shows it. Times in ms, rates in tokens/s."""

    request_id: str
    num_prompt_tokens: int
    num_output_tokens: int
    finish_reason: str | None
    ttft_ms: float
    gaps_ms: list[float]
    tpot_ms: float | None
    prefill_ms: float
    decode_ms: float
    prefill_tps: float
    decode_tps: float | None
    positions: list[int]  # in the cache after each step
    held_blocks: list[int]  # blocks of the request in each step, before any are given back
    pool_bytes: list[int]  # what those blocks take
    bytes_per_position: float
    block_size: int
    modelled_tpot_ms: float | None  # weight bytes / read rate
    modelled_ttft_ms: float | None  # prompt FLOPs / matmul rate
    prompt_flops: int

    @property
    def block_bytes(self) -> float:
        return self.block_size * self.bytes_per_position

    @property
    def formula_bytes(self) -> list[float]:
        return [position * self.bytes_per_position for position in self.positions]


def one_request(run: Run) -> OneRequest | None:
    """The view of a Run with one request; None when it made no token. Pure."""
    if not run.requests:
        return None
    record = run.requests[0]
    tokens, latencies = token_times(run)[record.request_id], request_metrics(record)
    if not tokens or latencies.ttft_s is None:
        return None
    header = run.header
    per_position = kv_bytes_per_token(header.model, element_sizes(header)[1])
    prefill = [step for step in run.steps if step_kind(step) in ("prefill", "mixed")]
    decode = [step for step in run.steps if step_kind(step) == "decode"]
    prefill_s, decode_s = _seconds(prefill), _seconds(decode)
    held = kv_of_request(run, record.request_id)
    gaps_ms = [token.latency_s * 1e3 for token in tokens[1:]]
    flops = prefill_flops(header.model, record.num_prompt_tokens)
    read, rate = header.device.read_gbps, header.device.matmul_tflops
    return OneRequest(
        request_id=record.request_id,
        num_prompt_tokens=record.num_prompt_tokens,
        num_output_tokens=len(tokens),
        finish_reason=record.finish_reason,
        ttft_ms=tokens[0].latency_s * 1e3,
        gaps_ms=gaps_ms,
        tpot_ms=sum(gaps_ms) / len(gaps_ms) if gaps_ms else None,
        prefill_ms=prefill_s * 1e3,
        decode_ms=decode_s * 1e3,
        prefill_tps=record.num_prompt_tokens / max(prefill_s, 1e-9),
        decode_tps=len(gaps_ms) / sum(gaps_ms) * 1e3 if gaps_ms else None,
        positions=[use.num_tokens for use in held],
        held_blocks=[use.num_blocks for use in held],
        pool_bytes=[use.reserved_bytes for use in held],
        bytes_per_position=per_position,
        block_size=header.block_size,
        modelled_tpot_ms=header.model.weight_bytes / (read * 1e9) * 1e3 if read else None,
        modelled_ttft_ms=flops / (rate * 1e12) * 1e3 if rate else None,
        prompt_flops=flops,
    )


def _seconds(steps: Sequence[StepRecord]) -> float:
    return sum(duration_s(step) for step in steps)


# ------------------------------------------------------------------------------------------------- two policies
@dataclass(frozen=True)
class PolicyResult:
    """One policy's Run in the numbers of the comparison."""

    makespan_ms: float | None
    output_tps: float | None
    ttft_mean_ms: float | None
    ttft_p95_ms: float | None
    e2e_mean_ms: float | None
    padding_share: float | None
    num_steps: int
    num_output_tokens: int


def policy_result(run: Run) -> PolicyResult:
    """Pure."""
    found = run_metrics(run)
    ttfts = [m.ttft_s for m in all_request_metrics(run).values() if m.ttft_s is not None]
    return PolicyResult(
        makespan_ms=_ms(found.makespan_s),
        output_tps=found.output_tokens_per_s,
        ttft_mean_ms=_ms(found.ttft_s.mean),
        ttft_p95_ms=_ms(percentile(ttfts, 95)),
        e2e_mean_ms=_ms(found.e2e_s.mean),
        padding_share=decode_padding_share(run),
        num_steps=found.num_steps,
        num_output_tokens=found.num_output_tokens,
    )


def ttft_per_request(run: Run) -> dict[str, float | None]:
    """TTFT in ms by request. Pure."""
    return {name: _ms(m.ttft_s) for name, m in all_request_metrics(run).items()}


def e2e_per_request(run: Run) -> dict[str, float | None]:
    """Arrival to last token in ms by request. Pure."""
    return {name: _ms(m.e2e_s) for name, m in all_request_metrics(run).items()}


@dataclass(frozen=True)
class LengthModel:
    """What the output lengths alone say about the two policies, if every step took equally long."""

    shortest: int
    mean: float
    longest: int
    places: int
    static_steps: int  # each batch of ``places``, in order of arrival, lasts as long as its longest request
    continuous_steps: int  # a place that gets free is taken at once

    @property
    def speed_up(self) -> float:
        return self.static_steps / self.continuous_steps


def length_model(run: Run) -> LengthModel | None:
    """From the lengths that were really produced; arrivals and prompts are left out. None without output. Pure."""
    records = sorted((r for r in run.requests if r.num_output_tokens > 0), key=lambda r: r.arrival_s)
    if not records:
        return None
    lengths = [r.num_output_tokens for r in records]
    places = int((run.header.scenario.get("limits") or {}).get("max_requests") or len(lengths))
    busy_until = [0] * places
    for length in lengths:
        busy_until[busy_until.index(min(busy_until))] += length
    return LengthModel(
        shortest=min(lengths),
        mean=sum(lengths) / len(lengths),
        longest=max(lengths),
        places=places,
        static_steps=sum(max(lengths[i : i + places]) for i in range(0, len(lengths), places)),
        continuous_steps=max(busy_until),
    )


def decode_padding_share(run: Run) -> float | None:
    """Padding rows over all rows of the decode steps; None for a Run without one. Pure."""
    steps = [step.work for step in run.steps if step_kind(step) == "decode"]
    rows = sum(work.tokens + work.padding_tokens for work in steps)
    return sum(work.padding_tokens for work in steps) / rows if rows else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
