"""One training step over a text, measured: forward over all positions at once, loss, backward. Nothing is updated.

It shows beside the engine what the same model costs when the whole text is known: no position waits for another. The
weights are loaded once more, as plain tensors that take gradients, because the engine's own may be packed for speed and
its decoder works in place and without autograd. The forward pass here is written to be read and gives the decoder's
logits within rounding (a test compares them). Left out: optimizer, batches, gradient checkpointing, mixed precision.
Shapes: n tokens, C hidden size, Hq query heads, Hk KV heads, D head_dim, V vocabulary.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
import torch.nn.functional as F

from engine.lab.probes import TrainingStep, training_flops
from engine.lab.records import ModelInfo
from engine.lab.scenario import Scenario, ScenarioError
from engine.model.decoder import Decoder, Layer
from engine.model.load import LoadedModel, load_model
from engine.model.ops import TorchOps
from engine.scheduling.requests import Request

MAX_PASSES = 7
MIN_PASSES = 3
MAX_TRAINED_TOKENS = 1_024
ENOUGH_S = 4.0  # no further pass is begun after this
Seconds = tuple[float, float]  # of the forward and of the backward pass


@dataclass(frozen=True)
class Product:
    """x @ weight.T + bias, with both in sight."""

    weight: torch.Tensor  # [N, K]
    bias: torch.Tensor | None  # [N]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


class PlainOps(TorchOps):
    """Operations for a decoder whose weights stay plain tensors."""

    name = "plain"

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
        return Product(weight, bias)


# ---- the forward pass ----------------------------------------------------------------------------------------------


def forward(decoder: Decoder, token_ids: torch.Tensor) -> torch.Tensor:
    """token_ids [n] -> logits [n, V], of every position. Differentiable: nothing is done in place."""
    x = F.embedding(token_ids, decoder.embedding)  # [n, C]
    cos, sin = decoder.rotary.angles(torch.arange(token_ids.shape[0], device=token_ids.device))
    for layer in decoder.layers:
        x = x + _attention(decoder, layer, x, cos, sin)
        x = x + _mlp(decoder, layer, x)
    return decoder.head(_norm(decoder, x, decoder.final_norm))


def _attention(decoder: Decoder, layer: Layer, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    spec = decoder.spec
    heads = layer.qkv(_norm(decoder, x, layer.attention_norm)).unflatten(-1, (-1, spec.head_dim))
    q, k, v = heads.split((spec.num_heads, spec.num_kv_heads, spec.num_kv_heads), dim=1)  # [n, H, D]
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = _norm(decoder, q, layer.q_norm), _norm(decoder, k, layer.k_norm)
    if layer.uses_rope:
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
    q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))  # [1, H, n, D]
    seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return layer.o(seen[0].transpose(0, 1).flatten(1))


def _mlp(decoder: Decoder, layer: Layer, x: torch.Tensor) -> torch.Tensor:
    gate, up = layer.gate_up(_norm(decoder, x, layer.mlp_norm)).chunk(2, dim=-1)
    return layer.down(F.silu(gate) * up)


def _norm(decoder: Decoder, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, decoder.spec.rms_norm_eps)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """As ``engine.model.rope.rotate_``, but into a new tensor. x: [n, H, D]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((second, first), dim=-1) * sin


def parameters(decoder: Decoder) -> list[torch.Tensor]:
    """Every trained tensor of a decoder made with ``PlainOps``, a tied head once. Pure."""
    found = [decoder.embedding, decoder.final_norm]
    if decoder.head.weight is not decoder.embedding:
        found.append(decoder.head.weight)
    for layer in decoder.layers:
        products = (layer.qkv, layer.o, layer.gate_up, layer.down)
        tensors = [t for p in products for t in (p.weight, p.bias)]
        tensors += [layer.attention_norm, layer.mlp_norm, layer.q_norm, layer.k_norm]
        found += [t for t in tensors if t is not None]
    return found


# ---- the step, measured --------------------------------------------------------------------------------------------


def probe_training_step(
    scenario: Scenario,
    loaded: LoadedModel,
    requests: Sequence[Request],
    models_dir: Path,
    should_stop: Callable[[], bool] = lambda: False,
) -> TrainingStep | None:
    """Measure a training step on the prompt of a scenario's last request. None when stopped. Raises: ModelError.

    Where that request follows another, the text behind the other's prompt is what the model itself has written.
    """
    last, spec = requests[-1], scenario.requests[-1]
    leader = next((r for r in requests if r.request_id == spec.follows), None)
    chose = leader is not None and leader.temperature == 0
    first_written = leader.num_prompt_tokens if chose else last.num_prompt_tokens
    end_written = leader.num_tokens if chose else last.num_prompt_tokens
    decoder = trainable(scenario.model, scenario.dtype, models_dir, loaded.decoder.device)
    written = range(first_written, end_written)
    return measure_training_step(decoder, loaded.info, last.request_id, last.prompt_token_ids, written, should_stop)


def require_training_fits(loaded: LoadedModel, num_tokens: int) -> None:
    """Whether a step on so many tokens can be measured beside the engine. Raises: ScenarioError before anything runs.

    It needs the weights once more, a gradient for each, and for every token its logits, their softmax and gradient.
    """
    if num_tokens > MAX_TRAINED_TOKENS:
        raise ScenarioError(
            f"the probe training_step would learn from {num_tokens} tokens; allowed: up to {MAX_TRAINED_TOKENS}, "
            "so shorten the text or leave the probe out",
            "probes",
        )
    decoder, info = loaded.decoder, loaded.info
    needed = 2 * info.num_parameters * decoder.dtype.itemsize + 12 * num_tokens * info.vocab_size
    on_gpu = decoder.device.type == "cuda"
    free = torch.cuda.mem_get_info(decoder.device)[0] if on_gpu else psutil.virtual_memory().available
    if needed > free:
        raise ScenarioError(
            f"the probe training_step needs {needed / 1e9:.2f} GB of memory for {info.name} and {free / 1e9:.2f} GB "
            "are free; use a smaller model or leave the probe out",
            "probes",
        )


def trainable(model: str, dtype: str, models_dir: Path, device: torch.device) -> Decoder:
    """The model once more, with plain weights that take gradients. Raises: ModelError, also when it does not fit."""
    loaded = load_model(model, dtype, device=device.type, models_dir=models_dir, ops=PlainOps())
    for tensor in parameters(loaded.decoder):
        tensor.requires_grad_(True)
    return loaded.decoder


def measure_training_step(
    decoder: Decoder,
    info: ModelInfo,
    request_id: str,
    token_ids: Sequence[int],
    written: range,
    should_stop: Callable[[], bool] = lambda: False,
) -> TrainingStep | None:
    """Train on a text a few times and take the median. None when ``should_stop`` said so before enough was measured.

    ``written``: the positions of tokens that the model wrote itself, greedily. Effect: none that lasts.
    """
    text = torch.tensor(list(token_ids), dtype=torch.int64, device=decoder.device)
    logits, activation_bytes = _kept_bytes(decoder, text)  # also the warm-up
    choices = [position for position in written if position >= 1]
    same = sum(int(logits[position - 1].argmax()) == token_ids[position] for position in choices)
    loss = float(F.cross_entropy(logits[:-1].float(), text[1:]))
    del logits
    passes: list[Seconds] = []
    begin_s = time.perf_counter()
    while len(passes) < MAX_PASSES and (len(passes) < MIN_PASSES or time.perf_counter() - begin_s < ENOUGH_S):
        if should_stop():
            return None
        passes.append(_one_step(decoder, text))
    steps = sorted(1e3 * (f + b) for f, b in passes)
    forward_flops, backward_flops = training_flops(info, len(token_ids))
    return TrainingStep(
        request_id=request_id,
        num_tokens=len(token_ids),
        num_passes=len(passes),
        forward_ms=1e3 * statistics.median(f for f, _ in passes),
        backward_ms=1e3 * statistics.median(b for _, b in passes),
        step_ms=statistics.median(steps),
        step_low_ms=steps[0],
        step_high_ms=steps[-1],
        loss=loss,
        num_choices=len(choices),
        num_same_choices=same,
        forward_flops=forward_flops,
        backward_flops=backward_flops,
        weight_bytes=info.weight_bytes,
        gradient_bytes=sum(t.numel() * t.element_size() for t in parameters(decoder)),
        activation_bytes=activation_bytes,
    )


def _one_step(decoder: Decoder, text: torch.Tensor) -> Seconds:
    """Forward, loss and backward once. Effect: gradients are made and dropped."""
    began_s = _now_s(decoder)
    loss = F.cross_entropy(forward(decoder, text)[:-1].float(), text[1:])
    halfway_s = _now_s(decoder)
    loss.backward()
    ended_s = _now_s(decoder)
    for tensor in parameters(decoder):
        tensor.grad = None
    return halfway_s - began_s, ended_s - halfway_s


def _kept_bytes(decoder: Decoder, text: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Logits [n, V], and the bytes that the forward pass keeps for the backward pass, weights aside.

    Counted on the tensors that autograd saves, each piece of memory once.
    """
    weights = {t.untyped_storage().data_ptr() for t in parameters(decoder)}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = forward(decoder, text)
        loss = F.cross_entropy(logits[:-1].float(), text[1:])
    kept_bytes = sum(kept.values())
    loss.backward()
    for tensor in parameters(decoder):
        tensor.grad = None
    return logits.detach(), kept_bytes


def _now_s(decoder: Decoder) -> float:
    if decoder.device.type == "cuda":
        torch.cuda.synchronize(decoder.device)
    return time.perf_counter()
