"""The catalogue: every number has its source, rates obey the arithmetic of their chips, and shapes their parameters."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from engine.lab.catalogue import Device, Fact, device, device_at_hand, devices, model, models
from engine.lab.records import DeviceInfo
from engine.lab.roof import Ceilings, Rate
from engine.lab.work import is_tied, kv_bytes_per_token, layer_parameters, stored_bytes_per_element

WANTED = [
    "rtx-3090",
    "rtx-4060",
    "rtx-4090",
    "rtx-5060-ti",
    "rtx-5090",
    "t4",
    "l4",
    "a10",
    "a100-40",
    "a100-80",
    "h100",
    "h200",
    "b200",
    "mi300x",
    "apple-m1",
    "apple-m2",
    "apple-m3",
    "apple-m4",
    "apple-m4-pro",
    "apple-m4-max",
]
MODELS = [
    "llama-2-7b",
    "llama-3-8b",
    "llama-3-70b",
    "qwen2.5-7b",
    "qwen3-0.6b",
    "qwen3-8b",
    "smollm2-135m",
    "smollm2-360m",
    "mistral-7b",
    "smollm3-3b",
]


def facts(entry: Device) -> dict[str, Fact]:
    single = {name: getattr(entry, name) for name in ("memory_gb", "bandwidth_gbps", "achieved_matmul_tflops")}
    rates = {f"vector.{k}": v for k, v in entry.vector.items()} | {f"matrix.{k}": v for k, v in entry.matrix.items()}
    return {name: fact for name, fact in (single | rates).items() if fact is not None}


# ------------------------------------------------------------------------------------------------- devices
def test_every_wanted_device_is_there_once() -> None:
    ids = [entry.id for entry in devices()]
    assert len(set(ids)) == len(ids)
    assert set(WANTED) <= set(ids)


@pytest.mark.parametrize("entry", devices(), ids=lambda entry: entry.id)
def test_every_device_has_a_bandwidth_and_every_number_a_source(entry: Device) -> None:
    assert entry.bandwidth_gbps is not None
    for name, fact in facts(entry).items():
        assert len(fact.source) > 5, name
        if fact.status == "derived":
            assert any(word in fact.source for word in ("half", "twice", "times", "eighth", "quarter", "x")), name


@pytest.mark.parametrize("entry", [e for e in devices() if e.kind == "gpu"], ids=lambda entry: entry.id)
def test_rates_of_a_gpu_are_dense_and_in_order(entry: Device) -> None:
    """A sparse figure entered by mistake would break the ratio of two between neighbouring widths."""
    half = entry.rate("float16")
    assert half is not None and entry.rate("float32", "vector").value < half.value
    for narrow in ("fp8", "int8"):
        if entry.rate(narrow):
            ratio = entry.rate(narrow).value / half.value
            assert ratio == pytest.approx(2, rel=0.03) or (
                entry.id.startswith("rtx-") and ratio == pytest.approx(4, rel=0.03)
            )
    if entry.achieved_matmul_tflops and entry.id != "rtx-5090":  # whose boost clock is above the specified one
        assert 0.4 < entry.achieved_matmul_tflops.value / half.value < 0.95


@pytest.mark.parametrize(
    ("device_id", "dtype", "unit", "ridge"),
    [
        ("rtx-5060-ti", "float32", "vector", 53),  # C4: the unit decides
        ("rtx-5060-ti", "bfloat16", "matrix", 106),
        ("t4", "float16", "matrix", 203),
        ("l4", "bfloat16", "matrix", 403),
        ("rtx-4090", "bfloat16", "matrix", 164),
        ("a100-80", "bfloat16", "matrix", 153),
        ("h100", "bfloat16", "matrix", 295),
        ("h200", "bfloat16", "matrix", 206),
        ("b200", "bfloat16", "matrix", 281),
        ("mi300x", "bfloat16", "matrix", 247),
    ],
)
def test_ridge_points(device_id: str, dtype: str, unit: str, ridge: int) -> None:
    assert device(device_id).ridge(dtype, unit) == pytest.approx(ridge, abs=0.6)


def test_what_nobody_states_is_none_not_a_guess() -> None:
    assert device("t4").rate("bfloat16") is None
    assert device("apple-m2").rate("float16") is None
    assert device("apple-m2").ridge("float16") is None
    assert device("apple-m4").memory_gb is None
    with pytest.raises(KeyError):
        device("abacus")


def test_a_number_without_a_source_is_not_accepted() -> None:
    with pytest.raises(ValidationError):
        Fact(value=1, status="spec", source="")
    with pytest.raises(ValidationError):
        Fact(value=1, status="rumour", source="somebody")


def test_the_device_at_hand_stands_beside_them() -> None:
    info = DeviceInfo(name="bench", type="cpu", threads=2, memory_bytes=8_000_000_000)
    bare = device_at_hand(info, None)
    assert bare.bandwidth_gbps is None and bare.memory_gb.value == 8 and bare.ridge("float32") is None
    rate = Rate(value=20, unit="GB/s", low=19, high=21, median=20, count=9, noisy=True, how="test")
    roof = Ceilings(
        device="bench",
        device_type="cpu",
        threads=2,
        torch_version="0",
        measured_utc="2026-01-01T00:00:00+00:00",
        seconds=1,
        read=rate,
        matmul={"float32": rate.model_copy(update={"value": 0.2, "noisy": False})},
    )
    here = device_at_hand(info, roof)
    assert here.ridge("float32") == pytest.approx(10)
    assert {fact.status for fact in facts(here).values()} == {"measured"}
    assert here.bandwidth_gbps.note == "noisy"


# ------------------------------------------------------------------------------------------------- models
def test_every_wanted_model_is_there_once_smallest_first() -> None:
    assert set(MODELS) <= {entry.id for entry in models()}
    sizes = [entry.num_parameters for entry in models()]
    assert sizes == sorted(sizes) and len({entry.id for entry in models()}) == len(sizes)


@pytest.mark.parametrize("entry", models(), ids=lambda entry: entry.id)
def test_parameters_follow_from_the_shape(entry) -> None:
    width, q, kv = entry.hidden_size, entry.num_heads * entry.head_dim, entry.num_kv_heads * entry.head_dim
    attention = 2 * width * q + 2 * width * kv + (q + 2 * kv if entry.attention_bias else 0)
    norms = 2 * width + (2 * entry.head_dim if entry.qk_norm else 0)
    layer = attention + 3 * width * entry.intermediate_size + norms
    tables = (1 if entry.tie_word_embeddings else 2) * entry.vocab_size * width
    assert entry.num_parameters == entry.num_layers * layer + width + tables


@pytest.mark.parametrize("entry", models(), ids=lambda entry: entry.id)
def test_a_catalogue_model_is_a_model_the_formulas_take(entry) -> None:
    info = entry.info("bfloat16")
    assert is_tied(info) is entry.tie_word_embeddings
    assert stored_bytes_per_element(info) == 2
    assert is_tied(info.model_copy(update={"tie_word_embeddings": None})) is entry.tie_word_embeddings  # inferred
    assert 0 < layer_parameters(info) < entry.num_parameters


@pytest.mark.parametrize(
    ("model_id", "kilobytes"),
    [("llama-2-7b", 512), ("llama-3-8b", 128), ("llama-3-70b", 320), ("qwen2.5-7b", 56), ("smollm2-135m", 22.5)],
)
def test_kv_bytes_per_token(model_id: str, kilobytes: float) -> None:
    assert kv_bytes_per_token(model(model_id).info(), 2) == kilobytes * 1024


def test_unknown_names_are_errors() -> None:
    with pytest.raises(KeyError):
        model("gpt-9")
    with pytest.raises(ValueError, match="dtype is 'fp7'"):
        model("qwen3-8b").info("fp7")


def test_the_shapes_agree_with_transformers_where_it_has_them_as_defaults() -> None:
    transformers = pytest.importorskip("transformers")
    known = {
        "llama-2-7b": transformers.LlamaConfig(),
        "mistral-7b": transformers.MistralConfig(),
        "smollm3-3b": transformers.SmolLM3Config(),
    }
    for model_id, config in known.items():
        entry = model(model_id)
        assert entry.num_layers == config.num_hidden_layers
        assert entry.hidden_size == config.hidden_size
        assert entry.intermediate_size == config.intermediate_size
        assert (entry.num_heads, entry.num_kv_heads) == (config.num_attention_heads, config.num_key_value_heads)
        assert entry.vocab_size == config.vocab_size
        assert entry.tie_word_embeddings == config.tie_word_embeddings


def test_importing_the_catalogue_leaves_torch_unloaded() -> None:
    code = "import sys, engine.lab.catalogue as c; c.devices(); c.models(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
