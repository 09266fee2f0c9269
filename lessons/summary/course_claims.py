"""The claims of the source lesson that no single lesson checks for any model: C1 to C3, C7 to C9, C16 to C18.

It applies the source's rule and ours to a model's shape and compares the two; the verdict is that comparison, never
typed. What the learner's own Runs add is measured. Invariant: for one model and one set of Runs the findings are always
the same, and every number comes from ``engine.lab.work``, the catalogue, a Scenario or a record.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from engine.lab.metrics import step_kind
from engine.lab.records import ModelInfo, Run
from engine.lab.work import (
    attention_flops,
    decode_step_flops,
    element_sizes,
    kv_bytes_per_token,
    kv_cache_bytes,
    kv_outgrows_weights_at,
    moved_bytes,
    num_requests_that_fit,
    stored_bytes_per_element,
)
from lessons.batch_size.points import batch_points
from lessons.batching.facts import facts as batching_facts
from lessons.claims import Finding
from lessons.facts_error import FactsError
from lessons.scenarios import batching as batching_scenario
from lessons.text import Fact, format_bytes, format_number

LENGTHS = (2_048, 8_192, 32_768)  # positions the source gives its cache sizes for
REQUESTS = 8
ACTIVATIONS_GB = 2.0  # the source's figure; nothing here derives it
CARD_GB = 24.0  # a card to fit the requests into
CLOSE = 0.1  # rule and derivation that differ by a smaller share agree
PLACES = 8  # of the example that says at which spread of lengths the gain is 2 and 4

Runs = Mapping[str, Mapping[str, Run]]
"""The learner's latest Runs: lesson id -> role -> Run."""


def findings(model: ModelInfo, runs: Runs) -> dict[str, Finding]:
    """By claim id, for ``model`` with its weights and cache as ``model.weight_bytes`` says. Pure."""
    return _decode_findings(model, runs) | _cache_findings(model, runs) | _schedule_findings(runs)


def bytes_of(model: ModelInfo) -> float:
    """Bytes per element, of weights and cache alike; a plain size where the mean is one but for rounding. Pure."""
    size = stored_bytes_per_element(model)
    return float(round(size)) if abs(size - round(size)) < 0.01 and size >= 1 else size


# ------------------------------------------------------------------------------------------------- C1, C2, C3
def _decode_findings(model: ModelInfo, runs: Runs) -> dict[str, Finding]:
    size, here = bytes_of(model), _one_decode(runs)
    rule_bytes, rule_flops = model.num_parameters * size, 2 * model.num_parameters
    flops = decode_step_flops(model, 1)
    per_position = attention_flops(model, 1)
    intensity = flops / model.weight_bytes
    values: dict[str, Fact] = {
        "model": model.name,
        "parameters": _count(model.num_parameters),
        "bytes_per_weight": f"{size:g}",
        "rule_weights": format_bytes(rule_bytes),
        "weights": format_bytes(model.weight_bytes),
        "weights_exact": model.weight_bytes,
        "flop": _flops(flops),
        "rule_flop": _flops(rule_flops),
        "flop_long": _flops(decode_step_flops(model, LENGTHS[0])),
        "long": f"{LENGTHS[0]:,}",
        "until": f"{math.floor(CLOSE * flops / per_position):,}",
        "intensity": intensity,
        "intensity_rule": f"{2 / size:g}",
        "per_request": "1",
    }
    close = abs(model.weight_bytes / rule_bytes - 1) <= CLOSE
    return {
        "C1": Finding("holds" if close else "holds_when", values | here, bool(here)),
        "C2": Finding("holds_when", values | here, bool(here)),
        "C3": Finding("holds" if abs(intensity - 1) <= CLOSE else "holds_when", values | here, bool(here)),
    }


def _one_decode(runs: Runs) -> dict[str, Fact]:
    """The decode steps of the learner's run of one request; empty without one."""
    run = runs.get("prefill_decode", {}).get("run")
    steps = [] if run is None else [s for s in run.steps if step_kind(s) == "decode" and s.time_ms.forward > 0]
    if run is None or not steps or not moved_bytes(steps[0].work):
        return {}
    weights = statistics.median(s.work.weight_bytes for s in steps)
    flops = statistics.median(s.work.flops for s in steps)
    forward_s = statistics.median(s.time_ms.forward for s in steps) / 1e3
    return {
        "here": run.header.model.name,
        "here_weights": format_bytes(weights),
        "here_ms": 1e3 * forward_s,
        "here_gbps": weights / forward_s / 1e9,
        "here_flop": _flops(flops),
        "here_gflops": flops / forward_s / 1e9,
        "here_intensity": flops / statistics.median(moved_bytes(s.work) for s in steps),
        "here_bytes_per_weight": f"{element_sizes(run.header)[0]:g}",
    }


# ------------------------------------------------------------------------------------------------- C7, C8, C9
# Whether the source's formula is exact because it is right, or because the KV heads happen to make up the hidden size.
_EXACT: Mapping[bool, Fact] = MappingProxyType(
    {
        True: {"en": "So it is in this model.", "zh": "这个模型正是如此。"},
        False: {
            "en": "In this model the queries share KV heads, and it comes out right by chance: the heads are wide.",
            "zh": "这个模型的查询头共用 KV 头，只因每个头很宽，结果碰巧对上了。",
        },
    }
)


def _cache_findings(model: ModelInfo, runs: Runs) -> dict[str, Finding]:
    size = bytes_of(model)
    rule_token = 2 * model.num_layers * model.hidden_size * size  # the source's formula: hidden size, not KV heads
    own_token = kv_bytes_per_token(model, size)
    cache = {length: kv_cache_bytes(model, length, size) for length in LENGTHS}
    eight = kv_cache_bytes(model, LENGTHS[0], size, REQUESTS)
    stored = model.num_parameters * size
    other = ACTIVATIONS_GB * 1e9
    total, rule_total = stored + eight + other, stored + REQUESTS * LENGTHS[0] * rule_token + other
    values: dict[str, Fact] = {
        "model": model.name,
        "layers": model.num_layers,
        "hidden": f"{model.hidden_size}",
        "heads": model.num_heads,
        "kv_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "bytes_per_weight": f"{size:g}",
        "per_token": round(own_token),
        "rule_per_token": round(rule_token),
        "times": _ratio(rule_token / own_token),
        "requests": REQUESTS,
        "eight": format_bytes(eight),
        "eight_bytes": eight,
        "stored": format_bytes(stored),
        "activations": f"{ACTIVATIONS_GB:g} GB",
        "total": format_bytes(total),
        "rule_total": format_bytes(rule_total),
        "outgrow": kv_outgrows_weights_at(model, size),
        "card": f"{CARD_GB:g} GB",
        "fit": num_requests_that_fit(model, CARD_GB * 1e9, LENGTHS[0], size, other),
        "weights": format_bytes(model.weight_bytes),
    }
    for name, (length, found) in zip(("short", "middle", "long"), cache.items(), strict=True):
        values |= {
            f"{name}_positions": f"{length:,}",
            f"{name}": format_bytes(found),
            f"{name}_bytes": found,
            f"{name}_rule": format_bytes(length * rule_token),
        }
    exact = rule_token == own_token
    values["exact_note"] = _EXACT[model.num_kv_heads == model.num_heads]
    here = _eight_here(runs)
    sums = abs(rule_total / total - 1) <= CLOSE
    return {
        "C7": Finding("holds_when" if exact else "does_not_hold", values),
        "C8": Finding("holds" if exact else "does_not_hold", values | here, bool(here)),
        "C9": Finding("holds_when" if sums else "does_not_hold", values | here, bool(here)),
    }


def _eight_here(runs: Runs) -> dict[str, Fact]:
    """What eight requests of the learner's batching study held in the block pool; empty without it."""
    point = batch_points(runs.get("batch_size", {})).get(REQUESTS)
    if point is None:
        return {}
    header, record = point.run.header, point.run.requests[0]
    positions = record.num_prompt_tokens + record.num_output_tokens - 1
    formula = kv_cache_bytes(header.model, positions, element_sizes(header)[1], REQUESTS)
    return {
        "here": header.model.name,
        "here_positions": positions,
        "here_kv": format_bytes(point.kv_bytes),
        "here_kv_bytes": point.kv_bytes,
        "here_formula": format_bytes(formula),
        "here_weights": format_bytes(header.model.weight_bytes),
        "here_sum": format_bytes(header.model.weight_bytes + point.kv_bytes),
        "here_block": header.block_size,
    }


# ------------------------------------------------------------------------------------------------- C16, C17, C18
def _schedule_findings(runs: Runs) -> dict[str, Finding]:
    """The schedule does not depend on the model: only lengths and places count."""
    asked = {r.request_id: r.max_tokens for r in batching_scenario("abcd", "static").requests}
    places = batching_scenario("abcd", "static").limits.max_requests
    batch = dict(list(asked.items())[:places])
    longest = max(batch, key=lambda name: batch[name])
    shortest = min(batch, key=lambda name: batch[name])
    values: dict[str, Fact] = {
        "batch": ", ".join(f"{name} {length}" for name, length in batch.items()),
        "shortest": shortest,
        "longest": longest,
        "late": next(name for name in asked if name not in batch),
        "idle": batch[longest] - batch[shortest],
        "static_wait": batch[longest],
        "continuous_wait": batch[shortest],
        "padding": sum(batch[longest] - length for length in batch.values()),
        "rows": batch[longest] * len(batch),
        "mean": statistics.fmean(batch.values()),
        "batch_gain": batch[longest] / statistics.fmean(batch.values()),
        "places": PLACES,
        "two_at": _spread_for(2, PLACES),
        "four_at": _spread_for(4, PLACES),
    }
    for preset in ("mixed", "one_long"):
        scenario = batching_scenario(preset, "static")
        values[f"gain_{preset}"] = step_gain([r.max_tokens for r in scenario.requests], scenario.limits.max_requests)
    here = _both_policies(runs)
    return {
        "C16": Finding("holds", values | here, bool(here)),
        "C17": Finding("holds_when", values | here, bool(here)),
        "C18": Finding("holds_when", values | here, "wait_static" in here),
    }


def step_gain(lengths: Sequence[int], places: int) -> float:
    """Static over continuous steps, were all there at once and every step equally long. Pure."""
    static = sum(max(lengths[i : i + places]) for i in range(0, len(lengths), places))
    busy_until = [0] * places
    for length in lengths:
        busy_until[busy_until.index(min(busy_until))] += length
    return static / max(busy_until)


def _spread_for(gain: float, places: int) -> float:
    """How many times as long the one long request of a batch must be for longest ÷ mean to be ``gain``. Pure.

    longest ÷ mean = k·L/(L + (k − 1)·s) = gain, solved for L/s.
    """
    return gain * (places - 1) / (places - gain)


def _both_policies(runs: Runs) -> dict[str, Fact]:
    with contextlib.suppress(FactsError):  # not run yet, or not as a pair
        return batching_facts(runs.get("batching", {}))
    return {}


# ------------------------------------------------------------------------------------------------- words
def _count(parameters: int) -> Fact:
    """A number of parameters: 6.74 billion, 135 million."""
    if parameters >= 1e9:
        return {"en": f"{format_number(parameters / 1e9)} billion", "zh": f"{format_number(parameters / 1e8)} 亿"}
    return {"en": f"{format_number(parameters / 1e6)} million", "zh": f"{format_number(parameters / 1e8)} 亿"}


def _flops(flops: float) -> str:
    return f"{format_number(flops / 1e9)} GFLOP"


def _ratio(value: float) -> str:
    """Exactly where it is whole, as head counts are."""
    return f"{value:.0f}" if value == round(value) else format_number(value)
