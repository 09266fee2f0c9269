"""Every lesson that brings its own cases: its sentences are filled and true to their placeholders, its items are right.

The two first lessons have tests of their own (``test_lessons_facts``, ``test_generated``).
"""

from __future__ import annotations

import importlib
import json
import re
from collections import Counter
from functools import cache
from types import ModuleType

import pytest

import lessons
from engine.lab.records import Run
from lessons.catalog import lesson, load_lessons
from lessons.generated import ChoiceTemplate, items_from_runs, templates
from lessons.quiz import NumberItem, correct_answer, grade, public_id, public_view
from lessons.run_facts import FactsError
from lessons.text import LANGS, placeholders

FIRST = ("prefill_decode", "batching")
IDS = [found.id for found in load_lessons() if found.id not in FIRST]
NUM_SEEDS = 4

Runs = dict[str, Run]


def cases(lesson_id: str) -> ModuleType:
    return importlib.import_module(f"tests.unit.lesson_cases.{lesson_id}")


@cache
def situations(lesson_id: str) -> dict[str, Runs]:
    """The lesson's Runs by name, served once: nobody here changes them."""
    return {name: make() for name, make in cases(lesson_id).RUNS.items()}


# ------------------------------------------------------------------ sentences
@pytest.mark.parametrize("lesson_id", IDS)
def test_every_placeholder_of_every_section_that_holds_is_provided(lesson_id: str):
    reached: set[str] = set(getattr(cases(lesson_id), "REACHED_ELSEWHERE", ()))
    for name, runs in situations(lesson_id).items():
        facts, shown = lessons.facts(lesson_id, runs), lessons.sections(lesson_id, runs)
        reached |= set(shown)
        assert set(shown) <= set(lesson(lesson_id).sections), name
        for lang in LANGS:
            for section in shown:
                missing = placeholders(lesson(lesson_id).text(lang, section)) - set(facts)
                assert not missing, (name, section, missing)
            whole = lessons.headline(lesson_id, runs, lang) + lessons.explanation(lesson_id, runs, lang)
            assert len(whole) > 50
            assert not re.search(r"\{[a-z]|\bnan\b|\binf\b|None", whole), name
    written = {s for s in lesson(lesson_id).sections if not s.startswith("before") and s != "summary"}
    assert written <= reached, f"no case of {lesson_id} reaches {sorted(written - reached)}"


@pytest.mark.parametrize("lesson_id", IDS)
def test_every_number_to_predict_is_answered_within_its_limits(lesson_id: str):
    answered: set[str] = set()
    for runs in situations(lesson_id).values():
        for prediction_id, answer in lessons.prediction_answers(lesson_id, runs).items():
            prediction = lesson(lesson_id).prediction(prediction_id)
            answered.add(prediction_id)
            if prediction.kind == "number":
                assert prediction.minimum <= answer <= prediction.maximum, (prediction_id, answer)
            else:
                assert answer in {option.id for option in prediction.options}
    assert answered == {p.id for p in lesson(lesson_id).predictions}


@pytest.mark.parametrize("lesson_id", IDS)
def test_runs_that_are_missing_or_ended_early_are_refused_with_a_sentence(lesson_id: str):
    with pytest.raises(FactsError):
        lessons.facts(lesson_id, {})
    assert items_from_runs(lesson_id, {}, 1) == []
    for role, run in next(iter(situations(lesson_id).values())).items():
        cut = run.model_copy(deep=True)
        cut.steps = cut.steps[:0]
        for record in cut.requests:
            record.first_scheduled_s = record.first_token_s = record.completion_s = None
            record.output_token_ids, record.num_output_tokens, record.finish_reason = [], 0, "abort"
        with pytest.raises(FactsError):
            lessons.facts(lesson_id, {role: cut})
        items_from_runs(lesson_id, {role: cut}, 1)  # must not fail, whatever it can still ask


# ------------------------------------------------------------------ items made from Runs
@pytest.fixture(scope="module", params=IDS)
def made(request) -> tuple[str, list]:
    """(lesson id, [(runs, item)]) over the lesson's item runs and several seeds."""
    lesson_id = request.param
    found = []
    for runs in cases(lesson_id).ITEM_RUNS():
        found += [(runs, item) for seed in range(NUM_SEEDS) for item in items_from_runs(lesson_id, runs, seed)]
    return lesson_id, found


def test_every_kind_occurs_and_no_key_is_wrong(made):
    lesson_id, found = made
    checks = cases(lesson_id).CHECKS
    assert set(checks) == set(templates(lesson_id)) and len(checks) >= 3
    kinds = Counter(item.generator for _, item in found)
    assert all(kinds[kind] >= 10 for kind in checks), kinds
    for runs, item in found:
        assert grade(item, correct_answer(item)).correct
        if isinstance(item, NumberItem):
            truth = checks[item.generator](item, runs)
            assert truth == pytest.approx(item.answer, abs=1e-9 if item.whole else 0.5 * item.tolerance), item.prompt
            assert grade(item, truth).correct
            assert not any(grade(item, trap.value).correct for trap in item.traps)
            continue
        for option in item.options:
            true = checks[item.generator](item, runs, option)
            assert true == option.correct, (item.prompt["en"], option.text["en"])
            assert grade(item, public_id(item, option)).correct == true


def test_no_words_are_dead_and_every_sentence_is_filled(made):
    lesson_id, found = made
    seen = set()
    for _, item in found:
        parts = item.traps if isinstance(item, NumberItem) else [o for o in item.options if not o.correct]
        seen |= {(item.generator, part.misconception) for part in parts}
        words = json.dumps(item.model_dump(), ensure_ascii=False)
        assert not re.search(r"\{[a-z]+[a-z_0-9]*\}", words)
        assert not re.search(r"\b(nan|inf|None)\b", item.prompt["en"] + item.prompt["zh"])
        assert re.search("[\u4e00-\u9fff]", item.prompt["zh"]) and not re.search("[\u4e00-\u9fff]", item.prompt["en"])
        assert item.run_ids
    written = set()
    for kind, template in templates(lesson_id).items():
        names = template.options if isinstance(template, ChoiceTemplate) else template.traps
        written |= {(kind, name) for name in names if name != "correct"}
    assert written == seen


def test_a_seed_fixes_the_items_and_the_browser_does_not_see_the_key(made):
    lesson_id, found = made
    runs = found[0][0]
    again = {role: Run.from_jsonl(run.to_jsonl()) for role, run in runs.items()}
    assert items_from_runs(lesson_id, runs, "ann") == items_from_runs(lesson_id, again, "ann")
    others = [items_from_runs(lesson_id, runs, f"ann/{i}") for i in range(8)]
    assert len({item.prompt["en"] for items in others for item in items}) > len(others[0])
    for _, item in found[::10]:
        sent = json.dumps(public_view(item, "en", "ann"))
        assert "correct" not in sent and "misconception" not in sent and "feedback" not in sent
