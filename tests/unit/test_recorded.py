"""Every lesson ships genuine Runs of its standard experiment, and everything it says can be said from them."""

from __future__ import annotations

import pytest

from engine.lab.check import check_file
from engine.lab.scenario import Scenario
from lessons import against, recorded
from lessons.catalog import load_lessons
from lessons.generated import items_from_runs
from lessons.parts import default_parts, fingerprint
from lessons.run_facts import explanation, facts, headline, prediction_answers
from lessons.shown import LessonStore
from lessons.text import LANGS
from tests.unit.lab_runs import make_run

MAX_BYTES = 400_000  # of a lesson's Run files together: they are in the repository for good
LESSONS = [lesson.id for lesson in load_lessons()]
MISSING = "run `python -m lessons record {lesson}` on a quiet machine and commit lessons/{lesson}/recorded/"


@pytest.mark.parametrize("lesson_id", LESSONS)
def test_a_lesson_ships_the_runs_of_its_standard_experiment(lesson_id: str) -> None:
    parts = default_parts(lesson_id)
    found = recorded.runs(lesson_id)
    assert set(found) == {part.label for part in parts}, MISSING.format(lesson=lesson_id)
    for part in parts:
        if part.scenario is not None:  # parsed: a field that came later has its default in an older file
            asked = Scenario.parse(found[part.label].header.scenario)
            assert asked == part.scenario, f"recorded with other settings; {MISSING.format(lesson=lesson_id)}"


@pytest.mark.parametrize("lesson_id", LESSONS)
def test_recorded_runs_pass_the_check_and_name_a_measured_device(lesson_id: str) -> None:
    paths = recorded.files(lesson_id)
    for path in paths:
        header = check_file(path).header
        assert header.device.name
        if header.observed is None:  # of a server that is watched from outside nobody can say it
            assert header.device.read_gbps
            assert header.device.matmul_tflops
        spoken = recorded.texts(header.run_id)
        assert set(spoken.pieces) == set(spoken.texts) != set()
    assert sum(path.stat().st_size for path in paths) <= MAX_BYTES


@pytest.mark.parametrize("lesson_id", LESSONS)
def test_facts_answers_and_questions_come_from_the_recorded_runs(lesson_id: str) -> None:
    runs = dict(recorded.runs(lesson_id))
    assert facts(lesson_id, runs)
    assert prediction_answers(lesson_id, runs)
    assert len(items_from_runs(lesson_id, runs, "a learner")) >= 3
    for lang in LANGS:
        assert headline(lesson_id, runs, lang)
        assert explanation(lesson_id, runs, lang)


def test_recorded_runs_are_found_by_id_with_what_they_said() -> None:
    run = recorded.runs("prefill_decode")["run"]
    assert recorded.is_recorded(run.run_id)
    assert recorded.run(run.run_id) == run
    assert recorded.texts(run.run_id).texts
    assert not recorded.is_recorded("run-000000000000")
    assert recorded.run("run-000000000000") is None
    assert recorded.texts("run-000000000000").texts == {}


def test_an_experiment_is_known_in_both_languages_and_by_its_settings() -> None:
    known = recorded.experiments("prefill_decode")
    assert {fingerprint([p.plain() for p in default_parts("prefill_decode", lang)]) for lang in LANGS} == known
    plain = [part.plain() for part in default_parts("prefill_decode")]
    plain[0]["scenario"]["requests"][0]["max_tokens"] += 1
    assert fingerprint(plain) not in known


# ------------------------------------------------------------------------------------------------- what is shown
def test_a_lesson_shows_own_runs_until_the_recorded_ones_are_asked_for() -> None:
    store = LessonStore("sqlite://")
    learner = store.learner("somebody")
    own = make_run({"policy": "chunked", "requests": [{"prompt_token_ids": [1, 2, 3], "max_tokens": 4}]})
    store.save_run(own, {}, "prefill_decode", learner, role="run")
    assert store.latest_runs(learner, "prefill_decode")["run"].run_id == own.run_id
    store.show_recorded(learner, "prefill_decode", True)
    shown = store.latest_runs(learner, "prefill_decode")
    assert shown == dict(recorded.runs("prefill_decode"))
    assert store.own_runs(learner, "prefill_decode")["run"].run_id == own.run_id
    assert store.run(shown["run"].run_id) is not None
    assert store.texts(shown["run"].run_id).texts
    store.show_recorded(learner, "prefill_decode", False)
    assert store.latest_runs(learner, "prefill_decode")["run"].run_id == own.run_id


def test_having_seen_the_recorded_runs_is_progress_and_goes_with_the_learner() -> None:
    store = LessonStore("sqlite://")
    learner = store.learner("somebody")
    store.show_recorded(learner, "batching", False)
    assert store.progress(learner) == {}
    store.show_recorded(learner, "batching", True)
    store.show_recorded(learner, "batching", False)
    assert store.progress(learner)["batching"].num_runs == 1
    assert store.progress(learner)["batching"].last_utc
    store.reset(learner)
    assert store.progress(learner) == {}


# ------------------------------------------------------------------------------------------------- side by side
def slower(run, factor: float):
    """The same Run on a device ``factor`` times slower in every step."""
    copy = run.model_copy(deep=True) if hasattr(run, "model_copy") else type(run).from_jsonl(run.to_jsonl())
    for step in copy.steps:
        step.t_begin_s *= factor
        step.t_end_s *= factor
    for request in copy.requests:
        for name in ("first_scheduled_s", "first_token_s", "completion_s"):
            setattr(request, name, getattr(request, name) * factor)
    copy.header.device.read_gbps /= factor
    return copy


def test_a_device_half_as_fast_takes_twice_as_long_and_decides_the_same() -> None:
    theirs = recorded.runs("prefill_decode")
    mine = {"run": slower(theirs["run"], 2.0)}
    found = {figure.kind: figure for figure in against.figures("prefill_decode", mine, theirs)}
    assert found["decode_step"].ratio == pytest.approx(2.0)
    assert found["prefill_step"].ratio == pytest.approx(2.0)
    assert found["total"].ratio == pytest.approx(2.0)
    assert found["tokens_per_s"].ratio == pytest.approx(0.5)
    assert found["read"].ratio == pytest.approx(0.5)
    assert found["matmul"].ratio == pytest.approx(1.0)
    both = against.shared(mine, theirs)
    assert both.steps[0] == both.steps[1] == len(theirs["run"].steps)
    assert both.same_tokens
    assert against.same_workload(mine, theirs)
    mine["run"].header.scenario.pop("probes")  # an older file, from before there were any
    assert against.same_workload(mine, theirs)


def test_another_request_is_another_workload() -> None:
    theirs = recorded.runs("prefill_decode")
    other = type(theirs["run"]).from_jsonl(theirs["run"].to_jsonl())
    other.header.scenario["requests"][0]["max_tokens"] += 1
    assert not against.same_workload({"run": other}, theirs)
    other.requests[0].output_token_ids[-1] += 1
    assert not against.shared({"run": other}, theirs).same_tokens
