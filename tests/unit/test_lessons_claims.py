"""The claims table: generated, never typed; every verdict that can be reached has its words."""

from __future__ import annotations

import importlib
import re

import pytest

from engine.lab import catalogue
from lessons.catalog import LESSONS_DIR
from lessons.claims import claim_words, claims
from lessons.roofline.points import prefill_intensity
from lessons.text import LANGS
from tests.unit.lesson_cases import roofline

IDS = sorted(path.parent.name for path in LESSONS_DIR.glob("*/claims.yaml"))


@pytest.mark.parametrize("lesson_id", IDS)
def test_every_claim_is_derived_without_a_run_and_measured_with_one(lesson_id: str) -> None:
    bare = claims(lesson_id, {})
    assert [c.id for c in bare] == list(claim_words(lesson_id))
    assert all(c.measured is None for c in bare)
    for make in importlib.import_module(f"tests.unit.lesson_cases.{lesson_id}").RUNS.values():
        for claim in claims(lesson_id, make()):
            for lang in LANGS:
                said = [claim.says, claim.derived, claim.condition, *([claim.measured] if claim.measured else [])]
                assert not any(re.search(r"\{[a-z]|\bnan\b|\binf\b|None", text[lang]) for text in said)


@pytest.mark.parametrize("lesson_id", IDS)
def test_every_verdict_that_has_words_is_reached(lesson_id: str) -> None:
    runs = importlib.import_module(f"tests.unit.lesson_cases.{lesson_id}").RUNS.values()
    reached = {(c.id, c.verdict) for made in ({}, *(make() for make in runs)) for c in claims(lesson_id, made)}
    written = {(claim_id, v) for claim_id, words in claim_words(lesson_id).items() for v in words.verdicts}
    assert written == reached


def test_the_ridge_of_the_card_depends_on_the_unit() -> None:
    (ridge, waiting, ten) = claims("roofline", roofline.RUNS["near the roof"]())
    assert "= 53 FLOP/byte" in ridge.derived["en"] and "= 106 FLOP/byte" in ridge.derived["en"]
    assert "0.118 TFLOP/s ÷ 21.3 GB/s = 5.54 FLOP/byte" in ridge.measured["en"]
    assert "= 98.0 %" in waiting.derived["en"]
    assert ten.verdict == "does_not_hold"
    assert claims("roofline", roofline.RUNS["a slow processor"]())[2].verdict == "holds_when"


def test_ten_tokens_are_below_the_ridge_of_every_tensor_core() -> None:
    """The lesson's summary says so."""
    reached = prefill_intensity(catalogue.model("llama-2-7b").info("float16"), 10, 2.0)
    ridges = [d.ridge(dtype) for d in catalogue.devices() for dtype in ("bfloat16", "float16") if d.ridge(dtype)]
    assert len(ridges) > 10 and all(ridge > 5 * reached for ridge in ridges)
