"""The training step: its forward pass is the decoder's, its gradients are right, its counts follow from the shapes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from engine.lab.check import check_run
from engine.lab.probes import TrainingStep, training_flops, training_step
from engine.lab.records import ModelInfo, Run
from engine.lab.scenario import Scenario, ScenarioError
from engine.model.weights import build_decoder, num_decode_parameters, num_parameters
from engine.runtime import training
from engine.runtime.lab import LabRuntime, RunCancelled
from engine.runtime.training import PlainOps, forward, measure_training_step, parameters
from engine.settings import Settings
from tests.model_kit import Rig, hugging_face_pair, random_tensors, small_spec

TEXT = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46]
VARIANTS = {
    "plain": {},
    "tied": {"tied_head": True},
    "biases": {"has_qkv_bias": True, "has_o_bias": True, "has_mlp_bias": True},
    "qk_norm": {"has_qk_norm": True},
    "no rope in a layer": {"layers_without_rope": frozenset({1})},
    "multi-query": {"num_kv_heads": 1},
}


def plain_decoder(**changes):
    spec = small_spec(**changes)
    decoder = build_decoder(spec, random_tensors(spec), torch.float32, torch.device("cpu"), PlainOps())
    for tensor in parameters(decoder):
        tensor.requires_grad_(True)
    return decoder


def info_of(spec) -> ModelInfo:
    return ModelInfo(
        name="small",
        source="random",
        architecture=spec.architecture,
        num_layers=spec.num_layers,
        hidden_size=spec.hidden_size,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        vocab_size=spec.vocab_size,
        num_parameters=num_parameters(spec),
        weight_bytes=4 * num_decode_parameters(spec),
        tie_word_embeddings=spec.tied_head,
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_every_position_gets_the_logits_that_the_engine_gives_one_by_one(name: str) -> None:
    decoder = plain_decoder(**VARIANTS[name])
    logits = forward(decoder, torch.tensor(TEXT))
    with torch.no_grad():  # the rig's decoder works in place
        for end in range(1, len(TEXT) + 1):
            torch.testing.assert_close(logits[end - 1], Rig(decoder).last_logits(TEXT[:end], [1]), atol=2e-5, rtol=1e-4)


def test_every_parameter_gets_a_gradient_and_all_are_counted() -> None:
    for changes in VARIANTS.values():
        decoder = plain_decoder(**changes)
        F.cross_entropy(forward(decoder, torch.tensor(TEXT))[:-1], torch.tensor(TEXT[1:])).backward()
        assert all(tensor.grad is not None for tensor in parameters(decoder))
        assert sum(tensor.numel() for tensor in parameters(decoder)) == num_parameters(decoder.spec)


def test_loss_and_gradients_agree_with_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
        tie_word_embeddings=False,
    )
    theirs, _ = hugging_face_pair(config)
    from engine.model.spec import spec_from_config
    from engine.model.weights import MemoryTensors

    raw = {**config.to_dict(), "architectures": ["LlamaForCausalLM"]}
    tensors = MemoryTensors({name: tensor.clone() for name, tensor in theirs.state_dict().items()})
    ours = build_decoder(spec_from_config(raw), tensors, torch.float32, torch.device("cpu"), PlainOps())
    for tensor in parameters(ours):
        tensor.requires_grad_(True)
    text = torch.tensor(TEXT)
    expected = theirs(text[None], labels=text[None]).loss
    expected.backward()
    loss = F.cross_entropy(forward(ours, text)[:-1], text[1:])
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    layer = theirs.model.layers[0]
    torch.testing.assert_close(ours.embedding.grad, theirs.model.embed_tokens.weight.grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ours.layers[0].down.weight.grad, layer.mlp.down_proj.weight.grad, atol=1e-5, rtol=1e-4)
    rows = layer.self_attn.q_proj.weight.shape[0]
    torch.testing.assert_close(
        ours.layers[0].qkv.weight.grad[:rows], layer.self_attn.q_proj.weight.grad, atol=1e-5, rtol=1e-4
    )


def test_flops_equal_torchs_own_count_of_the_products() -> None:
    """Ours also counts norm weights as if multiplied, and attention causally; the products agree exactly."""
    from torch.utils.flop_counter import FlopCounterMode

    decoder = plain_decoder()
    spec, n = decoder.spec, len(TEXT)
    norms = sum(t.numel() for t in parameters(decoder) if t.dim() == 1)
    with FlopCounterMode(display=False) as counter:
        loss = F.cross_entropy(forward(decoder, torch.tensor(TEXT))[:-1], torch.tensor(TEXT[1:]))
        ahead = dict(counter.get_flop_counts()["Global"])
        loss.backward()
        both = dict(counter.get_flop_counts()["Global"])
    products = [op for op in both if "attention" not in str(op)]
    attention = 4 * spec.num_layers * spec.num_heads * spec.head_dim * n * (n + 1) // 2
    forward_flops, backward_flops = training_flops(info_of(spec), n)
    ours = forward_flops - attention - 2 * norms * n
    assert sum(ahead.get(op, 0) for op in products) == ours
    assert sum(both[op] for op in products) == 3 * ours
    assert backward_flops == 2 * forward_flops


def test_what_is_measured_is_whole_and_leaves_nothing_behind() -> None:
    decoder = plain_decoder(tied_head=True)
    info = info_of(decoder.spec)
    found = measure_training_step(decoder, info, "r", TEXT, range(4, len(TEXT)))
    assert found.num_tokens == len(TEXT) and found.num_passes >= 3
    assert found.step_low_ms <= found.step_ms <= found.step_high_ms
    assert found.gradient_bytes == 4 * info.num_parameters
    assert found.activation_bytes > 4 * len(TEXT) * decoder.spec.vocab_size, "the logits at least are kept"
    assert found.moved_bytes == 2 * info.weight_bytes + found.gradient_bytes + 2 * found.activation_bytes
    assert found.num_choices == len(TEXT) - 4
    assert all(tensor.grad is None for tensor in parameters(decoder))
    with torch.no_grad():
        logits = forward(decoder, torch.tensor(TEXT))
    expected = [int(logits[p - 1].argmax()) == TEXT[p] for p in range(4, len(TEXT))]
    assert found.num_same_choices == sum(expected)
    assert found.loss == pytest.approx(F.cross_entropy(logits[:-1], torch.tensor(TEXT[1:])).item(), rel=1e-5)


def test_activations_grow_with_the_text_and_weights_do_not() -> None:
    decoder = plain_decoder()
    info = info_of(decoder.spec)
    short, long = (measure_training_step(decoder, info, "r", TEXT * k, range(0)) for k in (1, 4))
    assert long.activation_bytes > 3 * short.activation_bytes
    assert (long.weight_bytes, long.gradient_bytes) == (short.weight_bytes, short.gradient_bytes)


# ------------------------------------------------------------------ through the lab
@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> LabRuntime:
    home: Path = tmp_path_factory.mktemp("home")
    return LabRuntime(Settings(home, f"sqlite:///{home}/lab.sqlite3", 8600, "tiny-random"))


def scenario(**changes) -> Scenario:
    data = {
        "model": "tiny-random",
        "probes": ["training_step"],
        "requests": [
            {"request_id": "write", "prompt": "Once", "max_tokens": 12, "ignore_eos": True},
            {"request_id": "read", "follows": "write", "max_tokens": 1},
        ],
    }
    return Scenario.parse(data | changes)


def test_a_run_carries_the_step_in_its_header_through_its_file(runtime: LabRuntime) -> None:
    run = runtime.run(runtime.prepare(scenario()), "run-0123456789ab").run
    check_run(run)
    found = training_step(Run.from_jsonl(run.to_jsonl()))
    assert isinstance(found, TrainingStep)
    assert (found.request_id, found.num_tokens, found.num_choices) == ("read", 16, 12)
    assert found.num_same_choices == 12, "read in parallel, the model chooses what it chose token by token"
    assert training_step(runtime.run(runtime.prepare(scenario(probes=[])), "run-0123456789ab").run) is None


def test_sampled_tokens_are_not_counted_as_choices(runtime: LabRuntime) -> None:
    requests = [spec.model_dump(exclude_defaults=True) for spec in scenario().requests]
    requests[0]["temperature"] = 1.0
    found = training_step(runtime.run(runtime.prepare(scenario(requests=requests)), "run-0123456789ab").run)
    assert found.num_choices == found.num_same_choices == 0


def test_a_run_that_is_stopped_in_its_probe_keeps_nothing(runtime: LabRuntime) -> None:
    steps = []
    with pytest.raises(RunCancelled):
        runtime.run(
            runtime.prepare(scenario()),
            "run-0123456789ab",
            lambda record, deltas: steps.append(record),
            lambda: len(steps) == 13,  # only after the last step
        )


def test_a_text_that_is_too_long_or_does_not_fit_is_refused_before_the_run(runtime: LabRuntime, monkeypatch) -> None:
    long = [{"prompt": "Once", "num_prompt_tokens": 1_025, "max_tokens": 1}]
    with pytest.raises(ScenarioError, match="would learn from 1025 tokens; allowed: up to 1024"):
        runtime.prepare(scenario(requests=long))
    monkeypatch.setattr(training.psutil, "virtual_memory", lambda: SimpleNamespace(available=1_000_000))
    with pytest.raises(ScenarioError, match="training_step needs"):
        runtime.prepare(scenario())


def test_plain_weights_stay_in_sight() -> None:
    spec = replace(small_spec(), num_layers=1)
    decoder = build_decoder(spec, random_tensors(spec), torch.float32, torch.device("cpu"), PlainOps())
    assert decoder.layers[0].qkv.weight.shape == (spec.qkv_size, spec.hidden_size)
