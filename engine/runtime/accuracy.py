"""What quantization costs: two models over the same tokens, logit by logit, and where their greedy texts part.

The reference writes its own greedy answer to each prompt; the other is given the same tokens, one per step, through a
cache of its own. So every position compares like with like, and the first one where the other would have chosen
differently is exactly where its own greedy text would have left the reference's. Greedy texts part early even for tiny
errors (one near tie is enough), so read the divergence of the distributions first and the text second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

from engine.lab.probes import QuantizationError
from engine.lab.scenario import Limits, ScenarioError
from engine.model.load import LoadedModel
from engine.runtime.executor import TorchExecutor
from engine.scheduling.decision import Chunk
from engine.scheduling.requests import Request

MAX_PROMPTS = 64
MAX_PROBED_TOKENS = 64
DEFAULT_PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Q: Why does a language model keep a KV cache?\nA:",
    "你好，请问什么是",
)


@dataclass(frozen=True)
class PromptAccuracy:
    """One prompt. Logit errors are over all tokens of the vocabulary; KL(reference, other) is in nats."""

    num_prompt_tokens: int
    num_tokens: int
    max_logit_error: float
    mean_logit_error: float
    max_kl: float
    mean_kl: float
    num_same_choices: int
    first_divergent_token: int | None  # 0 is the first output token; None: the greedy texts are the same
    gap_there: float | None  # by how much the reference preferred its own token: small means a near tie
    max_errors: tuple[float, ...]  # the largest logit error at each token


@dataclass(frozen=True)
class AccuracyReport:
    """All prompts together, and each of them. ``*_bytes`` are what a decode step reads of the weights."""

    max_logit_error: float
    mean_logit_error: float
    max_kl: float
    mean_kl: float
    same_choices: float  # share of positions where both prefer the same token
    first_divergent_token: int | None  # the earliest of all prompts
    reference_weight_bytes: int
    weight_bytes: int
    reference_kv_bytes_per_element: float
    kv_bytes_per_element: float
    prompts: tuple[PromptAccuracy, ...]


def compare_quantized(
    reference: LoadedModel,
    other: LoadedModel,
    prompts: Sequence[Sequence[int]],
    num_tokens: int = 32,
    kv_dtype: str | None = None,
    block_size: int = 16,
    on_token: Callable[[int], None] = lambda done: None,
) -> AccuracyReport:
    """Both models over each prompt (token ids) and the reference's next ``num_tokens``; ``kv_dtype`` is the other's.

    Pure. Raises: ScenarioError when a prompt does not fit or the KV dtype is unknown.
    """
    _require_fit(reference, other, prompts, num_tokens)
    requests = [Request(f"p{index}", list(ids), num_tokens) for index, ids in enumerate(prompts)]
    num_blocks = 0
    for request in requests:
        size = -(-request.max_total_tokens // block_size)
        request.block_ids = list(range(num_blocks, num_blocks + size))
        num_blocks += size
    limits = Limits(max_requests=len(requests), num_blocks=num_blocks)
    executors = [TorchExecutor(reference, limits, block_size), TorchExecutor(other, limits, block_size, kv_dtype)]
    rows: list[list[_Row]] = [[] for _ in requests]
    for done in range(num_tokens):
        starts = [0 if done == 0 else request.num_tokens - 1 for request in requests]
        chunks = [
            Chunk(request, start, request.num_tokens - start, "decode" if done else "prefill", request.block_ids, True)
            for request, start in zip(requests, starts, strict=True)
        ]
        expected, got = (executor.forward(executor.prepare(chunks)) for executor in executors)
        for request, found, mine, theirs in zip(requests, rows, got, expected, strict=True):
            found.append(_compare(theirs, mine))
            request.token_ids.append(int(theirs.argmax()))
        on_token(done + 1)
    return _report(reference, other, executors, requests, rows)


@dataclass(frozen=True)
class _Row:
    """One position of one prompt."""

    max_error: float
    mean_error: float
    kl: float
    is_same: bool
    gap: float  # between the reference's best two logits


def _compare(expected: torch.Tensor, got: torch.Tensor) -> _Row:
    """expected, got: [V] logits. Pure."""
    error = (got - expected).abs()
    log_p, log_q = expected.double().log_softmax(-1), got.double().log_softmax(-1)
    kl = float((log_p.exp() * (log_p - log_q)).sum())
    best, second = expected.topk(2).values.tolist()
    is_same = bool(expected.argmax() == got.argmax())
    return _Row(float(error.max()), float(error.mean()), max(kl, 0.0), is_same, best - second)


def _report(
    reference: LoadedModel,
    other: LoadedModel,
    executors: Sequence[TorchExecutor],
    requests: Sequence[Request],
    rows: Sequence[Sequence[_Row]],
) -> AccuracyReport:
    prompts = tuple(_prompt(request, found) for request, found in zip(requests, rows, strict=True))
    every = [row for found in rows for row in found]
    divergent = [p.first_divergent_token for p in prompts if p.first_divergent_token is not None]
    return AccuracyReport(
        max_logit_error=max(row.max_error for row in every),
        mean_logit_error=_mean([row.mean_error for row in every]),
        max_kl=max(row.kl for row in every),
        mean_kl=_mean([row.kl for row in every]),
        same_choices=_mean([row.is_same for row in every]),
        first_divergent_token=min(divergent, default=None),
        reference_weight_bytes=reference.info.weight_bytes,
        weight_bytes=other.info.weight_bytes,
        reference_kv_bytes_per_element=executors[0].kv_bytes_per_element,
        kv_bytes_per_element=executors[1].kv_bytes_per_element,
        prompts=prompts,
    )


def _prompt(request: Request, rows: Sequence[_Row]) -> PromptAccuracy:
    first = next((index for index, row in enumerate(rows) if not row.is_same), None)
    return PromptAccuracy(
        num_prompt_tokens=request.num_prompt_tokens,
        num_tokens=len(rows),
        max_logit_error=max(row.max_error for row in rows),
        mean_logit_error=_mean([row.mean_error for row in rows]),
        max_kl=max(row.kl for row in rows),
        mean_kl=_mean([row.kl for row in rows]),
        num_same_choices=sum(row.is_same for row in rows),
        first_divergent_token=first,
        gap_there=None if first is None else rows[first].gap,
        max_errors=tuple(row.max_error for row in rows),
    )


def probe_quantization(
    reference: LoadedModel,
    quantized: LoadedModel,
    request: Request,
    kv_dtype: str | None,
    should_stop: Callable[[], bool] = lambda: False,
) -> QuantizationError | None:
    """Compare both forms on a request's prompt and as many tokens as it got. None when stopped.

    Raises: ScenarioError.
    """

    class _Stopped(Exception):
        pass

    def look(done: int) -> None:
        if should_stop():
            raise _Stopped

    prompt = request.token_ids[: request.num_prompt_tokens]
    num_tokens = min(request.num_output_tokens, MAX_PROBED_TOKENS)
    try:
        report = compare_quantized(reference, quantized, [prompt], num_tokens, kv_dtype, on_token=look)
    except _Stopped:
        return None
    found = asdict(report.prompts[0]) | {
        name: getattr(report, name)
        for name in ("reference_weight_bytes", "weight_bytes", "reference_kv_bytes_per_element", "kv_bytes_per_element")
    }
    return QuantizationError(request_id=request.request_id, **found)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _require_fit(reference: LoadedModel, other: LoadedModel, prompts: Sequence[Sequence[int]], num_tokens: int) -> None:
    if reference.info.vocab_size != other.info.vocab_size:
        raise ScenarioError(
            f"{reference.info.name} has {reference.info.vocab_size} tokens and {other.info.name} "
            f"{other.info.vocab_size}; compare two forms of one model"
        )
    if not 1 <= len(prompts) <= MAX_PROMPTS or not all(prompts) or num_tokens < 1:
        raise ScenarioError(
            f"there are {len(prompts)} prompts and {num_tokens} tokens to compare; allowed: 1 to {MAX_PROMPTS} "
            "prompts, none of them empty, and 1 token or more"
        )
    positions = min(reference.max_positions, other.max_positions)
    longest = max(map(len, prompts)) + num_tokens
    if longest > positions:
        raise ScenarioError(f"a prompt and its {num_tokens} tokens take {longest} positions; the model has {positions}")
