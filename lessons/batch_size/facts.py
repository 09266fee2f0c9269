"""What the parts of the batching study say together, as values for the lesson's sentences.

It decides which notes hold: whether doubling the batch still paid at the end, how near the times lie to the roofline,
and what the batch cost in KV memory, padding and waiting. Numbers of the source lesson's card and model come from the
catalogue (``card_facts``).
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.lab import catalogue
from engine.lab.metrics import duration_s, step_kind
from engine.lab.records import Run, StepRecord
from engine.lab.work import element_sizes, kv_cache_bytes, num_requests_that_fit
from lessons.batch_size.points import (
    BatchPoint,
    batch_points,
    crossing_batch,
    last_that_pays,
    shared_step,
    step_line,
)
from lessons.batch_size.scenarios import BATCHES, UNEVEN
from lessons.facts_error import FactsError
from lessons.text import Fact, format_bytes, format_seconds

NEAR = (0.8, 1.4)  # measured over modelled time within which the roof explains a step
FLAT = 0.5  # own parts of the largest batch over the shared part, below which the steps "hardly grew"
NOISY = 0.5  # (p90 - p10)/median of like steps beyond which a page should warn
SOURCE_DEVICE = "rtx-5060-ti"  # the card and the model of the source lesson's claims
SOURCE_MODEL = "llama-2-7b"
SOURCE_RIDGE = 51
SHORT_CONTEXT, LONG_CONTEXT = 512, 2048  # the contexts at which the claims about eight requests are derived
ONE, EIGHT, MOST = BATCHES[0], 8, BATCHES[-1]

Runs = Mapping[str, Run]


def needed_points(runs: Runs) -> dict[int, BatchPoint]:
    """All points there are. Raises: FactsError when one is missing that the lesson cannot do without."""
    found = batch_points(runs)
    missing = [f"batch_{size}" for size in (ONE, EIGHT, MOST) if size not in found]
    if missing:
        raise FactsError(f"there is no point for {', '.join(missing)} yet; run the whole study")
    if len({p.run.header.dtype for p in found.values()}) > 1:
        raise FactsError("the points are of different number formats; run the whole study in one")
    return found


def ceilings(runs: Runs) -> tuple[float, float] | None:
    """(read GB/s, matmul TFLOP/s) as the newest Run recorded them; None while they are not measured. Pure."""
    device = list(needed_points(runs).values())[-1].run.header.device
    return (device.read_gbps, device.matmul_tflops) if device.read_gbps and device.matmul_tflops else None


def context_of(point: BatchPoint) -> int:
    """Prompt tokens of each request of the part. Pure."""
    return point.run.requests[0].num_prompt_tokens


def facts(runs: Runs) -> dict[str, Fact]:
    found = needed_points(runs)
    one, eight, most = found[ONE], found[EIGHT], found[MOST]
    header = one.run.header
    positions = most.run.requests[0].num_prompt_tokens + most.run.requests[0].num_output_tokens - 1
    per_request = kv_cache_bytes(header.model, positions, element_sizes(header)[1])
    values: dict[str, Fact] = {
        "model": header.model.name,
        "dtype": header.dtype,
        "weights": format_bytes(header.model.weight_bytes),
        "context": context_of(one),
        "most": MOST,
        "one_ms": 1e3 * one.step_s,
        "eight_ms": 1e3 * eight.step_s,
        "most_ms": 1e3 * most.step_s,
        "one_tps": one.tokens_per_s,
        "eight_tps": eight.tokens_per_s,
        "most_tps": most.tokens_per_s,
        "gain_eight": eight.tokens_per_s / one.tokens_per_s,
        "gain_most": most.tokens_per_s / one.tokens_per_s,
        "ratio_eight": eight.step_s / one.step_s,
        "ratio_most": most.step_s / one.step_s,
        "one_gflop": one.flops / 1e9,
        "most_gflop": most.flops / 1e9,
        "spread_low_ms": 1e3 * one.low_s,
        "spread_high_ms": 1e3 * one.high_s,
        "positions": positions,
        "kv_request": format_bytes(per_request),
        "kv_most": format_bytes(most.kv_bytes),
        "kv_filled": format_bytes(most.kv_filled_bytes),
        "kv_share": 100 * most.kv_bytes / header.model.weight_bytes,
        "kv_equal": round(header.model.weight_bytes / per_request),
        "ttft_one": format_seconds(one.ttft_s),
        "ttft_most": format_seconds(most.ttft_s),
        "ttft_ratio": most.ttft_s / one.ttft_s,
    }
    return (
        values
        | _line_facts(found)
        | _stop_facts(found)
        | _ceiling_facts(runs, found)
        | padding_facts(runs)
        | card_facts()
    )


def _line_facts(found: Mapping[int, BatchPoint]) -> dict[str, Fact]:
    """The shared part of a step and each request's own; empty where the steps hardly grew or no line fits."""
    base_s, added_s = step_line(found.values())
    if base_s <= 0 or MOST * added_s <= FLAT * base_s:
        return {}
    return {
        "base_ms": 1e3 * base_s,
        "added_ms": 1e3 * added_s,
        "break_even": max(1, round(base_s / added_s)),
        "limit_tps": 1 / added_s,
    }


def _stop_facts(found: Mapping[int, BatchPoint]) -> dict[str, Fact]:
    """Up to which batch every doubling paid; ``stop`` is missing where all of them did."""
    sizes, rates = list(found), [p.tokens_per_s for p in found.values()]
    stop = last_that_pays(sizes, rates)
    if stop is None:
        return {"last_gain": rates[-1] / rates[-2], "last_from": sizes[-2]}
    after = sizes[sizes.index(stop) + 1]
    return {"stop": stop, "stop_after": after, "stop_gain": found[after].tokens_per_s / found[stop].tokens_per_s}


def _ceiling_facts(runs: Runs, found: Mapping[int, BatchPoint]) -> dict[str, Fact]:
    """Utilization, and the measured times beside what the device's measured ceilings allow."""
    roof = ceilings(runs)
    if roof is None:
        return {}
    read, rate = roof
    values: dict[str, Fact] = {"read_gbps": read, "matmul_tflops": rate, "ridge": rate * 1e3 / read}
    for name, size in (("one", ONE), ("eight", EIGHT), ("most", MOST)):
        point = found[size]
        modelled = point.modelled_s(read, rate)
        values |= {
            f"{name}_util": 100 * point.utilization(rate),
            f"{name}_util_model": 100 * point.flops / modelled / (rate * 1e12),
            f"{name}_model_ms": 1e3 * modelled,
            f"{name}_factor": point.step_s / modelled,
            f"{name}_intensity": point.intensity,
        }
    crossing = crossing_batch(found[ONE].run.header.model, context_of(found[ONE]), rate * 1e3 / read)
    return values if crossing is None else values | {"cross": crossing}


def padding_facts(runs: Runs) -> dict[str, Fact]:
    """What the batch of unequal lengths computed for nothing; empty without a finished Run of it. Pure."""
    run = runs.get(UNEVEN)
    steps = [] if run is None else [step for step in run.steps if step_kind(step) == "decode"]
    useful, padding = sum(s.work.tokens for s in steps), sum(s.work.padding_tokens for s in steps)
    seconds = sum(duration_s(s) for s in steps)
    if run is None or not padding or not seconds or any(r.finish_reason in (None, "abort") for r in run.requests):
        return {}
    lengths = sorted(r.num_output_tokens for r in run.requests)
    values: dict[str, Fact] = {
        "uneven_requests": len(lengths),
        "uneven_longest": lengths[-1],
        "uneven_shortest": lengths[0],
        "uneven_steps": len(steps),
        "uneven_rows": useful + padding,
        "uneven_useful": useful,
        "padding_rows": padding,
        "padding_share": 100 * padding / (useful + padding),
        "uneven_tps": useful / seconds,
    }
    full = batch_points(runs).get(len(lengths))
    if full is not None:
        values["full_tps"] = full.tokens_per_s
    return values


def padded_steps(run: Run) -> list[StepRecord]:
    """The decode steps in which at least one row was padding. Pure."""
    return [step for step in run.steps if step.work.padding_tokens]


def card_facts() -> dict[str, Fact]:
    """The source lesson's card with its model in 16 bits: where a larger batch stops paying there, and why."""
    card, model = catalogue.device(SOURCE_DEVICE), catalogue.model(SOURCE_MODEL)
    info, read = model.info("float16"), card.bandwidth_gbps.value
    rate = card.rate("float16").value
    one, eight = (shared_step(info, n, SHORT_CONTEXT, read, rate) for n in (ONE, EIGHT))
    room = card.memory_gb.value * 1e9
    own = kv_cache_bytes(info, SHORT_CONTEXT, 2.0)
    return {
        "card": card.name,
        "card_memory": f"{card.memory_gb.value:g} GB",
        "card_model": model.name,
        "card_context": SHORT_CONTEXT,
        "card_long": LONG_CONTEXT,
        "card_ridge": f"{card.ridge('float16'):.0f}",
        "card_ridge_vector": f"{card.ridge('float32', 'vector'):.0f}",
        "card_gain": eight.tokens_per_s / one.tokens_per_s,
        "card_own": format_bytes(own),
        "card_own_flop": one.flops / 1e9,
        "card_limit": one.flops / own,
        "card_fit": num_requests_that_fit(info, room, SHORT_CONTEXT, 2.0),
        "card_fit_long": num_requests_that_fit(info, room, LONG_CONTEXT, 2.0),
    }


def sections(runs: Runs) -> list[str]:
    values = facts(runs)
    one = needed_points(runs)[ONE]
    found = ["after", "why"]
    if (one.high_s - one.low_s) / one.step_s > NOISY:
        found.append("note_noisy")
    if "base_ms" in values:
        found.append("note_line")
    elif values["ratio_most"] < 1 + FLAT:
        found.append("note_flat")
    found.append("note_stops" if "stop" in values else "note_keeps")
    if "ridge" not in values:
        found.append("note_no_ceilings")
    else:
        found.append("note_utilization")
        found.append("note_cross" if "cross" in values else "note_cross_never")
        low, high = NEAR
        near = low <= values["most_factor"] <= high
        found.append(
            "note_model_near" if near else f"note_model_{'above' if values['most_factor'] > high else 'below'}"
        )
    found.append("note_memory")
    if "padding_rows" in values and "full_tps" in values:
        found.append("note_padding")
    return [*found, "note_waiting", "note_card"]


def prediction_answers(runs: Runs) -> dict[str, float | str]:
    values = facts(runs)
    return {"gain_eight": values["gain_eight"], "ratio_most": values["ratio_most"]}
