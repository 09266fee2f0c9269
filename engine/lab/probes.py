"""Probes: what else was measured beside a Run, on the same model, device and text, and written into its header.

A training step is no inference: it has no KV cache, no schedule and no request, so it cannot be a step record. It is
measured right after the last request of a Run whose scenario asks for it, on that request's prompt. How far
a quantized model's logits are from the unquantized one's needs a second model, so it is a probe as well. This module
holds shapes and arithmetic; ``engine.runtime.training`` and ``engine.runtime.accuracy`` measure. It imports no torch.

FLOPs follow the usual counting (Kaplan et al. 2020, and the scaling book): the backward pass does each matrix product
twice, once for the gradient of the input and once for that of the weights, so a step costs three forward passes.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from engine.lab.records import ModelInfo, Run
from engine.lab.work import attention_flops, head_parameters, layer_parameters


class TrainingStep(BaseModel):
    """One forward and one backward pass over a text of ``num_tokens``, median of ``num_passes``; nothing is updated.

    ``num_choices`` positions come before a token that the engine wrote itself; at ``num_same_choices`` of them the
    parallel pass ranks that same token first. Left out: the optimizer and its state, and any batch beyond one text.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    request_id: str
    num_tokens: int
    num_passes: int
    forward_ms: float
    backward_ms: float
    step_ms: float
    step_low_ms: float
    step_high_ms: float
    loss: float  # mean negative log-likelihood of the next token, in nats
    num_choices: int
    num_same_choices: int
    forward_flops: int
    backward_flops: int
    weight_bytes: int  # read in the forward pass, and again in the backward pass
    gradient_bytes: int  # written by the backward pass
    activation_bytes: int  # kept by the forward pass for the backward pass: written once, read once

    @property
    def flops(self) -> int:
        return self.forward_flops + self.backward_flops

    @property
    def moved_bytes(self) -> int:
        """Bytes that have to move at least: weights twice, gradients once, what is kept once each way."""
        return 2 * self.weight_bytes + self.gradient_bytes + 2 * self.activation_bytes


def training_step(run: Run) -> TrainingStep | None:
    """The training step measured with a Run, None if there is none. Pure. Raises: ValueError for one that is broken."""
    found = (run.header.model_extra or {}).get("probes")
    record = found.get("training_step") if isinstance(found, dict) else None
    return None if record is None else TrainingStep.model_validate(record)


class QuantizationError(BaseModel):
    """What quantization changed, on one request's text: logits of both forms at each of ``num_tokens`` places.

    Both forms read the text that the unquantized one writes greedily, so every place compares like with like.
    ``max_errors``: the largest logit error of the whole vocabulary, by place. KL is in nats. The first place where the
    quantized form would have chosen another token is where its own text leaves the other's; None: nowhere.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    request_id: str
    num_tokens: int
    max_logit_error: float
    mean_logit_error: float
    max_kl: float
    mean_kl: float
    num_same_choices: int
    first_divergent_token: int | None
    gap_there: float | None  # by how much the unquantized form preferred its own token there
    max_errors: tuple[float, ...]
    reference_weight_bytes: int
    weight_bytes: int
    reference_kv_bytes_per_element: float
    kv_bytes_per_element: float


def quantization_error(run: Run) -> QuantizationError | None:
    """What was measured with a Run, None if nothing was. Pure. Raises: ValueError for one that is broken."""
    found = (run.header.model_extra or {}).get("probes")
    record = found.get("quantization") if isinstance(found, dict) else None
    return None if record is None else QuantizationError.model_validate(record)


def training_flops(model: ModelInfo, num_tokens: int) -> tuple[int, int]:
    """FLOPs of the forward and of the backward pass over a text. Pure.

    Forward as in a prefill, but the LM head works at every position, because every position has a next token to learn.
    """
    pairs = num_tokens * (num_tokens + 1) // 2
    forward = 2 * (layer_parameters(model) + head_parameters(model)) * num_tokens + attention_flops(model, pairs)
    return forward, 2 * forward
