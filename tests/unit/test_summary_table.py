"""The claims table of the summary: generated for any model, right to the byte, honest about what was not measured."""

from __future__ import annotations

import re

import pytest

from engine.lab import catalogue
from engine.lab.metrics import kv_after_steps
from engine.lab.work import kv_bytes_per_token, kv_cache_bytes
from lessons.claims import claims
from lessons.scenarios import batching
from lessons.summary.course_claims import bytes_of, step_gain
from lessons.summary.table import MEASURED_IN, OWNERS, row_words, table
from lessons.text import LANGS
from tests.unit.lesson_cases import batch_size, kv_cache, metrics, roofline
from tests.unit.lesson_runs import MODEL, batching_runs, prefill_decode_runs

IDS = [f"C{n}" for n in range(1, 19)]
HOLE = re.compile(r"\{[a-z]|\bnan\b|\binf\b|None")


def course(preset: str = "abcd", **device) -> dict:
    """The Runs of a learner who has done every lesson."""
    return {
        "prefill_decode": prefill_decode_runs(**device),
        "roofline": roofline.study(**device),
        "kv_cache": kv_cache.runs(),
        "metrics": next(iter(metrics.RUNS.values()))(),
        "batch_size": batch_size.study(**device),
        "batching": batching_runs(preset, **device),
    }


def rows(model, runs=None) -> dict:
    return {row.claim.id: row for row in table(model, runs or {})}


def sentences(row, lang: str) -> list[str]:
    claim = row.claim
    texts = [row.name, row.source, row.ours, claim.says, claim.derived, claim.condition]
    return [text[lang] for text in (*texts, *(t for t in (row.here, claim.measured) if t))]


@pytest.mark.parametrize("model", catalogue.models(), ids=lambda m: m.id)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_every_model_gets_all_rows_without_a_hole(model, dtype: str) -> None:
    found = table(model.info(dtype), {})
    assert [row.claim.id for row in found] == IDS == list(row_words()) == list(OWNERS)
    for row in found:
        assert row.here is None and row.claim.measured is None and row.runs == ()
        for lang in LANGS:
            assert not [s for s in sentences(row, lang) if HOLE.search(s)]


def test_with_the_runs_of_all_lessons_every_row_is_measured() -> None:
    for runs in (course(), course("one_long", pass_ms=60, token_ms=8)):
        for row in table(MODEL, runs):
            assert row.here is not None and row.claim.measured is not None, row.claim.id
            assert [run.run_id for run in row.runs] == [run.run_id for run in runs[row.measured_in].values()]
            for lang in LANGS:
                assert not [s for s in sentences(row, lang) if HOLE.search(s)], row.claim.id


def test_a_row_names_the_lesson_that_would_measure_it() -> None:
    whole = course()
    for lesson_id in whole:
        without = {name: runs for name, runs in whole.items() if name != lesson_id}
        missing = {row.claim.id for row in table(MODEL, without) if row.here is None}
        assert missing == {claim_id for claim_id, where in MEASURED_IN.items() if where == lesson_id}


# ------------------------------------------------------------------ to the byte
@pytest.mark.parametrize(
    ("model_id", "dtype", "per_token"),
    [
        ("llama-2-7b", "float16", 2 * 32 * 32 * 128 * 2),
        ("llama-3-8b", "float16", 2 * 32 * 8 * 128 * 2),
        ("smollm2-135m", "float32", 2 * 30 * 3 * 64 * 4),
    ],
)
def test_the_kv_bytes_are_those_of_the_published_shape(model_id: str, dtype: str, per_token: int) -> None:
    row = rows(catalogue.model(model_id).info(dtype))["C7"]
    for positions in (2_048, 8_192, 32_768):
        assert f"{per_token * positions:,}" in row.claim.derived["en"]
    assert f"= {per_token:,} bytes per position" in row.claim.derived["en"]
    eight = rows(catalogue.model(model_id).info(dtype))["C8"]
    assert f"{8 * 2_048 * per_token:,} bytes" in eight.claim.derived["en"]


def test_the_kv_bytes_of_the_loaded_model_are_those_of_its_block_pool() -> None:
    """The pool of a Run counts blocks; the table multiplies a shape. Both must give the same bytes."""
    runs = course()
    run = runs["batch_size"]["batch_8"]
    assert bytes_of(run.header.model) == 4
    per_token = kv_bytes_per_token(run.header.model, bytes_of(run.header.model))
    for use in kv_after_steps(run):
        assert use.reserved_bytes == use.num_blocks * run.header.block_size * per_token
        assert use.filled_bytes == use.num_tokens * per_token
    held = max(s.blocks.in_use for s in run.steps) * run.header.block_size
    measured = rows(run.header.model, runs)["C8"].claim.measured["en"]
    assert f"{round(held * per_token):,} bytes" in measured
    assert "46,080 bytes" in rows(run.header.model, runs)["C7"].here["en"]


def test_the_loaded_model_and_its_catalogue_entry_agree() -> None:
    ours, theirs = rows(MODEL), rows(catalogue.model("smollm2-135m").info("float32"))
    for claim_id in IDS:
        assert ours[claim_id].ours == theirs[claim_id].ours
        assert ours[claim_id].claim.verdict == theirs[claim_id].claim.verdict


# ------------------------------------------------------------------ the model matters
def test_changing_the_model_changes_what_depends_on_it_and_nothing_else() -> None:
    mha, gqa = (rows(catalogue.model(name).info("float16")) for name in ("llama-2-7b", "llama-3-8b"))
    changed = {i for i in IDS if mha[i].claim.derived != gqa[i].claim.derived}
    assert changed == {"C1", "C2", "C3", "C5", "C6", "C7", "C8", "C9", "C12", "C13", "C14", "C15"}
    verdicts = {i: (mha[i].claim.verdict, gqa[i].claim.verdict) for i in IDS}
    assert {i for i, (a, b) in verdicts.items() if a != b} == {"C7", "C8", "C9"}
    assert verdicts["C8"] == ("holds", "does_not_hold")
    assert "4 times" in gqa["C7"].claim.condition["en"]


def test_the_sources_model_gives_the_sources_numbers() -> None:
    found = rows(catalogue.model("llama-2-7b").info("float16"))
    assert found["C7"].ours["en"] == "1.07 GB / 4.29 GB / 17.2 GB"
    assert found["C8"].ours["en"] == "8.59 GB"
    assert found["C3"].ours["en"] == "1.00 FLOP/byte"
    assert found["C12"].ours["en"] == "1.96 %" and found["C13"].ours["en"] == "15.7 %"
    assert found["C15"].ours["en"] == "7.02×"
    assert found["C10"].ours["en"] == "4,080 ms"
    assert found["C4"].ours["en"] == "53 or 106 FLOP/byte"


def test_weights_of_four_bytes_halve_the_intensity() -> None:
    found = rows(catalogue.model("llama-2-7b").info("float32"))
    assert found["C3"].claim.verdict == "holds_when" and found["C3"].ours["en"] == "0.500 FLOP/byte"
    assert "99.0 %" in found["C5"].claim.derived["en"]


def test_a_formula_that_comes_out_right_by_chance_is_not_praised() -> None:
    """Qwen3-0.6B: 8 KV heads of 128 make the hidden size of 1024, though 16 query heads share them."""
    condition = rows(catalogue.model("qwen3-0.6b").info("float16"))["C7"].claim.condition["en"]
    assert "by chance" in condition
    assert "by chance" not in rows(catalogue.model("llama-2-7b").info("float16"))["C7"].claim.condition["en"]


def test_a_large_table_of_its_own_is_a_condition_of_the_weights() -> None:
    model = catalogue.model("qwen3-0.6b").model_copy(
        update={"tie_word_embeddings": False, "num_parameters": 596_049_920 + 151_936 * 1_024}
    )
    assert rows(model.info("float16"))["C1"].claim.verdict == "holds_when"
    assert rows(catalogue.model("qwen3-0.6b").info("float16"))["C1"].claim.verdict == "holds"


def test_every_verdict_that_has_words_can_be_reached() -> None:
    untied = catalogue.model("qwen3-0.6b").model_copy(
        update={"tie_word_embeddings": False, "num_parameters": 596_049_920 + 151_936 * 1_024}
    )
    models = [catalogue.model(n).info(d) for n in ("llama-2-7b", "llama-3-8b") for d in ("float16", "float32")]
    reached = {(i, row.claim.verdict) for m in [*models, untied.info("float16")] for i, row in rows(m).items()}
    written = {(i, verdict) for i, words in row_words().items() for verdict in words.verdicts or ()}
    assert written <= reached


def test_rows_that_a_lesson_checks_itself_say_the_same_there() -> None:
    whole = course()
    model = catalogue.model("llama-2-7b").info("float16")
    for lesson_id in ("roofline", "metrics", "batch_size"):
        there = {claim.id: claim for claim in claims(lesson_id, whole[lesson_id])}
        for claim_id, row in rows(model, whole).items():
            if claim_id in there:
                assert row.claim.verdict == there[claim_id].verdict
                assert row.claim.measured == there[claim_id].measured
                assert row.claim.says == there[claim_id].says


def test_the_gain_in_steps() -> None:
    assert step_gain([5, 5, 5, 5], 2) == 1
    assert step_gain([64, 8, 8, 8], 1) == 1
    assert step_gain([8, 1, 1, 1, 8, 1, 1, 1], 4) == pytest.approx(16 / 9)  # places free at 8, 1, 1, 1, then 9, 2, 2, 2
    lengths = [r.max_tokens for r in batching("mixed", "static").requests]
    assert step_gain(lengths, 4) == 2.4


def test_the_spread_at_which_the_gain_is_two_and_four() -> None:
    derived = rows(MODEL)["C17"].claim.derived["en"]
    found = re.search(r"long one is (\d+\.\d+) times as long, 4 times at (\d+\.\d+)", derived)
    two, four = (float(number) for number in found.groups())
    for gain, ratio in ((2, two), (4, four)):
        lengths = [ratio] + [1.0] * 7
        assert max(lengths) / (sum(lengths) / 8) == pytest.approx(gain, rel=0.01)


def test_kv_bytes_scale_with_requests() -> None:
    model = catalogue.model("llama-2-7b").info("float16")
    assert kv_cache_bytes(model, 2_048, 2.0, 8) == 8 * kv_cache_bytes(model, 2_048, 2.0)
