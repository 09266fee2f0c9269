"""The source's numbers for LLaMA-7B (C7, C8, C9), derived again from the catalogue's shape; the pool to the byte."""

from __future__ import annotations

import pytest

from engine.lab.catalogue import model
from engine.lab.work import kv_bytes_per_token, kv_cache_bytes, num_requests_that_fit
from lessons.claims import claims
from lessons.kv_cache.claims import SOURCE_MODEL, catalogue_facts
from tests.unit.lesson_cases.kv_cache import runs


def test_c7_is_exact_in_decimal_gigabytes() -> None:
    info = model(SOURCE_MODEL).info("float16")
    assert (info.num_layers, info.hidden_size, info.num_heads, info.num_kv_heads, info.head_dim) == (
        32,
        4096,
        32,
        32,
        128,
    )
    assert kv_bytes_per_token(info, 2.0) == 2 * 32 * 4096 * 2 == 524_288
    found = [kv_cache_bytes(info, length, 2.0) for length in (2_048, 8_192, 32_768)]
    assert found == [2**30, 2**32, 2**34]
    assert [round(f / 1e9, 2) for f in found] == [1.07, 4.29, 17.18]
    assert found[2] > 2 * model(SOURCE_MODEL).num_parameters > found[1], "it outgrows the weights between these two"


def test_c8_and_c9_add_up() -> None:
    eight = kv_cache_bytes(model(SOURCE_MODEL).info("float16"), 2_048, 2.0, 8)
    assert round(eight / 1e9, 1) == 8.6
    assert round((14e9 + 2e9 + eight) / 1e9, 1) == 24.6
    facts = catalogue_facts()
    assert (facts["short"], facts["eight"], facts["total"], facts["weights"]) == (
        "1.07 GB", "8.59 GB", "24.6 GB", "13.5 GB",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"),
    [("llama-3-8b", 2 * 32 * 8 * 128 * 2), ("smollm2-135m", 2 * 30 * 3 * 64 * 2), ("qwen2.5-7b", 2 * 28 * 4 * 128 * 2)],
)
def test_grouped_query_models_count_kv_heads(name: str, expected: int) -> None:
    assert kv_bytes_per_token(model(name).info("float16"), 2.0) == expected


def test_the_pool_of_a_run_gives_the_formula_to_the_byte() -> None:
    found = {claim.id: claim for claim in claims("kv_cache", runs(block_size=4))}
    assert "46,080 bytes per position" in found["C7"].measured["en"]  # 2 · 30 · 3 · 64 · 4
    assert found["C8"].measured is None


def test_how_many_requests_fit_the_sources_card() -> None:
    """24 GB, LLaMA-7B and 2 GB of activations: seven requests of 2,048 positions with the source's 14 GB."""
    info = model(SOURCE_MODEL).info("float16")
    assert num_requests_that_fit(info, 24e9, 2_048, 2.0, 2e9) == 7
    assert int((24e9 - 14e9 - 2e9) // 2**30) == 7
