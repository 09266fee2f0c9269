"""From logits to a token: greedy, temperature, top-k, top-p, with noise that belongs to the request alone.

The noise of a request's n-th output token is a function of its seed and n. So it does not depend on who else is in the
batch, survives a preemption, differs from step to step, and needs no state to be kept or forgotten.
Sampling itself is one expression: argmax(log p + Gumbel noise) draws from p. Order as in most engines: temperature,
then the k likeliest, then of these the smallest set that holds top_p of the probability.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

GREEDY_BELOW = 1e-5  # a temperature so low that only exact ties could differ from greedy


@dataclass(frozen=True)
class SamplingParams:
    """How one request samples. ``temperature`` 0 is greedy; ``top_k`` below 1 and ``top_p`` 1 keep every token."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int = 0

    @property
    def is_greedy(self) -> bool:
        return is_greedy(self.temperature, self.top_k)

    @property
    def narrows(self) -> bool:
        """Whether some tokens are ruled out before one is drawn."""
        return self.top_k >= 1 or self.top_p < 1.0


def is_greedy(temperature: float, top_k: int) -> bool:
    """Whether no noise can change the choice. Pure."""
    return temperature < GREEDY_BELOW or top_k == 1


def sample(logits: torch.Tensor, params: Sequence[SamplingParams], output_indices: Sequence[int]) -> list[int]:
    """logits: [R, V] float32; row r is output token ``output_indices[r]`` of its request -> R token ids. Pure."""
    assert logits.shape[0] == len(params) == len(output_indices), "one row, one request, one output index"
    if logits.shape[0] == 0:
        return []
    token_ids = logits.argmax(dim=-1).tolist()
    for row, (request, index) in enumerate(zip(params, output_indices, strict=True)):
        if not request.is_greedy:
            token_ids[row] = _draw(logits[row], request, index)
    return token_ids


def seed_of(run_seed: int, request_id: str) -> int:
    """The seed of a request that brings none: fixed by the run's seed and the request's id. Pure."""
    return _digest(f"{run_seed}/{request_id}")


def noise_seed(request_seed: int, output_index: int) -> int:
    """The seed of the noise for a request's n-th output token. Pure."""
    return _digest(f"{request_seed}#{output_index}")


def scores_of(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """logits [V] -> log-probabilities up to a constant; -inf for what top_k and top_p rule out. Pure."""
    # Subtracting the maximum first keeps a tiny temperature from turning large logits into inf - inf.
    scores = (logits - logits.max()) / params.temperature
    return _keep_top_p(_keep_top_k(scores, params.top_k), params.top_p)


def _draw(logits: torch.Tensor, params: SamplingParams, output_index: int) -> int:
    """One token from logits [V]."""
    scores = scores_of(logits, params)
    return int((scores + _gumbel(scores, noise_seed(params.seed, output_index))).argmax())


def _keep_top_k(scores: torch.Tensor, top_k: int) -> torch.Tensor:
    """All but exactly the k likeliest become -inf; k below 1 or not below V keeps all."""
    if not 1 <= top_k < scores.shape[0]:
        return scores
    kept = torch.full_like(scores, float("-inf"))
    values, indices = torch.topk(scores, top_k)
    return kept.scatter_(0, indices, values)


def _keep_top_p(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """All beyond the smallest set of likeliest tokens with at least ``top_p`` become -inf; the first always stays."""
    if top_p >= 1.0:
        return scores
    ordered, indices = torch.sort(scores, descending=True)
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities  # what the likelier tokens hold together
    before[0] = 0.0
    kept = torch.where(before < top_p, ordered, float("-inf"))
    return torch.empty_like(scores).scatter_(0, indices, kept)


def _gumbel(like: torch.Tensor, seed: int) -> torch.Tensor:
    """Noise [V] that makes argmax a draw: -log(E) with E exponential is Gumbel distributed."""
    generator = torch.Generator(device=like.device).manual_seed(seed)
    exponential = torch.empty_like(like).exponential_(generator=generator)
    return -exponential.clamp_(min=torch.finfo(like.dtype).tiny).log_()


def _digest(text: str) -> int:
    """63 well-mixed bits of a text: neighbouring seeds and indices must not give related noise."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
