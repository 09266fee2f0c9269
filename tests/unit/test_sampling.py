"""Sampling: the right distribution, exact truncation, noise that belongs to the request, no NaN at the extremes."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from engine.runtime.sampling import SamplingParams, sample, seed_of

PROBABILITIES = [0.40, 0.30, 0.15, 0.10, 0.05]
LOGITS = torch.tensor([math.log(p) for p in PROBABILITIES])


def draws(number: int, **params) -> list[int]:
    """Consecutive output tokens of one request that always sees the same logits."""
    request = SamplingParams(**{"temperature": 1.0, "seed": 7, **params})
    return [sample(LOGITS[None], [request], [index])[0] for index in range(number)]


def chi_square(counts: list[int], probabilities: list[float]) -> float:
    total = sum(counts)
    return sum((c - total * p) ** 2 / (total * p) for c, p in zip(counts, probabilities, strict=True))


@pytest.mark.parametrize(("temperature", "seed"), [(1.0, 0), (0.5, 1), (2.0, 2)])
def test_draws_follow_the_distribution(temperature, seed):
    weights = [p ** (1 / temperature) for p in PROBABILITIES]
    expected = [w / sum(weights) for w in weights]
    tokens = draws(8_000, temperature=temperature, seed=seed)
    counts = [tokens.count(token) for token in range(5)]
    assert chi_square(counts, expected) < 18.5  # 4 degrees of freedom, p = 0.001


def test_top_k_keeps_exactly_k_and_renormalises():
    tokens = draws(4_000, top_k=2)
    assert set(tokens) == {0, 1}
    assert chi_square([tokens.count(0), tokens.count(1)], [4 / 7, 3 / 7]) < 10.9


def test_top_k_with_ties_still_keeps_k():
    logits = torch.zeros(6)
    request = SamplingParams(temperature=1.0, top_k=3, seed=1)
    assert len({sample(logits[None], [request], [index])[0] for index in range(200)}) == 3


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.39, {0}), (0.41, {0, 1}), (0.71, {0, 1, 2}), (0.96, {0, 1, 2, 3, 4}), (1.0, {0, 1, 2, 3, 4})]
)
def test_top_p_keeps_the_smallest_set(top_p, kept):
    assert set(draws(600, top_p=top_p)) == kept


def test_top_p_applies_to_what_top_k_left():
    # Of the two likeliest the first holds 4/7 = 0.571; over the whole vocabulary 0.5 would need both.
    assert set(draws(300, top_k=2, top_p=0.5)) == {0}


def test_greedy_takes_the_likeliest():
    logits = torch.tensor([[0.1, 3.0, -1.0], [5.0, 4.9, 5.1]])
    assert sample(logits, [SamplingParams(), SamplingParams()], [0, 0]) == [1, 2]
    assert set(draws(50, top_k=1)) == {0}


def test_extremes_never_fail():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 300, generator=generator) * 20
    best = int(logits.argmax())
    for temperature, top_p, top_k in itertools.product(
        (0.0, 1e-6, 1e-4, 1.0, 100.0), (1e-6, 0.5, 1.0), (-1, 0, 1, 2, 300, 301)
    ):
        request = SamplingParams(temperature, top_p, top_k, seed=3)
        for index in range(5):
            (token,) = sample(logits, [request], [index])
            assert 0 <= token < 300
            if temperature < 1e-3 or top_p < 1e-3 or top_k == 1:
                assert token == best


def test_huge_and_infinite_logits_do_not_fail():
    logits = torch.tensor([[1e30, -1e30, float("-inf"), 0.0]])
    for temperature in (1e-4, 1.0, 100.0):
        assert sample(logits, [SamplingParams(temperature, 0.9, 3, seed=1)], [0]) == [0]


def test_the_same_seed_gives_the_same_tokens_whoever_else_is_in_the_batch():
    generator = torch.Generator().manual_seed(1)
    own = torch.randn(64, generator=generator)
    request = SamplingParams(temperature=1.5, seed=11)
    alone = [sample(own[None], [request], [index])[0] for index in range(20)]
    others = torch.randn(3, 64, generator=generator)
    for row in range(4):
        rows = torch.cat([others[:row], own[None], others[row:]])
        params = [SamplingParams(temperature=2.0, top_p=0.9, seed=100 + i) for i in range(4)]
        params[row] = request
        assert [sample(rows, params, [index] * 4)[row] for index in range(20)] == alone


def test_steps_and_seeds_have_different_noise():
    flat = torch.zeros(1, 10_000)
    one = [sample(flat, [SamplingParams(1.0, seed=5)], [index])[0] for index in range(50)]
    two = [sample(flat, [SamplingParams(1.0, seed=6)], [index])[0] for index in range(50)]
    assert len(set(one)) > 45
    assert sum(a == b for a, b in zip(one, two, strict=True)) < 3
    assert one[1:] != two[:-1]  # the noise of (seed, n + 1) is not that of (seed + 1, n)


def test_seeds_of_requests_without_one():
    assert seed_of(0, "a") == seed_of(0, "a")
    assert len({seed_of(run, name) for run in (0, 1, 2) for name in ("a", "b", "1a")}) == 9
    assert 0 <= seed_of(2**63 - 1, "r") < 2**63


def test_no_rows_no_tokens():
    assert sample(torch.empty(0, 5), [], []) == []
