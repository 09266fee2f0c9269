"""Questions about the learner's own roofline study. The words are in generated.yaml."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from types import MappingProxyType

from engine.lab import catalogue
from engine.lab.records import Run
from lessons.generated import Draft, Generator
from lessons.roofline.points import Point, measured_crossing, points
from lessons.roofline.scenarios import DECODE_BATCHES, PREFILL_LENGTHS
from lessons.text import Fact, format_bytes, format_number

Runs = Mapping[str, Run]
CLEAR = 1.25  # two times nearer than this factor are not offered as different choices


def words(point: Point) -> Fact:
    """A point's step as it stands in the middle of a sentence. Pure."""
    if point.kind == "prefill":
        return {
            "en": f"the prefill of {point.size} tokens",
            "zh": f"{point.size} 个 token 的预填充",
        }
    requests = "one request" if point.size == 1 else f"{point.size} requests"
    return {"en": f"a decode step for {requests}", "zh": f"{point.size} 个请求的一步解码"}


def _one(runs: Runs, rng: random.Random) -> Point | None:
    found = list(points(runs).values())
    return rng.choice(found) if found else None


def intensity(runs: Runs, rng: random.Random) -> Draft | None:
    """Where one of the points stands."""
    point = _one(runs, rng)
    if point is None:
        return None
    answer = point.intensity
    return Draft(
        values={**_work(point), "num_tokens": point.size, "intensity": answer},
        runs=(point.run,),
        answer=answer,
        tolerance=0.03 * answer,
        traps={
            "intensity_upside_down": 1 / answer,
            "intensity_is_flop_count": point.flops / 1e9,
            "intensity_per_token": answer / point.size if point.size > 1 else None,
        },
    )


def rate(runs: Runs, rng: random.Random) -> Draft | None:
    """How high one of the points stands."""
    point = _one(runs, rng)
    if point is None:
        return None
    answer = 1e3 * point.tflops
    return Draft(
        values={**_work(point), "forward_ms": 1e3 * point.forward_s, "gflops": answer},
        runs=(point.run,),
        answer=answer,
        tolerance=0.03 * answer,
        traps={
            "milliseconds_for_seconds": answer / 1e3,
            "bytes_for_flop": point.gbps,
            "rate_is_product": point.flops / 1e9 * point.forward_s,
        },
    )


def elsewhere(runs: Runs, rng: random.Random) -> Draft | None:
    """The least time of one of the steps on a device of the catalogue."""
    point = _one(runs, rng)
    if point is None:
        return None
    device, gbps, tflops = rng.choice(_devices(point.run.header.dtype))
    bytes_ms, flops_ms = point.num_bytes / gbps / 1e6, point.flops / tflops / 1e9
    answer = max(bytes_ms, flops_ms)
    return Draft(
        values={
            **_work(point),
            "device": device,
            "gbps": f"{gbps:g}",
            "tflops": f"{tflops:g}",
            "bytes_ms": bytes_ms,
            "flops_ms": flops_ms,
            "least_ms": answer,
            "shorter_ms": min(bytes_ms, flops_ms),
        },
        runs=(point.run,),
        answer=answer,
        tolerance=0.03 * answer,
        traps={
            "faster_ceiling": min(bytes_ms, flops_ms),
            "both_ceilings_add": bytes_ms + flops_ms,
            "measured_time_is_least": 1e3 * point.forward_s,
        },
    )


def crossing(runs: Runs, rng: random.Random) -> Draft | None:
    """How many prompt tokens take as long as a decode step. One question: the numbers are the device's own."""
    found = points(runs)
    one, longest = found.get(f"decode_{DECODE_BATCHES[0]}"), found.get(f"prefill_{PREFILL_LENGTHS[-1]}")
    if one is None or longest is None:
        return None
    answer = measured_crossing(one, longest)
    return Draft(
        values={
            "decode_ms": 1e3 * one.forward_s,
            "prefill_ms": 1e3 * longest.forward_s,
            "longest": longest.size,
            "token_ms": 1e3 * longest.forward_s / longest.size,
            "crossing": answer,
        },
        runs=(one.run, longest.run),
        answer=answer,
        tolerance=0.03 * answer,
        traps={
            "token_ratio_upside_down": longest.forward_s / one.forward_s,
            "whole_prefill_for_token": one.forward_s / longest.forward_s,
        },
    )


def next_batch(runs: Runs, rng: random.Random) -> Draft | None:
    """What the next larger decode step took, after the smaller ones have been shown. Near misses are left out."""
    decode = [p for p in points(runs).values() if p.kind == "decode"]
    if len(decode) < 3 or decode[0].size != 1:
        return None
    last = rng.randrange(2, len(decode))
    target, shown = decode[last], decode[:last]
    one_ms, right = 1e3 * decode[0].forward_s, 1e3 * target.forward_s
    wrong = {
        "time_proportional_to_requests": one_ms * target.size,
        "requests_speed_up_step": one_ms / target.size,
        "work_grows_with_square": one_ms * target.size**2,
    }
    options = [name for name, value in wrong.items() if abs(math.log(value / right)) > math.log(CLEAR)]
    return Draft(
        values={
            "most": target.size,
            "right": right,
            "table": {
                "en": _table("requests", "ms per step", shown, target),
                "zh": _table("请求数", "每步 ms", shown, target),
            },
            **{f"ms_{name}": value for name, value in wrong.items()},
        },
        runs=tuple(p.run for p in (*shown, target)),
        options=tuple(options),
    )


def _table(first: str, second: str, shown: list[Point], target: Point) -> str:
    """Two columns of fixed width; a Chinese character is as wide as two letters."""
    rows = [(str(p.size), format_number(1e3 * p.forward_s)) for p in shown] + [(str(target.size), "?")]
    wide = 2 if not first.isascii() else 1
    lines = [f"{first}   {second}"]
    lines += [f"{size:>{len(first) * wide}}   {ms:>{len(second) * wide if wide == 1 else 7}}" for size, ms in rows]
    return "\n".join(lines)


def _work(point: Point) -> dict[str, Fact]:
    return {
        "step": words(point),
        "flop": f"{format_number(point.flops / 1e9)} GFLOP",
        "bytes": format_bytes(point.num_bytes),
    }


def _devices(dtype: str) -> list[tuple[str, float, float]]:
    """(name, GB/s, TFLOP/s) of catalogue devices that state both for the units that compute in ``dtype``. Pure."""
    unit = "vector" if dtype == "float32" else "matrix"
    return [
        (d.name, d.bandwidth_gbps.value, d.rate(dtype, unit).value)
        for d in catalogue.devices()
        if d.bandwidth_gbps and d.rate(dtype, unit)
    ]


GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {"intensity": intensity, "rate": rate, "elsewhere": elsewhere, "crossing": crossing, "next_batch": next_batch}
)
