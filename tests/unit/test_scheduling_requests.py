"""A request's counters, its phase and the transitions of its status."""

import pytest

from engine.scheduling.requests import Request, Status
from tests.fakes import make_request


def test_counters_of_a_new_request():
    request = Request("a", [7, 8, 9], max_tokens=2)
    assert (request.num_prompt_tokens, request.num_tokens, request.num_output_tokens) == (3, 3, 0)
    assert (request.num_remaining_tokens, request.max_total_tokens) == (3, 5)
    assert request.status is Status.WAITING
    request.token_ids.append(4)
    assert request.output_token_ids == [4]
    assert request.prompt_token_ids == [7, 8, 9]


@pytest.mark.parametrize("path", [["RUNNING", "FINISHED"], ["RUNNING", "WAITING", "RUNNING"], ["FINISHED"]])
def test_allowed_transitions(path):
    request = make_request()
    for name in path:
        request.status = Status[name]
    assert request.status is Status[path[-1]]


@pytest.mark.parametrize(
    "path", [["WAITING"], ["RUNNING", "RUNNING"], ["FINISHED", "FINISHED"], ["FINISHED", "RUNNING"]]
)
def test_other_transitions_are_bugs(path):
    request = make_request()
    for name in path[:-1]:
        request.status = Status[name]
    with pytest.raises(AssertionError, match="cannot happen"):
        request.status = Status[path[-1]]


def test_phase_follows_the_counters():
    request = make_request(num_prompt_tokens=4)
    assert request.phase == "prefill"
    request.num_computed_tokens = 3
    assert request.phase == "prefill"
    request.num_computed_tokens = 4
    request.token_ids.append(1)
    assert request.phase == "decode"


def test_after_a_preemption_what_was_computed_before_is_recomputed():
    request = make_request(num_prompt_tokens=4)
    request.token_ids += [1, 2]
    request.num_computed_tokens = 5
    request.forget_computed()
    assert (request.num_computed_tokens, request.num_remaining_tokens) == (0, 6)
    assert request.phase == "recompute"
    request.num_computed_tokens = 4  # the prompt is back, the first output token is not
    assert request.phase == "recompute"
    request.num_computed_tokens = 5
    assert request.phase == "decode"


def test_preempted_in_the_prompt_only_the_computed_part_is_work_done_twice():
    request = make_request(num_prompt_tokens=8)
    request.num_computed_tokens = 3
    request.forget_computed()
    assert request.phase == "recompute"
    request.num_computed_tokens = 3
    assert request.phase == "prefill"
    request.num_computed_tokens = 2
    request.forget_computed()
    assert request.num_recompute_tokens == 3
