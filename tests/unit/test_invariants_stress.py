"""Random workloads on tiny engines: whatever happens, the invariants hold after every step and the tokens are right.

Each example draws a prefix cache, limits, a block size and requests, some with a common beginning, that arrive, finish
and are aborted at odd moments. The fake executor reads every prefix back through the block tables, so a wrong block
shows as a wrong token. Every Run is also given to ``engine.lab.check``, which knows only the records. The workloads are
the same in every run; set STRESS_SEED to a number for others, STRESS_STEPS for more of them. A failure prints what
repeats it.
"""

import os
import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from engine.lab.check import check_run
from engine.lab.scenario import Speculation
from engine.scheduling.invariants import StepChecker, check_empty
from engine.scheduling.policies import POLICIES
from engine.scheduling.policies.chunked import Chunked
from engine.scheduling.requests import Request
from engine.scheduling.scheduler import Scheduler, ends_at_max_tokens
from tests.fakes import REPETITIVE, VOCAB, FakeText, as_run, checked_step, expected_output, make_engine, make_limits

STRESS_SEED = os.environ.get("STRESS_SEED")
STRESS_STEPS = int(os.environ.get("STRESS_STEPS", "100000"))  # engine steps, all policies and caches together
CACHES = ["none", "hash", "radix"]
# Guesses on a model whose texts run in circles, so that some are right.
GUESSING = {"speculation": Speculation(ngram=1, num_draft_tokens=3), "vocab": REPETITIVE}
NEVER_PREEMPT = {"static", "orca"}  # they reserve blocks for the longest output
EOS = frozenset({5, 50})


class Preempting(Chunked):
    """Chunked, but every third step begins by preempting the youngest, whether there is room or not."""

    def __init__(self, *args):
        super().__init__(*args)
        self.num_plans = 0

    def schedule(self, plan):
        self.num_plans += 1
        if self.num_plans % 3 == 0 and len(self.running) > 1:
            self.preempt(plan, self.running[-1])
        super().schedule(plan)


UNDER_TEST = [*POLICIES, "preempting"]


@pytest.fixture(scope="module", autouse=True)
def preempting_policy():
    POLICIES["preempting"] = Preempting
    yield
    del POLICIES["preempting"]


def fixed(test):
    """The same examples every time, unless STRESS_SEED asks for others."""
    profile = settings(
        max_examples=max(1, 16 * STRESS_STEPS // 100_000),
        deadline=None,
        database=None,
        derandomize=STRESS_SEED is None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    return profile(test if STRESS_SEED is None else seed(int(STRESS_SEED))(test))


@st.composite
def workloads(draw):
    """Block size, limits, requests that can fit the pool, and aborts as (before which step, index of the request)."""
    block_size = draw(st.integers(1, 6))
    num_blocks = draw(st.integers(1 if block_size > 1 else 2, 14))
    max_requests = draw(st.integers(1, 6))
    tokens = draw(st.integers(1, 24))
    capacity = block_size * num_blocks
    requests = []
    for _ in range(draw(st.integers(1, 12))):
        total = draw(st.integers(2, capacity))
        prompt = draw(st.integers(1, total - 1))
        ids = draw(st.integers(0, 3))  # requests with the same one begin alike
        requests.append(
            {
                "prompt_token_ids": [(ids + i * i) % VOCAB for i in range(prompt)],
                "max_tokens": total - prompt,
                "arrival_s": draw(st.sampled_from([0.0, 0.0, 0.02, 0.05, 0.3])),
                "ignore_eos": draw(st.booleans()),
            }
        )
    aborts = draw(st.lists(st.tuples(st.integers(0, 30), st.integers(0, len(requests) - 1)), max_size=6))
    caches = draw(st.sampled_from([("keep", prefix) for prefix in CACHES] + [("none", "none")]))
    limits = {"requests": max_requests, "tokens": tokens, "blocks": num_blocks, "kv": caches[0], "prefix": caches[1]}
    if caches[0] == "keep" and draw(st.booleans()):
        limits |= GUESSING
    return block_size, limits, requests, aborts


def play(policy, block_size, limits, specs, aborts):
    """Run a workload to its end with every check after every step. Returns engine and records."""
    if policy == "static":
        limits = {**limits, "tokens": max(limits["tokens"], limits["requests"]), "kv": "keep", "speculation": None}
    engine = make_engine(policy, block_size=block_size, **limits)
    requests = [Request(f"r{i}", **spec) for i, spec in enumerate(specs)]
    for request in requests:
        engine.add(request, FakeText(), EOS)
    checker, records, num_calls = StepChecker(engine), [], 0
    while engine.has_work:
        for _, index in (abort for abort in aborts if abort[0] == num_calls and abort[1] < len(requests)):
            engine.abort(f"r{index}")
        record = checked_step(engine, checker)
        if record is not None:
            records.append(record)
        num_calls += 1
        assert num_calls < 20_000, "no end in sight"
    check_empty(engine.scheduler)
    assert engine.scheduler.pool.num_available == limits["blocks"]
    check_outputs(requests, engine.executor.vocab)
    check_run(as_run(engine, records))  # the records alone, as a reader of the file has them, tell a possible story
    return engine, records


def check_outputs(requests, vocab):
    for request in requests:
        eos = frozenset() if request.ignore_eos else EOS
        expected = expected_output(request.prompt_token_ids, request.max_tokens, eos, vocab)
        reason = "stop" if expected[-1] in eos else "length"
        if request.finish_reason == "abort":
            assert request.output_token_ids == expected[: request.num_output_tokens]
        else:
            assert (request.output_token_ids, request.finish_reason) == (expected, reason)


@pytest.mark.parametrize("policy", UNDER_TEST)
@fixed
@given(workload=workloads())
def test_any_workload_keeps_the_invariants_and_the_tokens(policy, workload):
    play(policy, *workload)


def random_workload(rng, prefix):
    """Sixteen requests on a pool that holds a few of them: more pressure than the drawn examples have.

    Most begin like one of two texts, for a random while.
    """
    block_size, num_blocks, max_requests = rng.choice([1, 2, 4, 16]), rng.randint(3, 12), rng.randint(1, 8)
    capacity = block_size * num_blocks
    texts = [[rng.randrange(VOCAB) for _ in range(capacity)] for _ in range(2)]
    specs = []
    for _ in range(16):
        prompt = rng.randint(1, capacity - 1)
        shared = rng.randint(0, prompt)
        specs.append(
            {
                "prompt_token_ids": rng.choice(texts)[:shared] + [rng.randrange(VOCAB) for _ in range(prompt - shared)],
                "max_tokens": rng.randint(1, min(48, capacity - prompt)),
                "arrival_s": round(rng.uniform(0, 0.7), 3),
                "ignore_eos": rng.random() < 0.7,
            }
        )
    aborts = [(rng.randint(0, 100), rng.randrange(16)) for _ in range(rng.randint(0, 9))]
    limits = {"requests": max_requests, "tokens": rng.randint(1, 32), "blocks": num_blocks, "prefix": prefix}
    if rng.random() < 0.3:
        limits |= GUESSING
    return block_size, limits, specs, aborts


@pytest.mark.parametrize("prefix", CACHES)
@pytest.mark.parametrize("policy", UNDER_TEST)
def test_long_random_workloads(policy, prefix):
    base, number, count = int(STRESS_SEED or 0), 0, Counter()
    while count["steps"] < STRESS_STEPS // (len(UNDER_TEST) * len(CACHES)):
        number += 1
        try:
            workload = random_workload(random.Random(base * 100_003 + number), prefix)
            engine, records = play(policy, *workload)
        except Exception as error:
            raise AssertionError(f"{policy}, {prefix}, STRESS_SEED={base}, workload {number}: {error}") from error
        count["steps"] += len(records)
        count["preempted"] += sum(len(r.preempted) for r in records)
        count["aborted"] += sum(r.finish_reason == "abort" for r in engine.request_records())
        count.update(event.op for record in records for event in record.block_events)
        count["guessed"] += sum(row.num_draft_tokens for record in records for row in record.scheduled)
    print(f"{policy}, {prefix}: {number} workloads, {dict(count)}")
    # The rare things must not be rare.
    assert count["guessed"] == 0 if policy == "static" else count["guessed"] > number
    assert count["aborted"] >= number // 2
    assert count["preempted"] == 0 if policy in NEVER_PREEMPT else count["preempted"] > number // 2
    assert (count["share"] == count["evict"] == 0) if prefix == "none" else min(count["share"], count["evict"]) > number


@pytest.mark.parametrize("policy", UNDER_TEST)
def test_both_prefix_caches_find_the_same(policy):
    for number in range(3):
        one, two = (play(policy, *random_workload(random.Random(number), prefix))[1] for prefix in ("hash", "radix"))
        assert one == two


def test_a_thousand_random_scenarios_are_scheduled_in_seconds():
    """The scheduler alone, as a page may run it: no model, no records, a tenth of a millisecond a step."""
    rng, num_steps = random.Random(7), 0
    for number in range(1000):
        policy, prefix = UNDER_TEST[number % len(UNDER_TEST)], CACHES[number % len(CACHES)]
        block_size, limits, specs, _ = random_workload(rng, prefix)
        limits["tokens"] = max(limits["tokens"], limits["requests"])
        limits = {name: value for name, value in limits.items() if name not in GUESSING}
        scheduler = Scheduler(policy, make_limits(**limits), block_size)
        for i, spec in enumerate(specs):
            scheduler.add(Request(f"r{i}", **spec))
        while scheduler.has_unfinished:
            chunks = scheduler.chunks(scheduler.decide(num_steps / 100))
            scheduler.commit(chunks, [1] * sum(c.samples for c in chunks), ends_at_max_tokens)
            num_steps += 1
        check_empty(scheduler)
        assert all(r.num_output_tokens == r.max_tokens for r in scheduler.requests.values())
    assert num_steps > 80_000
