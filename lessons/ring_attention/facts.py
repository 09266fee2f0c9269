"""What the two Runs, one worker and a ring, say against each other."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from engine.lab import catalogue
from engine.lab.metrics import duration_s
from engine.lab.records import Run
from engine.lab.ring import decode_sent_bytes, hiding_bytes_per_s
from engine.lab.work import kv_cache_bytes
from lessons.ring_attention.pair import Pair, pair_of
from lessons.text import Fact, format_bytes, format_seconds

MOSTLY = 0.5  # share of the transfers that took place beside arithmetic, above which they are called mostly hidden
UNSTEADY = 1.8  # longest decoded token over the median one, beyond which seconds are not compared
EVEN = 0.95  # busy share from which the work is called evenly shared
CLEAR = 1.1  # two numbers nearer than this are not spoken of as different
LONG_TOKENS = 131_072  # the length the lesson asks about
SOURCE_MODEL, SOURCE_DEVICE = "llama-3-8b", "h100"
SOURCE_WORKERS = 8

Runs = Mapping[str, Run]


def facts(runs: Runs) -> dict[str, Fact]:
    pair = pair_of(runs)
    told, alone = pair.told(pair.ring), pair.told(pair.alone)
    n, model = pair.num_workers, pair.ring.header.model
    values: dict[str, Fact] = {
        "length": pair.length,
        "n": n,
        "num_layers": model.num_layers,
        "same": pair.num_same_tokens,
        "num_tokens": pair.ring.requests[0].num_output_tokens,
        "kv_alone": format_bytes(alone.kv_bytes[0]),
        "kv_most": format_bytes(max(told.kv_bytes)),
        "kv_share": 100 * max(told.kv_bytes) / alone.kv_bytes[0],
        "buffer": format_bytes(max(told.buffer_bytes)),
        "sent_each": format_bytes(max(told.sent_bytes)),
        "sent_all": format_bytes(sum(told.sent_bytes)),
        "rounds": n,
        "pairs_all": sum(told.pairs) // model.num_layers,
        "first_share": 100 * told.pairs[0] / sum(told.pairs),
        "last_share": 100 * told.pairs[-1] / sum(told.pairs),
        "busy": 100 * pair.busy,
        "prompt_alone": format_seconds(pair.prompt_s(pair.alone)),
        "prompt_ring": format_seconds(pair.prompt_s(pair.ring)),
        "prompt_times": pair.prompt_s(pair.alone) / pair.prompt_s(pair.ring),
        "decode_alone": format_seconds(pair.decode_s(pair.alone)),
        "decode_ring": format_seconds(pair.decode_s(pair.ring)),
        "decode_times": pair.decode_s(pair.ring) / pair.decode_s(pair.alone),
        "decode_sent": format_bytes(decode_sent_bytes(model, n)),
        "threads_alone": pair.alone.header.workers[0].threads,
        "threads_each": pair.ring.header.workers[0].threads,
        "cores": pair.ring.header.device.threads,
    }
    return values | _overlap_facts(pair) | long_facts()


def _overlap_facts(pair: Pair) -> dict[str, Fact]:
    found = pair.overlaps
    sent_s, hidden_s = sum(o.send_s for o in found), sum(o.hidden_s for o in found)
    return {
        "compute_mean": format_seconds(sum(o.compute_s for o in found) / len(found)),
        "send_mean": format_seconds(sent_s / len(found)),
        "hidden": 100 * hidden_s / sent_s,
    }


def long_facts() -> dict[str, Fact]:
    """128 K tokens on a card of the catalogue, modelled."""
    device, model = catalogue.device(SOURCE_DEVICE), catalogue.model(SOURCE_MODEL)
    info = model.info("bfloat16")
    size = kv_cache_bytes(info, LONG_TOKENS, 2.0)
    rate = device.rate("bfloat16")
    assert rate is not None
    needed = hiding_bytes_per_s(info, LONG_TOKENS, SOURCE_WORKERS, rate.value * 1e12, 2.0)
    return {
        "long_tokens": LONG_TOKENS,
        "long_model": model.name,
        "long_device": device.name,
        "long_n": SOURCE_WORKERS,
        "long_kv": format_bytes(size),
        "long_kv_each": format_bytes(size / SOURCE_WORKERS),
        "long_link": format_bytes(needed),
    }


def sections(runs: Runs) -> list[str]:
    pair, values = pair_of(runs), facts(runs)
    found = ["after", "why"]
    found.append("note_same" if values["same"] == values["num_tokens"] else "note_near_tie")
    found.append("note_even" if pair.busy >= EVEN else "note_uneven")
    if is_disturbed(pair):
        return [*found, "note_noisy", "note_long"]  # what is left out compares seconds
    found.insert(2, "note_time")
    found.append("note_hidden" if values["hidden"] > 100 * MOSTLY else "note_exposed")
    if pair.num_workers > values["cores"]:
        found.append("note_cores")
    if values["decode_times"] > CLEAR:
        found.append("note_decode")
    return [*found, "note_long"]


def is_disturbed(pair: Pair) -> bool:
    """Whether decoded tokens, which all cost the same, took so unlike times that seconds cannot be compared."""
    times = [[duration_s(step) for step in pair.decode_steps(run)] for run in (pair.alone, pair.ring)]
    return any(max(one) > UNSTEADY * statistics.median(one) for one in times)


def prediction_answers(runs: Runs) -> dict[str, float | str]:
    """Who computes how much, and how much each passes on."""
    pair = pair_of(runs)
    told = pair.told(pair.ring)
    return {"first_share": 100 * told.pairs[0] / sum(told.pairs), "sent_mb": max(told.sent_bytes) / 1e6}
