"""Items made from Runs: hundreds of Runs, every key recomputed from the raw records by a checker that shares no code.

The checker reads the English question as a learner would (request, step, policy), then the records.
"""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from engine.lab.records import Run
from lessons.generated import ChoiceTemplate, items_from_runs, templates
from lessons.quiz import ChoiceItem, NumberItem, correct_answer, grade, public_id, public_view
from tests.unit.lesson_runs import batching_runs, prefill_decode_runs, random_batching_runs

NUM_WORKLOADS = 120
REASONS = {
    "the batch before it had not drained": "batch_not_drained",
    "all places were taken": "request_limit",
    "the token budget of the step was used up": "token_budget",
    "there were not enough free KV blocks": "no_blocks",
}


# ------------------------------------------------------------------ the checker: raw records only


def the_request(run: Run, request_id: str):
    (found,) = [r for r in run.requests if r.request_id == request_id]
    return found


def seconds_of(text: str) -> tuple[float, float]:
    """A printed duration and half a unit of its last digit, in seconds."""
    digits, unit = text.replace(",", "").split()
    decimals = len(digits.partition(".")[2])
    unit_s = {"s": 1.0, "ms": 1e-3}[unit]
    whole_digits = len(digits.partition(".")[0])
    place = 10 ** (-decimals) if decimals or whole_digits <= 3 else 10 ** (whole_digits - 3)
    return float(digits) * unit_s, 0.51 * place * unit_s


def check_tpot(item: NumberItem, runs: dict[str, Run]) -> float:
    found = re.search(r"In your (static|continuous) run the first of (\S+)'s", item.prompt["en"])
    run = runs["run"] if found is None else runs["static" if found[1] == "static" else "chunked"]
    record = run.requests[0] if found is None else the_request(run, found[2])
    stamps = [s.t_end_s for s in run.steps for o in s.outputs if o.request_id == record.request_id]
    assert len(stamps) == record.num_output_tokens
    return 1e3 * (stamps[-1] - stamps[0]) / (len(stamps) - 1)


def step_of_output(run: Run, number: int):
    """The step that made the first request's output token ``number`` (from 1)."""
    return [s for s in run.steps if s.outputs][number - 1]


def check_blocks(item: NumberItem, runs: dict[str, Run]) -> float:
    run = runs["run"]
    last = step_of_output(run, int(re.search(r"output token (\d+)", item.prompt["en"])[1]))
    return sum(1 for s in run.steps if s.step <= last.step for e in s.block_events if e.op == "alloc")


def check_positions(item: NumberItem, runs: dict[str, Run]) -> float:
    step = step_of_output(runs["run"], int(re.search(r"output token (\d+)", item.prompt["en"])[1]))
    return step.scheduled[0].start + step.scheduled[0].num_tokens


def check_step_intensity(item: NumberItem, runs: dict[str, Run]) -> float:
    work = runs["run"].steps[int(re.search(r"Step (\d+)", item.prompt["en"])[1])].work
    return work.flops / (work.weight_bytes + work.kv_read_bytes + work.kv_write_bytes)


def policy_run(item, runs: dict[str, Run]) -> Run:
    return runs["static" if "static run" in item.prompt["en"] else "chunked"]


def check_enter_step(item: NumberItem, runs: dict[str, Run]) -> float:
    run = policy_run(item, runs)
    request_id = re.search(r"was (\S+) computed", item.prompt["en"])[1]
    return min(s.step for s in run.steps for row in s.scheduled if row.request_id == request_id)


def check_padding(item: NumberItem, runs: dict[str, Run]) -> float:
    request_id = re.search(r"a row for (\S+) after", item.prompt["en"])[1]
    return sum(r.phase == "padding" and r.request_id == request_id for s in runs["static"].steps for r in s.scheduled)


def check_blocks_held(item: NumberItem, runs: dict[str, Run]) -> float:
    request_id, step = re.search(r"run (\S+) \(.* finished in step (\d+)", item.prompt["en"]).groups()
    ops = Counter(
        e.op for s in runs["static"].steps if s.step <= int(step) for e in s.block_events if e.request_id == request_id
    )
    return ops["alloc"] - ops["release"]


def check_chunk(item: NumberItem, runs: dict[str, Run]) -> float:
    step, request_id = re.search(r"Step (\d+) of .* piece of (\S+)'s prompt", item.prompt["en"]).groups()
    (row,) = [r for r in runs["chunked"].steps[int(step)].scheduled if r.request_id == request_id]
    return row.num_tokens


def check_ttft_split(item: NumberItem, runs: dict[str, Run]) -> float:
    request_id = re.search(r"run (\S+) arrived", item.prompt["en"])[1]
    run = policy_run(item, runs)
    first = next(s for s in run.steps if any(r.request_id == request_id for r in s.scheduled))
    return 1e3 * (first.t_begin_s - the_request(run, request_id).arrival_s)


def is_true_wait(sentence: str, run: Run) -> bool:
    """Whether "X waited T, because R." is true of the records."""
    request_id, duration, words = re.fullmatch(r"(\S+) waited (\S+ m?s), because (.*)\.", sentence).groups()
    record = the_request(run, request_id)
    said, half_digit = seconds_of(duration)
    waited = record.first_scheduled_s - record.arrival_s
    before = [s for s in run.steps if s.t_begin_s < record.first_scheduled_s]
    recorded = {r.why for s in before for r in s.refused if r.request_id == request_id}
    return abs(said - waited) <= half_digit and recorded == {REASONS[words]}


NUMBERS = {
    "tpot": check_tpot,
    "blocks": check_blocks,
    "positions": check_positions,
    "step_intensity": check_step_intensity,
    "enter_step": check_enter_step,
    "padding": check_padding,
    "blocks_held": check_blocks_held,
    "chunk": check_chunk,
    "ttft_split": check_ttft_split,
}


def check(item, runs: dict[str, Run]) -> None:
    """The key is right, and nothing else that is offered is."""
    assert grade(item, correct_answer(item)).correct
    if isinstance(item, NumberItem):
        truth = NUMBERS[item.generator](item, runs)
        slack = 0.0 if item.whole else 1e-3  # milliseconds: the clock's own first microseconds
        assert abs(truth - item.answer) <= slack, item.prompt["en"]
        assert grade(item, truth).correct
        for trap in item.traps:
            assert not grade(item, trap.value).correct and abs(trap.value - truth) > item.tolerance
        return
    for option in item.options:
        if item.generator == "waited":
            true = is_true_wait(option.text["en"], policy_run(item, runs))
        else:
            record = runs["run"].requests[0]
            share = (record.first_token_s - record.first_scheduled_s) / (record.completion_s - record.first_scheduled_s)
            true = abs(float(option.text["en"].rstrip(" %")) - 100 * share) < 0.06
        assert true == option.correct, (item.prompt["en"], option.text["en"])
        assert grade(item, public_id(item, option)).correct == true


# ------------------------------------------------------------------ hundreds of Runs


@pytest.fixture(scope="module")
def made() -> list:
    """(lesson id, runs, item) over many workloads and seeds."""
    found = []
    for seed in range(NUM_WORKLOADS):
        runs = random_batching_runs(seed)
        found += [("batching", runs, item) for item in items_from_runs("batching", runs, seed)]
        runs = prefill_decode_runs(1 + seed * 7 % 300, 1 + seed * 5 % 60, pass_ms=1 + seed % 40)
        found += [("prefill_decode", runs, item) for item in items_from_runs("prefill_decode", runs, seed)]
    for preset in ("abcd", "chat", "mixed", "one_long"):
        runs = batching_runs(preset)
        found += [("batching", runs, item) for seed in range(15) for item in items_from_runs("batching", runs, seed)]
    runs = prefill_decode_runs(None)
    for seed in range(60):
        found += [("prefill_decode", runs, item) for item in items_from_runs("prefill_decode", runs, seed)]
    return found


def test_no_key_is_wrong_in_thousands_of_items(made):
    assert len(made) > 1_300
    for _, runs, item in made:
        check(item, runs)


def test_every_kind_occurs_often(made):
    kinds = Counter((lesson_id, item.generator) for lesson_id, _, item in made)
    for lesson_id in ("batching", "prefill_decode"):
        for kind in templates(lesson_id):
            assert kinds[lesson_id, kind] > 30, (lesson_id, kind, kinds[lesson_id, kind])


def test_every_misconception_that_is_written_occurs(made):
    """No dead words: each wrong option and trap of the templates was really offered in some item."""
    seen = set()
    for lesson_id, _, item in made:
        parts = item.traps if isinstance(item, NumberItem) else [o for o in item.options if not o.correct]
        seen |= {(lesson_id, item.generator, part.misconception) for part in parts}
    written = set()
    for lesson_id in ("batching", "prefill_decode"):
        for kind, template in templates(lesson_id).items():
            names = template.options if isinstance(template, ChoiceTemplate) else template.traps
            written |= {(lesson_id, kind, name) for name in names if name != "correct"}
    assert written == seen


def test_every_sentence_is_filled_in_both_languages(made):
    for _, _, item in made:
        data = item.model_dump()
        words = json.dumps(data, ensure_ascii=False)
        assert not re.search(r"\{[a-z]+[a-z_0-9]*\}", words)
        assert not re.search(r"\b(nan|inf|None)\b", item.prompt["en"] + item.prompt["zh"])
        assert re.search("[\u4e00-\u9fff]", item.prompt["zh"]) and not re.search("[\u4e00-\u9fff]", item.prompt["en"])
        assert item.run_ids and all(r.startswith("run-") for r in item.run_ids)


def test_the_browser_does_not_see_the_key(made):
    for _, _, item in made[::20]:
        view = public_view(item, "en", "ann")
        sent = json.dumps(view)
        assert "correct" not in sent and "misconception" not in sent and "feedback" not in sent
        if isinstance(item, ChoiceItem):
            assert {o["id"] for o in view["options"]} == {public_id(item, o) for o in item.options}


# ------------------------------------------------------------------ seeds


@pytest.mark.parametrize(
    ("lesson_id", "runs", "at_least"),
    [("batching", batching_runs("abcd"), 6), ("prefill_decode", prefill_decode_runs(37), 5)],
    ids=["batching", "prefill_decode"],
)
def test_a_seed_fixes_the_items_and_another_rotates_them(lesson_id, runs, at_least):
    first = items_from_runs(lesson_id, runs, "ann/1")
    assert len(first) >= at_least
    assert len({item.generator for item in first}) == len(first), "one item of each kind"
    assert first == items_from_runs(lesson_id, runs, "ann/1")
    others = [items_from_runs(lesson_id, runs, f"ann/{i}") for i in range(2, 12)]
    ids = {item.id for items in (first, *others) for item in items}
    assert len(ids) == sum(len(items) for items in (first, *others)), "an id names one question"
    prompts = {item.prompt["en"] for items in (first, *others) for item in items}
    assert len(prompts) >= 2 * len(first)


def test_a_stored_answer_is_graded_by_items_made_again():
    """The server keeps no question: Run and seed give it back, also after the Run went through its file."""
    runs = batching_runs("abcd")
    again = {name: Run.from_jsonl(run.to_jsonl()) for name, run in runs.items()}
    for item in items_from_runs("batching", runs, 7):
        (same,) = [other for other in items_from_runs("batching", again, 7) if other.id == item.id]
        assert same == item


def test_runs_that_are_missing_or_broken_only_cost_their_items():
    runs = batching_runs("abcd")
    assert items_from_runs("batching", {}, 1) == []
    assert items_from_runs("prefill_decode", {}, 1) == []
    static_only = items_from_runs("batching", {"static": runs["static"]}, 1)
    assert {"padding", "waited", "blocks_held"} <= {item.generator for item in static_only}
    for item in static_only:
        check(item, runs)
    cut = runs["static"].model_copy(deep=True)
    cut.requests[0].completion_s = cut.requests[0].first_token_s = cut.requests[0].first_scheduled_s = None
    assert {i.generator for i in items_from_runs("batching", {"static": cut, "chunked": runs["chunked"]}, 1)} <= {
        "tpot", "chunk", "waited", "enter_step", "ttft_split",
    }  # fmt: skip
    one = prefill_decode_runs(20, 1)
    assert {i.generator for i in items_from_runs("prefill_decode", one, 1)} <= {"step_intensity"}
