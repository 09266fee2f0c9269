"""What five kinds of keys and values make of one memory, and what fewer bits cost, from the Runs of the study.

How many requests ran at once is counted in the step records. Bytes per token come from the shape and the sizes that a
Run's header states. What a context of 128 K tokens would take is modelled for a model and a card of the catalogue.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from engine.lab import catalogue
from engine.lab.probes import QuantizationError, quantization_error
from engine.lab.records import RequestRecord, Run
from engine.lab.work import (
    element_sizes,
    kv_bytes_per_token,
    kv_cache_bytes,
    num_requests_that_fit,
    stored_weight_bytes,
    with_kv_heads,
)
from lessons.facts_error import FactsError
from lessons.long_context.scenarios import KINDS, OUTPUT_TOKENS, OWN, PROMPT_TOKENS
from lessons.smaller_weights.facts import first_difference
from lessons.text import Fact, format_bytes

LONG = 131_072
CARD = "h100"
CARD_MODEL = "llama-3-8b"

Runs = Mapping[str, Run]


@dataclass(frozen=True)
class Kept:
    """One kind of keys and values. ``at_once``: the most requests in one step."""

    role: str
    run: Run
    at_once: int
    bytes_per_token: float
    num_blocks: int
    error: QuantizationError | None

    @property
    def pool_bytes(self) -> float:
        return self.num_blocks * self.run.header.block_size * self.bytes_per_token

    @property
    def modelled_at_once(self) -> int:
        """Whole requests whose full length the blocks hold: floor(blocks / blocks of one). Pure."""
        return min(self.num_blocks // blocks_of_one(self.run), len(self.run.requests))


def blocks_of_one(run: Run) -> int:
    """Blocks that one of the like requests reserves. Pure."""
    return math.ceil((PROMPT_TOKENS + OUTPUT_TOKENS) / run.header.block_size)


def kinds(runs: Runs) -> dict[str, Kept]:
    """The kinds whose Runs are complete. Pure."""
    found = {role: _kept(role, runs.get(role)) for role in KINDS}
    return {role: kept for role, kept in found.items() if kept is not None}


def _kept(role: str, run: Run | None) -> Kept | None:
    if run is None or not run.steps or any(r.completion_s is None for r in run.requests):
        return None
    error = quantization_error(run)
    if KINDS[role].bits < 16 and error is None:
        return None
    return Kept(
        role=role,
        run=run,
        at_once=max(len({row.request_id for row in step.scheduled}) for step in run.steps),
        bytes_per_token=kv_bytes_per_token(run.header.model, element_sizes(run.header)[1]),
        num_blocks=run.header.num_blocks,
        error=error,
    )


def all_kinds(runs: Runs) -> dict[str, Kept]:
    """Raises: FactsError unless every kind is there."""
    found = kinds(runs)
    if len(found) < len(KINDS):
        raise FactsError("there is no finished study yet; run the lesson first")
    return found


def record(run: Run, request_id: str) -> RequestRecord:
    """Raises: FactsError when the Run has no such request."""
    for found in run.requests:
        if found.request_id == request_id:
            return found
    raise FactsError("this run lacks a request of the study; run the lesson again")


# ------------------------------------------------------------------ what the lesson asks for
def facts(runs: Runs) -> dict[str, Fact]:
    found = all_kinds(runs)
    own = found["own16"]
    model = own.run.header.model
    mine = record(own.run, OWN)
    values: dict[str, Fact] = {
        "pool": format_bytes(own.pool_bytes),
        "blocks_of_one": blocks_of_one(own.run),
        "positions": PROMPT_TOKENS + OUTPUT_TOKENS,
        "num_heads": model.num_heads,
        "num_kv_heads": model.num_kv_heads,
        "tokens": mine.num_output_tokens,
        "like_tokens": record(own.run, "r1").num_output_tokens,
    }
    for role, kept in found.items():
        values |= {
            f"{role}_token": format_bytes(kept.bytes_per_token),
            f"{role}_blocks": kept.num_blocks,
            f"{role}_at_once": kept.at_once,
            f"{role}_times": own.bytes_per_token / kept.bytes_per_token,
        }
    for role in ("mha16", "mqa16"):
        first = first_difference(record(own.run, "r1"), record(found[role].run, "r1"))
        values[f"{role}_same"] = values["like_tokens"] if first is None else first
    for role in ("own8", "own4"):
        values |= _error_facts(role, found[role], mine)
    return values | long_facts()


def _error_facts(role: str, kept: Kept, mine: RequestRecord) -> dict[str, Fact]:
    first = first_difference(mine, record(kept.run, OWN))
    return {
        f"{role}_error": kept.error.max_logit_error,
        f"{role}_mean_error": kept.error.mean_logit_error,
        f"{role}_kl": kept.error.mean_kl,
        f"{role}_same": kept.error.num_same_choices,
        f"{role}_until": mine.num_output_tokens if first is None else first,
    }


def long_facts() -> dict[str, Fact]:
    """128 K tokens on a card of the catalogue. Modelled. Pure."""
    card, entry = catalogue.device(CARD), catalogue.model(CARD_MODEL)
    model = entry.info("bfloat16")
    memory, read = card.memory_gb.value * 1e9, card.bandwidth_gbps.value
    values: dict[str, Fact] = {
        "card": card.name,
        "card_memory": format_bytes(memory),
        "long_model": entry.name,
        "long_weights": format_bytes(stored_weight_bytes(model)),
    }
    for name, heads, size in (
        ("mha", model.num_heads, 2.0),
        ("gqa", model.num_kv_heads, 2.0),
        ("mqa", 1, 2.0),
        ("gqa4", model.num_kv_heads, 0.5),
    ):
        shape = with_kv_heads(model, heads)
        kv = kv_cache_bytes(shape, LONG, size)
        values |= {
            f"long_{name}": format_bytes(kv),
            f"long_{name}_gb": kv / 1e9,
            f"long_{name}_fit": num_requests_that_fit(shape, memory, LONG, size),
            f"long_{name}_ms": kv / read / 1e6,
        }
    return values | {"long_weights_ms": model.weight_bytes / read / 1e6}


def sections(runs: Runs) -> list[str]:
    values = facts(runs)
    shown = ["after", "why"]
    shown.append("note_mha_same" if values["mha16_same"] == values["like_tokens"] else "note_mha_tie")
    shown.append("note_mqa")
    shown.append("note_kv8_same" if values["own8_until"] == values["tokens"] else "note_kv8_parts")
    shown.append("note_kv4_same" if values["own4_until"] == values["tokens"] else "note_kv4_parts")
    return [*shown, "note_error", "note_scales", "note_long"]


def prediction_answers(runs: Runs) -> dict[str, float | str]:
    values = facts(runs)
    return {"fit_int8": values["own8_at_once"], "long_gb": values["long_gqa_gb"]}
