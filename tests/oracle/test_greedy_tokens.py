"""Greedy tokens of the default model in float32 equal transformers' generate, however we batch, chunk or preempt.

In batches on PyTorch's own operations; alone and whatever else a schedule may do, on the C++ kernels, which take a
fifth of the time. (That their tokens are the eager path's is for test_cpp_tokens; that no schedule changes the eager
path's, on a model that is tiny, for test_any_schedule.) Within the near-tie rule of ``tests.oracle.near_ties``; how
often it was used is recorded and bounded.
"""

from __future__ import annotations

import pytest

from engine.lab.scenario import Limits
from engine.runtime.engine import Engine
from engine.scheduling.policies import POLICIES
from engine.scheduling.policies.chunked import Chunked
from engine.scheduling.requests import Request
from tests.fakes import FakeExecutor
from tests.oracle.conftest import NUM_TOKENS, generate, serve
from tests.oracle.near_ties import Answer, count_near_ties

pytestmark = pytest.mark.oracle

NEAR_TIE = 1e-3  # logits; those of this model are some 20 apart, and float32 rounding moves them by about 1e-4
MAX_NEAR_TIES = 1  # of 8 answers


def requests_for(answers: list[Answer], lengths: list[int] | None = None) -> list[Request]:
    lengths = lengths or [NUM_TOKENS] * len(answers)
    return [
        Request(f"r{i}", answer.prompt_token_ids, length, ignore_eos=True)
        for i, (answer, length) in enumerate(zip(answers, lengths, strict=True))
    ]


def check(requests: list[Request], answers: list[Answer], record_property) -> None:
    outputs = [request.output_token_ids for request in requests]
    assert [len(output) for output in outputs] == [request.max_tokens for request in requests]
    near_ties = count_near_ties(answers, outputs, NEAR_TIE)
    record_property("near_ties", near_ties)
    assert near_ties <= MAX_NEAR_TIES


def test_alone(answers, alone, record_property):
    near_ties = count_near_ties(answers, alone, NEAR_TIE)
    record_property("near_ties", near_ties)
    assert near_ties <= MAX_NEAR_TIES


def test_the_oracle_is_what_generate_says(hugging_face, answers):
    """Token by token, to see that checking an answer and generating it are the same."""
    generated = generate(hugging_face, answers[-1].prompt_token_ids, None)
    assert count_near_ties([answers[-1]], [generated.token_ids], NEAR_TIE) <= MAX_NEAR_TIES


@pytest.mark.parametrize("policy", ["static", "chunked"])
def test_batched(loaded, answers, policy, record_property):
    requests = requests_for(answers)
    serve(loaded, requests, policy, Limits(max_requests=8, max_batch_tokens=64, num_blocks=64))
    check(requests, answers, record_property)


@pytest.mark.parametrize("policy", ["static", "chunked"])
def test_batched_with_prompts_in_chunks(as_the_lab, answers, policy, record_property):
    requests = requests_for(answers)
    serve(as_the_lab, requests, policy, Limits(max_requests=7, max_batch_tokens=7, num_blocks=64))
    check(requests, answers, record_property)


class OneTokenEach(Chunked):
    """Every running request gets one token in every step, so that all prompts are read in chunks of one, together."""

    def schedule(self, plan):
        while self.waiting and len(self.running) < self.limits.max_requests:
            self.admit(plan, self.waiting[0])
        for request in list(self.running):
            assert self.grow(request, request.num_computed_tokens + 1)
            plan.give(request, 1)
        self.refuse_waiting(plan, "request_limit")


def test_chunks_of_one_token(as_the_lab, answers, record_property, monkeypatch):
    monkeypatch.setitem(POLICIES, "one_token_each", OneTokenEach)
    requests = requests_for(answers)
    serve(as_the_lab, requests, "one_token_each", Limits(max_requests=8, max_batch_tokens=8, num_blocks=64))
    check(requests, answers, record_property)


def test_a_budget_of_one_token(as_the_lab, answers, record_property):
    """Both policies then make the very same steps, a token of a request each; the model takes those of one prompt."""
    limits = Limits(max_requests=1, max_batch_tokens=1, num_blocks=16)
    steps = {}
    for policy in ("static", "chunked"):
        executor = FakeExecutor(16)
        engine = Engine(executor, policy, limits, 16)
        for request in requests_for(answers):
            engine.add(request)
        while engine.has_work:
            engine.step()
        steps[policy] = executor.calls
    assert steps["static"] == steps["chunked"]
    assert all(num_tokens == 1 for [(_, _, num_tokens, _)] in steps["chunked"])
    requests = requests_for(answers[4:5])
    serve(as_the_lab, requests, "chunked", limits)
    check(requests, answers[4:5], record_property)


def test_a_static_batch_with_padding_rows(as_the_lab, answers, record_property):
    requests = requests_for(answers, [NUM_TOKENS, 3, 20, 1, 64, 40, 9, 33])
    serve(as_the_lab, requests, "static", Limits(max_requests=4, max_batch_tokens=64, num_blocks=64))
    check(requests, answers, record_property)


def test_preempted_and_recomputed(as_the_lab, answers, record_property):
    requests = requests_for(answers[:5])
    serve(as_the_lab, requests, "chunked", Limits(max_requests=8, max_batch_tokens=64, num_blocks=13))
    assert sum(request.num_preemptions for request in requests) > 0
    check(requests, answers[:5], record_property)


def test_an_answer_that_ends_ends_where_transformers_ends(loaded, hugging_face, record_property):
    prompt = loaded.tokenizer.encode_chat([{"role": "user", "content": "Say only the word yes."}])
    theirs = generate(hugging_face, prompt, sorted(loaded.eos_token_ids))
    request = Request("r", prompt, NUM_TOKENS)
    serve(loaded, [request], "chunked", Limits(num_blocks=16))
    assert len(theirs.token_ids) < NUM_TOKENS, "choose a prompt whose answer is short"
    assert min(theirs.gaps) > NEAR_TIE, "choose a prompt without a near tie"
    assert request.output_token_ids == theirs.token_ids
    assert request.finish_reason == "stop"
