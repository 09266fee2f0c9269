"""What the parts of the roofline study say together, as values for the lesson's sentences.

It decides which notes hold: how near the points lie to the roof, on which side of the ridge, and whether this device
agrees with the model about the prompt length at which prefill stops waiting for memory. Numbers of devices and models
that are not here come from the catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.lab import catalogue
from engine.lab.records import Run
from lessons.facts_error import FactsError
from lessons.roofline.points import (
    Point,
    crossing_tokens,
    measured_crossing,
    points,
    prefill_intensity,
    ridge_of,
)
from lessons.roofline.scenarios import DECODE_BATCHES, PREFILL_LENGTHS
from lessons.text import Fact, format_bytes

NEAR = (0.8, 1.4)  # measured over modelled time within which the roof explains a step
BEYOND = 0.5  # share of the longest prompt above which the measured crossing is only a lower bound
AGREE = 2.0  # measured and modelled crossing that differ by less than this factor agree
CLIMBS = 0.5  # share of the ideal gain of more requests above which decode "climbs the slope"
NOISY = 0.5  # (p90 - p10)/median of like steps beyond which a page should warn
SOURCE_DEVICE = "rtx-5060-ti"  # the card of the source lesson's claims, and the model of its example
SOURCE_MODEL = "llama-2-7b"
SOURCE_RIDGE = 51
SHORT_PROMPT = 10

Runs = Mapping[str, Run]
FIRST, LAST = PREFILL_LENGTHS[0], PREFILL_LENGTHS[-1]
MOST = DECODE_BATCHES[-1]
NEEDED = (f"decode_{DECODE_BATCHES[0]}", f"prefill_{LAST}", f"decode_{MOST}")


def needed_points(runs: Runs) -> dict[str, Point]:
    """All points there are. Raises: FactsError when one is missing that the lesson cannot do without."""
    found = points(runs)
    missing = [role for role in NEEDED if role not in found]
    if missing:
        raise FactsError(f"there is no point for {', '.join(missing)} yet; run the whole study")
    if len({p.run.header.dtype for p in found.values()}) > 1:
        raise FactsError("the points are of different number formats; run the whole study in one")
    return found


def ceilings(runs: Runs) -> tuple[float, float] | None:
    """(read GB/s, matmul TFLOP/s) as the newest Run recorded them; None while they are not measured. Pure."""
    device = list(needed_points(runs).values())[-1].run.header.device
    return (device.read_gbps, device.matmul_tflops) if device.read_gbps and device.matmul_tflops else None


def facts(runs: Runs) -> dict[str, Fact]:
    found = needed_points(runs)
    one, many, longest = (found[role] for role in (NEEDED[0], NEEDED[2], NEEDED[1]))
    header = one.run.header
    model = header.model
    bytes_per_weight = model.weight_bytes / model.num_parameters
    nearest = round(bytes_per_weight)
    crossing = measured_crossing(one, longest)
    values: dict[str, Fact] = {
        "model": model.name,
        "dtype": header.dtype,
        "weights": format_bytes(model.weight_bytes),
        "bytes_per_weight": nearest if abs(bytes_per_weight - nearest) < 0.01 else bytes_per_weight,
        "flop_per_weight_byte": f"{2 / bytes_per_weight:.3g}",
        "longest": LAST,
        "most": MOST,
        "decode_ms": 1e3 * one.forward_s,
        "decode_gflops": 1e3 * one.tflops,
        "decode_intensity": one.intensity,
        "prefill_ms": 1e3 * longest.forward_s,
        "prefill_gflops": 1e3 * longest.tflops,
        "prefill_intensity": longest.intensity,
        "rate_ratio": longest.tflops / one.tflops,
        "many_ms": 1e3 * many.forward_s,
        "many_intensity": many.intensity,
        "batch_gain": many.tflops / one.tflops,
        "batch_ideal": many.intensity / one.intensity,
        "batch_time_ratio": many.forward_s / one.forward_s,
        "cross_measured": max(1, round(crossing)),
        "ms_per_prompt_token": 1e3 * longest.forward_s / longest.size,
        "spread_low_ms": 1e3 * one.low_s,
        "spread_high_ms": 1e3 * one.high_s,
    }
    return values | catalogue_facts() | _ceiling_facts(runs, one, longest)


def _ceiling_facts(runs: Runs, one: Point, longest: Point) -> dict[str, Fact]:
    """The measured times beside what the device's measured ceilings allow."""
    roof = ceilings(runs)
    if roof is None:
        return {}
    read, rate = roof
    ridge = ridge_of(read, rate)
    crossing = crossing_tokens(one.run.header.model, ridge)
    values: dict[str, Fact] = {
        "read_gbps": read,
        "matmul_tflops": rate,
        "ridge": ridge,
        "decode_model_ms": 1e3 * one.modelled_s(read, rate),
        "decode_factor": one.forward_s / one.modelled_s(read, rate),
        "decode_gbps": one.gbps,
        "decode_peak_percent": 100 * one.tflops / rate,
        "idle_percent": 100 * max(0.0, 1 - one.intensity / ridge),
        "prefill_model_ms": 1e3 * longest.modelled_s(read, rate),
        "prefill_factor": longest.forward_s / longest.modelled_s(read, rate),
        "prefill_peak_percent": 100 * longest.tflops / rate,
    }
    if crossing is not None:
        values["cross_model"] = crossing
        values["cross_factor"] = measured_crossing(one, longest) / crossing
    return values


def catalogue_facts() -> dict[str, Fact]:
    """The claims about a card and a model that are not here, derived again from the catalogue."""
    card = catalogue.device(SOURCE_DEVICE)
    vector, matrix = card.rate("float32", "vector"), card.rate("bfloat16")
    ridges = card.ridge("float32", "vector"), card.ridge("bfloat16")
    seven_b = catalogue.model(SOURCE_MODEL).info("float16")
    return {
        "card": card.name,
        "card_gbps": f"{card.bandwidth_gbps.value:g}",
        "card_vector_tflops": f"{vector.value:g}",
        "card_matrix_tflops": f"{matrix.value:g}",
        "ridge_vector": f"{ridges[0]:.0f}",
        "ridge_matrix": f"{ridges[1]:.0f}",
        "source_ridge": SOURCE_RIDGE,
        "short_prompt": SHORT_PROMPT,
        "seven_b": catalogue.model(SOURCE_MODEL).name,
        "seven_b_intensity": prefill_intensity(seven_b, SHORT_PROMPT, 2.0),
        "seven_b_cross_vector": crossing_tokens(seven_b, ridges[0]),
        "seven_b_cross_matrix": crossing_tokens(seven_b, ridges[1]),
        "wait_percent": 100 * (1 - 1 / SOURCE_RIDGE),
        "wait_percent_matrix": 100 * (1 - 1 / ridges[1]),
    }


def sections(runs: Runs) -> list[str]:
    values = facts(runs)
    one = needed_points(runs)[NEEDED[0]]
    found = ["after", "why"]
    if (one.high_s - one.low_s) / one.forward_s > NOISY:
        found.append("note_noisy")
    if "ridge" not in values:
        found.append("note_no_ceilings")
    else:
        found.append("note_waiting")
        found += [_distance("decode", values["decode_factor"]), _distance("prefill", values["prefill_factor"])]
        if values["cross_measured"] <= BEYOND * LAST and "cross_model" in values:
            agree = 1 / AGREE < values["cross_factor"] < AGREE
            found.append("note_cross_agrees" if agree else "note_cross_differs")
        if "cross_model" in values:
            found.append("note_ten_below" if values["cross_model"] > SHORT_PROMPT else "note_ten_above")
    if values["cross_measured"] > BEYOND * LAST:
        found.append("note_cross_beyond")
    climbs = values["batch_gain"] - 1 > CLIMBS * (values["batch_ideal"] - 1)
    found.append("note_climbs" if climbs else "note_climbs_little")
    return [*found, "note_unit"]


def _distance(kind: str, factor: float) -> str:
    low, high = NEAR
    return f"note_{kind}_{'above' if factor < low else 'near' if factor <= high else 'under'}"


def prediction_answers(runs: Runs) -> dict[str, float | str]:
    values = facts(runs)
    return {"cross_tokens": values["cross_measured"], "batch_gain": values["batch_gain"]}
