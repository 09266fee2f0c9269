"""What becomes of the source lesson's claims about the KV cache of LLaMA-7B (C7, C8, C9) when derived again."""

from __future__ import annotations

from collections.abc import Mapping

from engine.lab.catalogue import model as catalogue_model
from engine.lab.records import Run
from engine.lab.work import bytes_per_element, kv_bytes_per_token, kv_cache_bytes, with_kv_heads
from lessons.claims import Finding
from lessons.facts_error import FactsError
from lessons.kv_cache.facts import side
from lessons.text import Fact, format_bytes

SOURCE_MODEL = "llama-2-7b"  # the shape of LLaMA-7B, to the parameter
SOURCE_LENGTHS = (2_048, 8_192, 32_768)
SOURCE_WEIGHTS_GB = 14.0
SOURCE_ACTIVATIONS_GB = 2.0
SOURCE_REQUESTS = 8


def catalogue_facts() -> dict[str, Fact]:
    """The source's numbers derived from the model's shape alone. Pure."""
    model = catalogue_model(SOURCE_MODEL).info("float16")
    size = bytes_per_element("float16")
    stored_gb = catalogue_model(SOURCE_MODEL).num_parameters * size / 1e9
    short, middle, long = (kv_cache_bytes(model, length, size) for length in SOURCE_LENGTHS)
    eight = kv_cache_bytes(model, SOURCE_LENGTHS[0], size, SOURCE_REQUESTS)
    return {
        "layers": model.num_layers,
        "hidden": model.hidden_size,
        "per_token": int(kv_bytes_per_token(model, size)),
        "short_bytes": short,
        "middle_bytes": middle,
        "long_bytes": long,
        "short": format_bytes(short),
        "middle": format_bytes(middle),
        "long": format_bytes(long),
        "weights": format_bytes(stored_gb * 1e9),
        "eight": format_bytes(eight),
        "total": format_bytes(1e9 * (SOURCE_WEIGHTS_GB + SOURCE_ACTIVATIONS_GB) + eight),
        "total_exact": format_bytes(1e9 * (stored_gb + SOURCE_ACTIVATIONS_GB) + eight),
        "gqa": format_bytes(kv_cache_bytes(with_kv_heads(model, model.num_kv_heads // 4), SOURCE_LENGTHS[0], size)),
    }


def findings(runs: Mapping[str, Run]) -> dict[str, Finding]:
    """By claim id. All are derived from the catalogue; the Run adds the same formula beside its block pool. Pure.

    The verdicts are those of the numbers above; a test compares them with the source's within rounding.
    """
    values, pool = catalogue_facts(), _pool_facts(runs)
    return {
        "C7": Finding("holds_when", values | pool, bool(pool)),
        "C8": Finding("holds", values),
        "C9": Finding("holds_when", values),
    }


def _pool_facts(runs: Mapping[str, Run]) -> dict[str, Fact]:
    """What the block pool of the learner's Run held, beside the formula. Empty without a Run."""
    try:
        cached = side(runs, "cached")
    except FactsError:
        return {}
    last, header = cached.held[-1], cached.run.header
    return {
        "here": header.model.name,
        "here_blocks": last.num_blocks,
        "here_slots": last.num_blocks * header.block_size,
        "here_pool": last.reserved_bytes,
        "here_per_token": last.reserved_bytes // (last.num_blocks * header.block_size),
    }
