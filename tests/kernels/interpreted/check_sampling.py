"""Sampling against its twin, and against the distribution it claims."""

import torch

import kernels.triton as kernels
from kernels import twins


def assert_sampling(kernels, num_columns=5000):
    noise = torch.Generator().manual_seed(num_columns)
    logits = torch.randn((6, num_columns + 9), generator=noise)[:, :num_columns] * 3
    temperatures = torch.tensor([0.0, 1.0, 0.5, 2.0, 1.0, 1e-6])
    seeds = torch.tensor([1, 2, 2**40 + 5, 2**62, 3, 4])
    assert torch.equal(kernels.sample(logits, temperatures, seeds), twins.sample(logits, temperatures, seeds))


def test_tokens_equal_the_twins():
    for num_columns in (1, 7, 2048, 2049, 5000):
        assert_sampling(kernels, num_columns)


def test_greedy_takes_the_first_of_equals_even_across_pieces():
    logits = torch.zeros(2, 5000)
    logits[0, [100, 4000]] = 5.0
    logits[1, [3000, 4999]] = 5.0
    assert kernels.sample(logits, torch.zeros(2), torch.zeros(2, dtype=torch.int64)).tolist() == [100, 3000]


def test_columns_at_minus_infinity_are_never_drawn():
    logits = torch.full((8, 3000), float("-inf"))
    logits[:, 2500] = -3.0
    drawn = kernels.sample(logits, torch.full((8,), 5.0), torch.arange(8))
    assert (drawn == 2500).all()


def test_a_row_does_not_depend_on_its_neighbours():
    logits, seeds = torch.randn(5, 300), torch.tensor([9, 8, 7, 6, 5])
    together = kernels.sample(logits, torch.ones(5), seeds)
    assert kernels.sample(logits[3:4], torch.ones(1), seeds[3:4])[0] == together[3]
