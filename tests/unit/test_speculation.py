"""Guessing ahead from the text itself: what is guessed, what it may cost, and that it never changes the output."""

import copy

import pytest

from engine.lab.check import check_run
from engine.lab.check_rules import CheckError
from engine.lab.draft_use import draft_use
from engine.lab.export import to_chrome, to_csv
from engine.lab.kv_use import kv_after_steps
from engine.lab.latency import inter_token_gaps, token_times
from engine.lab.metrics import run_metrics
from engine.lab.records import Run
from engine.lab.savings import savings
from engine.lab.scenario import Scenario, ScenarioError, Speculation
from engine.lab.tables import step_rows
from engine.scheduling.invariants import StepChecker
from engine.scheduling.policies import POLICIES
from engine.scheduling.requests import Request
from engine.scheduling.speculation import PromptLookup
from tests.fakes import REPETITIVE, FakeText, as_run, checked_step, drain, expected_output, make_engine, make_request

AHEAD = Speculation(ngram=2, num_draft_tokens=4)
SPECULATING = [name for name in POLICIES if name != "static"]


def request(tokens):
    return Request("a", list(tokens), 50)


# ---- the guess -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "guess"),
    [
        ([1, 2, 3, 4, 5, 1, 2], [3, 4, 5, 1]),
        ([1, 2, 3, 1, 2, 9, 1, 2], [9, 1, 2, 9]),  # the last time counts, and a repetition goes on as it repeats
        ([7, 7, 7], [7, 7, 7, 7]),
        ([1, 2, 3, 4], []),  # nothing has come twice
        ([1, 2], []),
        ([1], []),
    ],
)
def test_what_followed_the_last_two_tokens_before_is_the_guess(tokens, guess):
    assert PromptLookup(2, 4).propose(request(tokens), 10) == guess
    assert PromptLookup(2, 4).propose(request(tokens), 2) == guess[:2]


@pytest.mark.parametrize("ngram", [1, 2, 3])
def test_the_index_grows_with_the_text_and_agrees_with_a_search(ngram):
    lookup, growing = PromptLookup(ngram, 3), request([0])
    for i in range(200):
        tokens = growing.token_ids
        key, found = tokens[-ngram:], None
        for end in range(ngram, len(tokens)):
            if tokens[end - ngram : end] == key:
                found = end
        expected = [] if found is None else (tokens[found:] * 3)[:3]
        assert lookup.propose(growing, 3) == expected
        growing.token_ids.append(i * i % 5)


def test_what_is_forgotten_leaves_nothing():
    lookup = PromptLookup(2, 4)
    lookup.propose(request([1, 2, 1, 2]), 4)
    lookup.forget("a"), lookup.forget("a")
    assert not lookup._indexes


# ---- a step with guesses -------------------------------------------------------------------------------------------


def circling(speculation=AHEAD, **limits):
    """One greedy request on a model whose text runs in circles."""
    engine = make_engine(speculation=speculation, vocab=REPETITIVE, tokens=32, **limits)
    one = Request("a", [1, 2], 40)
    engine.add(one, FakeText())
    return engine, one


def test_right_guesses_give_several_tokens_in_one_step_and_the_text_of_all():
    engine, one = circling()
    records, deltas = [], []
    while engine.has_work:
        records.append(engine.step())
        deltas.append(engine.text_deltas.get("a", ""))
    assert one.output_token_ids == expected_output([1, 2], 40, vocab=REPETITIVE)
    assert "".join(deltas) == "".join(f"<{t}>" for t in one.output_token_ids)
    guessing = [row for r in records for row in r.scheduled if row.num_draft_tokens]
    assert guessing and all((row.phase, row.num_tokens) == ("decode", 1 + row.num_draft_tokens) for row in guessing)
    assert len(records) < 30 and max(len(r.outputs) for r in records) == 5
    run = as_run(engine, records)
    check_run(run)
    assert [t.token_id for t in token_times(run)["a"]] == one.output_token_ids


def test_each_guess_is_a_row_of_its_own_behind_the_newest_token():
    engine, _ = circling()
    while not (record := engine.step()).scheduled[0].num_draft_tokens:
        pass
    start, num_drafts = record.scheduled[0].start, record.scheduled[0].num_draft_tokens
    assert engine.executor.calls[-1] == [("a", start + i, 1, "decode") for i in range(1 + num_drafts)]


def test_wrong_guesses_are_as_if_they_had_not_been():
    """On a text without repetition every guess is wrong; the next step starts where the last token is."""
    engine = make_engine(speculation=Speculation(ngram=1, num_draft_tokens=4), tokens=32)
    one = Request("a", [5, 6, 5, 7, 5, 8, 5], 30)
    engine.add(one)
    records = drain(engine)
    check_run(as_run(engine, records))
    wrong = [r for r in records if r.scheduled[0].num_draft_tokens and len(r.outputs) == 1]
    assert wrong
    for record in wrong:
        following = records[record.step + 1] if record.step + 1 < len(records) else None
        assert following is None or following.scheduled[0].start == record.scheduled[0].start + 1
    assert one.output_token_ids == expected_output(one.prompt_token_ids, 30)


@pytest.mark.parametrize("eos_at", [3, 7, 12])
def test_an_end_within_the_guesses_ends_the_request_there(eos_at):
    plain = expected_output([1, 2], 40, vocab=REPETITIVE)
    engine, one = circling()
    engine._readers["a"] = type(engine._readers["a"])(FakeText(stop=f"<{plain[eos_at]}>"), frozenset())
    records = drain(engine)
    end = plain.index(plain[eos_at]) + 1
    assert (one.output_token_ids, one.finish_reason) == (plain[:end], "stop")
    assert [o.finish_reason for r in records for o in r.outputs] == [None] * (end - 1) + ["stop"]
    assert engine.scheduler.lookup._indexes == {}


def test_it_never_says_more_than_max_tokens():
    for max_tokens in range(1, 12):
        engine = make_engine(speculation=AHEAD, vocab=REPETITIVE, tokens=32)
        one = Request("a", [1, 2, 1, 2, 1, 2], max_tokens)
        engine.add(one)
        records = drain(engine)
        check_run(as_run(engine, records))
        assert one.output_token_ids == expected_output([1, 2, 1, 2, 1, 2], max_tokens, vocab=REPETITIVE)


def test_who_samples_does_not_guess():
    engine = make_engine(speculation=AHEAD, vocab=REPETITIVE, tokens=32)
    engine.add(Request("a", [1, 2, 1, 2], 20, temperature=0.5))
    records = drain(engine)
    assert {row.num_draft_tokens for r in records for row in r.scheduled} == {0}
    check_run(as_run(engine, records))


# ---- what it may cost ----------------------------------------------------------------------------------------------


def test_guesses_get_only_the_budget_that_is_left():
    engine = make_engine(speculation=AHEAD, vocab=REPETITIVE, tokens=6)
    for name in "abc":
        engine.add(Request(name, [1, 2], 30))
    records = drain(engine)
    check_run(as_run(engine, records))
    assert max(sum(row.num_tokens for row in r.scheduled) for r in records) == 6
    full = next(r for r in records if len(r.scheduled) == 3 and r.scheduled[0].num_draft_tokens)
    assert [row.num_draft_tokens for row in full.scheduled] == [3, 0, 0]


@pytest.mark.parametrize("policy", SPECULATING)
def test_nobody_waits_is_preempted_or_evicted_for_a_guess(policy):
    """Before each step a copy of the scheduler decides without guessing, and decides the same about everybody."""
    engine = make_engine(policy, speculation=AHEAD, vocab=REPETITIVE, tokens=24, blocks=26, prefix="hash")
    for i in range(6):
        engine.add(Request(f"r{i}", [i, 1, 2, i % 3, 1, 2], 40, arrival_s=0.02 * i))
    num_drafts, num_preempted, num_evicted, records = 0, 0, 0, []
    while engine.has_work:
        plain = copy.deepcopy(engine.scheduler)
        plain.lookup = None
        decision = plain.decide(engine.now_s())
        records.append(engine.step())
        record = records[-1]
        assert [row.request_id for row in record.scheduled] == list(decision.scheduled)
        assert (record.admitted, record.preempted) == (decision.admitted, decision.preempted)
        assert [(r.request_id, r.why) for r in record.refused] == decision.refused
        evicted = [e.block_id for e in record.block_events if e.op == "evict"]
        assert evicted == [block_id for op, block_id, _ in plain.pool.take_events() if op == "evict"]
        num_drafts += sum(row.num_draft_tokens for row in record.scheduled)
        num_preempted += len(record.preempted)
        num_evicted += len(evicted)
    check_run(as_run(engine, records))
    assert num_drafts > 50 and num_evicted and (num_preempted or policy == "orca")


def test_a_full_pool_leaves_no_room_for_guesses():
    engine = make_engine(speculation=AHEAD, vocab=REPETITIVE, tokens=32, blocks=10)
    one = Request("a", [1, 2] * 18, 4)  # 40 positions: the whole pool
    engine.add(one)
    records = drain(engine)
    check_run(as_run(engine, records))
    assert one.output_token_ids == expected_output(one.prompt_token_ids, 4, vocab=REPETITIVE)


# ---- never another token -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", SPECULATING)
@pytest.mark.parametrize("prefix", ["none", "hash", "radix"])
@pytest.mark.parametrize("ngram", [1, 3])
@pytest.mark.parametrize("blocks", [9, 64])
def test_policy_cache_and_pool_do_not_change_the_tokens(policy, prefix, ngram, blocks):
    speculation = Speculation(ngram=ngram, num_draft_tokens=5)
    engine = make_engine(
        policy, speculation=speculation, vocab=REPETITIVE, tokens=11, blocks=blocks, requests=3, prefix=prefix
    )
    requests = [Request(f"r{i}", [i % 2, 1, 2, 3, 1, 2][: 2 + i % 5], 4 + 5 * i % 17, 0.01 * i) for i in range(7)]
    for one in requests:
        engine.add(one, None, frozenset({6}) if one.request_id == "r3" else frozenset())
    records = drain(engine)
    check = as_run(engine, records)
    check.header.scenario["requests"][3]["ignore_eos"] = False
    check_run(check)
    kv_after_steps(check)
    for one in requests:
        eos = frozenset({6}) if one.request_id == "r3" else frozenset()
        assert one.output_token_ids == expected_output(one.prompt_token_ids, one.max_tokens, eos, REPETITIVE)


@pytest.mark.parametrize("num_before", range(16))
def test_abort_and_abort_in_mid_step_with_guesses_in_flight(num_before):
    for in_flight in (False, True):
        engine, one = circling(blocks=14)
        other = Request("b", [3, 1, 3, 1], 9)
        engine.add(other)
        checker = StepChecker(engine)
        for _ in range(num_before):
            if engine.has_work:
                checked_step(engine, checker)
        if in_flight:
            engine.executor.on_forward = lambda chunks, engine=engine: engine.abort("a")
            if engine.has_work:
                checked_step(engine, checker)
            engine.executor.on_forward = None
        engine.abort("a")
        drain(engine, checker)
        assert other.output_token_ids == expected_output([3, 1, 3, 1], 9, vocab=REPETITIVE)
        assert one.output_token_ids == expected_output([1, 2], 40, vocab=REPETITIVE)[: one.num_output_tokens]
        assert engine.scheduler.lookup._indexes == {}


# ---- the scenario and the check ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"policy": "static"}, "static batching runs rows of one token"),
        ({"limits": {"kv_cache": "none"}}, "needs limits.kv_cache keep"),
        ({"kv_dtype": "int8"}, "overwrites wrong guesses"),
        ({"speculation": {"ngram": 0}}, r"speculation.ngram is 0; allowed: a whole number from 1 to 8"),
        ({"speculation": {"tokens": 2}}, r"speculation.tokens is not a field"),
    ],
)
def test_a_scenario_that_cannot_speculate_says_why(fields, message):
    data = {"requests": [{"prompt": "a"}], "speculation": {"ngram": 3, "num_draft_tokens": 4}} | fields
    with pytest.raises(ScenarioError, match=message):
        Scenario.parse(data)


def test_no_speculation_is_the_default():
    assert Scenario.parse({"requests": [{"prompt": "a"}]}).speculation is None


def guessing_run() -> tuple[Run, int]:
    """A checked Run, and the number of a step whose request gave several tokens."""
    engine, _ = circling()
    run = as_run(engine, drain(engine))
    check_run(run)
    return run, next(s.step for s in run.steps if len(s.outputs) > 1)


def corrupted(change) -> str:
    run, number = guessing_run()
    run = run.model_copy(deep=True)
    change(run, run.steps[number])
    with pytest.raises(CheckError) as error:
        check_run(run)
    return error.value.invariant


def test_the_check_refuses_impossible_guesses():
    def more_than_allowed(run, step):
        run.header.scenario["speculation"]["num_draft_tokens"] = 1

    def at_a_temperature(run, step):
        run.header.scenario["requests"][0]["temperature"] = 0.7

    def more_tokens_than_guesses(run, step):
        step.scheduled[0].num_draft_tokens = 1
        step.scheduled[0].num_tokens = 2

    def a_guess_too_right(run, step):
        del step.outputs[-1]

    assert corrupted(more_than_allowed) == "drafts"
    assert corrupted(at_a_temperature) == "drafts"
    assert corrupted(more_tokens_than_guesses) == "outputs"
    assert corrupted(a_guess_too_right) in ("publish_full", "positions", "finish")


# ---- what it was worth ---------------------------------------------------------------------------------------------


def brute_force_guesses(run: Run) -> tuple[int, int]:
    """Guesses and right ones of one request, from the tokens it said step by step."""
    (record,) = run.requests
    said, num_guesses, num_right = 0, 0, 0
    for step in run.steps:
        now = [o.token_id for o in step.outputs]
        assert now == record.output_token_ids[said : said + len(now)]
        num_guesses += step.scheduled[0].num_tokens - 1 if said else 0
        num_right += len(now) - 1 if said else 0
        said += len(now)
    return num_guesses, num_right


def test_what_guessing_was_worth_is_counted_from_the_records():
    engine = make_engine(speculation=Speculation(ngram=1, num_draft_tokens=4), vocab=REPETITIVE, tokens=32)
    engine.add(Request("a", [1, 2, 1, 3, 1, 4, 2, 5, 3, 6, 4, 1], 40))
    run = as_run(engine, drain(engine))
    check_run(run)
    use = draft_use(run)
    assert (use.num_draft_tokens, use.num_accepted_tokens) == brute_force_guesses(run)
    assert 0 < use.num_accepted_tokens < use.num_draft_tokens
    assert use.acceptance_rate == use.num_accepted_tokens / use.num_draft_tokens
    assert use.num_decode_tokens == 39, "all but the prompt's own token"
    assert use.tokens_per_decode_row == 39 / (len(run.steps) - 1) > 1
    assert list(savings(run)) == ["speculation"]
    assert savings(run)["speculation"]["acceptance_rate"] == use.acceptance_rate


def test_without_guesses_there_is_nothing_to_count():
    engine = make_engine()
    engine.add(make_request("a"))
    run = as_run(engine, drain(engine))
    use = draft_use(run)
    assert (use.num_draft_tokens, use.acceptance_rate, use.tokens_per_decode_row) == (0, None, 1.0)
    assert savings(run) == {}
    assert draft_use(run.model_copy(update={"steps": []})).tokens_per_decode_row is None


def test_exports_and_tables_tell_guesses_and_every_token():
    run, number = guessing_run()
    use = draft_use(run)
    rows = step_rows(run)
    assert sum(row["draft_tokens"] for row in rows) == use.num_draft_tokens
    assert sum(row["accepted_draft_tokens"] for row in rows) == use.num_accepted_tokens
    assert sum(row["outputs"] for row in rows) == 40
    assert to_csv(run).splitlines()[0].split(",") == list(rows[0])
    bars = [e for e in to_chrome(run)["traceEvents"] if e["ph"] == "X" and "num_draft_tokens" in e["args"]]
    assert sum(bar["args"]["num_accepted_tokens"] for bar in bars) == use.num_accepted_tokens
    step = run.steps[number]
    (bar,) = [bar for bar in bars if bar["args"]["step"] == number]
    assert bar["name"] == f"decode, {len(step.outputs) - 1} of {step.scheduled[0].num_draft_tokens} guesses right"
    metrics = run_metrics(run)
    assert metrics.num_output_tokens == 40
    gaps = inter_token_gaps(run, "a")
    assert len(gaps) == 39 and gaps.count(0.0) == use.num_accepted_tokens, "tokens of one step come at one time"


def test_the_fake_model_does_not_speculate_by_itself():
    engine = make_engine()
    engine.add(make_request("a"))
    assert engine.scheduler.lookup is None
    assert all(row.num_draft_tokens == 0 for r in drain(engine) for row in r.scheduled)
