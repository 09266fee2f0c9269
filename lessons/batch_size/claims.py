"""What becomes of the source lesson's claims about eight requests at once (C12 to C15) when they are checked.

They are derived for the source's card; the model is the source's unless another is asked for (the claims table of the
whole course does). Invariant: every number is computed from catalogue and shapes, or measured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from engine.lab import catalogue
from engine.lab.records import ModelInfo, Run
from engine.lab.work import kv_bytes_per_token, stored_bytes_per_element
from lessons.batch_size.facts import (
    EIGHT,
    LONG_CONTEXT,
    ONE,
    SHORT_CONTEXT,
    SOURCE_DEVICE,
    SOURCE_MODEL,
    SOURCE_RIDGE,
    facts,
)
from lessons.batch_size.points import shared_step
from lessons.claims import Finding
from lessons.facts_error import FactsError
from lessons.text import Fact, format_bytes

ALMOST = 1.25  # a step that grew by less is "almost unchanged"
ABOUT = 0.8  # a gain above this share of the claimed one is "about" that
CLAIMED_GAIN = 7


def findings(runs: Mapping[str, Run], model: ModelInfo | None = None) -> dict[str, Finding]:
    """By claim id, for ``model`` on the source's card, with what the Runs of the study measured. Pure."""
    values = derived(model or catalogue.model(SOURCE_MODEL).info("float16"))
    with contextlib.suppress(FactsError):  # no study yet: derived only
        values |= {f"here_{name}": value for name, value in facts(runs).items()}
    measured, used = "here_one_ms" in values, "here_one_util" in values
    slower = measured and values["here_ratio_eight"] > ALMOST
    gains_less = measured and values["here_gain_eight"] < ABOUT * CLAIMED_GAIN
    return {
        "C12": Finding("does_not_hold", values, used),
        "C13": Finding("does_not_hold", values, used),
        "C14": Finding("does_not_hold" if slower else "holds_when", values, measured),
        "C15": Finding("does_not_hold" if gains_less else "holds_when", values, measured),
    }


def derived(model: ModelInfo) -> dict[str, Fact]:
    """One request and eight on the source's card, at a short and at a long context. Pure."""
    card = catalogue.device(SOURCE_DEVICE)
    read, vector, matrix = card.bandwidth_gbps.value, card.rate("float32", "vector").value, card.rate("float16").value
    bare, bare_eight = (shared_step(model, n, 1, read, vector) for n in (ONE, EIGHT))
    short, short_eight = (shared_step(model, n, SHORT_CONTEXT, read, matrix) for n in (ONE, EIGHT))
    long, long_eight = (shared_step(model, n, LONG_CONTEXT, read, matrix) for n in (ONE, EIGHT))
    per_token = kv_bytes_per_token(model, stored_bytes_per_element(model))
    return {
        "model": model.name,
        "card": card.name,
        "source_ridge": SOURCE_RIDGE,
        "ridge_matrix": f"{matrix * 1e3 / read:.0f}",
        "weights": format_bytes(model.weight_bytes),
        "one_gflop": bare.flops / 1e9,
        "eight_gflop": bare_eight.flops / 1e9,
        "one_intensity": bare.intensity,
        "eight_intensity": bare_eight.intensity,
        "one_util": 100 * bare.intensity / SOURCE_RIDGE,
        "eight_util": min(100.0, 100 * bare_eight.intensity / SOURCE_RIDGE),
        "eight_util_short": min(100.0, 100 * short_eight.intensity / SOURCE_RIDGE),
        "one_util_matrix": 100 * bare.intensity / (matrix * 1e3 / read),
        "eight_util_matrix": min(100.0, 100 * bare_eight.intensity / (matrix * 1e3 / read)),
        "ridge_for_five": bare.intensity / 0.05,
        "short": SHORT_CONTEXT,
        "long": LONG_CONTEXT,
        "ratio_short": short_eight.seconds / short.seconds,
        "ratio_long": long_eight.seconds / long.seconds,
        "gain_short": short_eight.tokens_per_s / short.tokens_per_s,
        "gain_long": long_eight.tokens_per_s / long.tokens_per_s,
        "kv_short": format_bytes(per_token * SHORT_CONTEXT),
        "kv_long": format_bytes(per_token * LONG_CONTEXT),
        "claimed_gain": CLAIMED_GAIN,
    }
