"""What one request's Run says about prefill and decode, as values for the lesson's sentences."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from engine.lab.metrics import duration_s, kv_of_request, percentile, request_metrics, step_kind, step_spread
from engine.lab.records import RequestRecord, Run, StepRecord
from engine.lab.work import intensity, moved_bytes, prefill_flops, roofline_s
from lessons.facts_error import FactsError
from lessons.text import Fact, format_bytes

NEAR = (0.9, 1.3)  # measured over modelled TPOT within which one division predicts decode
NOISY = 0.5  # spread of like steps, (p90 − p10)/median, beyond which a page should warn
LONG_PROMPT = 256  # prompt length at which FLOPs per prompt token are taken: the head's share has faded by then


def the_run(runs: Mapping[str, Run]) -> tuple[Run, RequestRecord]:
    """The Run and its first request. Raises: FactsError when there is none, or it gave no token."""
    run = runs.get("run")
    if run is None:
        raise FactsError("there is no run yet; run the lesson first")
    if not run.requests:
        raise FactsError("this run holds no request; run the lesson again")
    record = run.requests[0]
    if record.first_token_s is None or record.completion_s is None or record.first_scheduled_s is None:
        raise FactsError("this run ended before its first token; run the lesson again")
    return run, record


def prefill_s(record: RequestRecord) -> float:
    """Seconds from the start of the prefill to the first token."""
    return record.first_token_s - record.first_scheduled_s


def prefill_share(record: RequestRecord) -> float:
    """The prefill's part of the time from its start to the last token, in [0, 1]."""
    return prefill_s(record) / (record.completion_s - record.first_scheduled_s)


def steps_of(run: Run, kind: str) -> list[StepRecord]:
    return [step for step in run.steps if step_kind(step) == kind]


def mean_intensity(steps: list[StepRecord]) -> float:
    """FLOP per byte over all the steps together."""
    return sum(s.work.flops for s in steps) / sum(moved_bytes(s.work) for s in steps)


def facts(runs: Mapping[str, Run]) -> dict[str, Fact]:
    run, record = the_run(runs)
    found = _token_facts(run, record)
    if record.num_output_tokens > 1:
        found |= _decode_facts(run, record)
        if run.header.device.read_gbps and run.header.device.matmul_tflops:
            found |= _model_facts(run, record)
    return found


def sections(runs: Mapping[str, Run]) -> list[str]:
    run, record = the_run(runs)
    if record.num_output_tokens < 2:
        return ["note_one_token"]
    found = ["after", "why"]
    values = facts(runs)
    if (step_spread(run, "decode").relative or 0.0) > NOISY:
        found.append("note_noisy")
    if "ridge" not in values:
        found.append("note_no_ceilings")
    else:
        low, high = NEAR
        factor = values["tpot_factor"]
        found.append(
            "note_decode_below" if factor < low else "note_decode_near" if factor <= high else "note_decode_above"
        )
        short = record.num_prompt_tokens < values["cross_tokens"]
        found.append("note_prefill_memory" if short else "note_prefill_compute")
    found.append("note_kv")
    if record.finish_reason == "stop":
        found.append("note_stop")
    return found


def prediction_answers(runs: Mapping[str, Run]) -> dict[str, float | str]:
    """``token_ratio`` is missing when there was no decode step."""
    _, record = the_run(runs)
    answers: dict[str, float | str] = {"prefill_share": 100 * prefill_share(record)}
    tpot_s = request_metrics(record).tpot_s
    if tpot_s is not None:
        answers["token_ratio"] = tpot_s / (prefill_s(record) / record.num_prompt_tokens)
    return answers


def _token_facts(run: Run, record: RequestRecord) -> dict[str, Fact]:
    """What is known as soon as there is one token."""
    kv = kv_of_request(run, record.request_id)[-1]
    num_prompt, num_output = record.num_prompt_tokens, record.num_output_tokens
    return {
        "model": run.header.model.name,
        "weights": format_bytes(run.header.model.weight_bytes),
        "num_prompt_tokens": num_prompt,
        "num_output_tokens": num_output,
        "num_all_tokens": num_prompt + num_output,
        "num_decode_steps": len(steps_of(run, "decode")),
        "prefill_ms": 1e3 * prefill_s(record),
        "prefill_ms_per_token": 1e3 * prefill_s(record) / num_prompt,
        "prefill_rate": num_prompt / prefill_s(record),
        "kv_positions": kv.num_tokens,
        "kv_per_position": format_bytes(kv.filled_bytes / kv.num_tokens),
        "kv_total": format_bytes(kv.filled_bytes),
        "kv_blocks": kv.num_blocks,
        "block_size": run.header.block_size,
        "unused_slots": kv.num_blocks * run.header.block_size - kv.num_tokens,
    }


def _decode_facts(run: Run, record: RequestRecord) -> dict[str, Fact]:
    tpot_s = request_metrics(record).tpot_s
    if tpot_s is None:
        raise FactsError("this run was aborted; run the lesson again")
    model = run.header.model
    decode = steps_of(run, "decode")
    prefill = steps_of(run, "prefill")
    bytes_per_weight = model.weight_bytes / model.num_parameters
    nearest = round(bytes_per_weight)
    return {
        "tpot_ms": 1e3 * tpot_s,
        "spread_low_ms": 1e3 * percentile([duration_s(s) for s in decode], 10),
        "spread_high_ms": 1e3 * percentile([duration_s(s) for s in decode], 90),
        "token_ratio": tpot_s / (prefill_s(record) / record.num_prompt_tokens),
        "decode_rate": 1 / tpot_s,
        "prefill_share": 100 * prefill_share(record),
        "decode_share": 100 * (1 - prefill_share(record)),
        "gflop_per_token": statistics.median(s.work.flops for s in decode) / 1e9,
        "gflop_per_prompt_token": sum(s.work.flops for s in prefill) / record.num_prompt_tokens / 1e9,
        "bytes_per_weight": nearest if abs(bytes_per_weight - nearest) < 0.01 else bytes_per_weight,
        "flop_per_weight_byte": f"{2 / bytes_per_weight:.3g}",
        "prefill_intensity": mean_intensity(prefill),
        "decode_intensity": statistics.median(intensity(s.work) for s in decode),
    }


def _model_facts(run: Run, record: RequestRecord) -> dict[str, Fact]:
    """The measured times beside what the device's measured ceilings allow."""
    device, model = run.header.device, run.header.model
    ridge = device.matmul_tflops * 1e12 / (device.read_gbps * 1e9)
    prefill = steps_of(run, "prefill")
    num_flops, num_bytes = (sum(f(s.work) for s in prefill) for f in (lambda w: w.flops, moved_bytes))
    tpot_model_s = model.weight_bytes / (device.read_gbps * 1e9)
    flops_per_prompt_token = prefill_flops(model, LONG_PROMPT) / LONG_PROMPT
    return {
        "read_gbps": device.read_gbps,
        "matmul_tflops": device.matmul_tflops,
        "ridge": ridge,
        "cross_tokens": max(1, round(ridge * model.weight_bytes / flops_per_prompt_token)),
        "tpot_model_ms": 1e3 * tpot_model_s,
        "tpot_factor": request_metrics(record).tpot_s / tpot_model_s,
        "prefill_model_ms": 1e3 * roofline_s(num_flops, num_bytes, device.read_gbps, device.matmul_tflops),
        "prefill_step_ms": 1e3 * sum(duration_s(s) for s in prefill),
    }
