"""Tiny GGUF files as llama.cpp's converter would write them, with the tensors in any type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

from engine.model.load_gguf import _LAYER_NAMES, _TOP_NAMES
from engine.model.spec import ModelSpec
from engine.model.weights import TensorSource

Encode = Callable[[str, np.ndarray], tuple[np.ndarray, gguf.GGMLQuantizationType]]  # (name, values) -> (bytes, type)


def interleaved(values: np.ndarray, num_heads: int) -> np.ndarray:
    """What llama.cpp's converter does to Q and K of Llama, written row by row."""
    head_dim = values.shape[0] // num_heads
    out = np.empty_like(values)
    for head in range(num_heads):
        for pair in range(head_dim // 2):
            for half in range(2):
                out[head * head_dim + 2 * pair + half] = values[head * head_dim + half * head_dim // 2 + pair]
    return out


def write_gguf(
    path: Path,
    spec: ModelSpec,
    source: TensorSource,
    *,
    drop: tuple[str, ...] = (),
    extra: dict[str, np.ndarray] | None = None,
    keys: dict[str, str | float] | None = None,
    encode: Encode | None = None,
) -> Path:
    """A GGUF file of a spec's tensors. ``encode`` stores the matrices; ``keys`` and ``extra`` are added as they are."""
    arch = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}[spec.architecture]
    names = {f"{theirs}.{kind}": f"{ours}.{kind}" for ours, theirs in _TOP_NAMES.items() for kind in ("weight",)}
    for layer in range(spec.num_layers):
        for ours, theirs in _LAYER_NAMES.items():
            for kind in ("weight", "bias"):
                names[f"model.layers.{layer}.{theirs}.{kind}"] = f"blk.{layer}.{ours}.{kind}"
    writer = gguf.GGUFWriter(path, arch)
    numbers = {
        "block_count": spec.num_layers,
        "context_length": spec.max_positions,
        "embedding_length": spec.hidden_size,
        "feed_forward_length": spec.intermediate_size,
        "attention.head_count": spec.num_heads,
        "attention.head_count_kv": spec.num_kv_heads,
        "attention.key_length": spec.head_dim,
        "attention.value_length": spec.head_dim,
    }
    for key, value in numbers.items():
        if key not in drop:
            writer.add_uint32(f"{arch}.{key}", value)
    writer.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", spec.rms_norm_eps)
    writer.add_float32(f"{arch}.rope.freq_base", spec.rope.theta)
    for key, value in (keys or {}).items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        add(f"{arch}.{key}", value)
    for name in source.shapes():
        values = source.read(name).numpy()
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            values = interleaved(values, spec.num_heads if "q_proj" in name else spec.num_kv_heads)
        if encode is not None and values.ndim > 1:
            packed, kind = encode(name, values)
            writer.add_tensor(names[name], packed, raw_dtype=kind)
        else:
            writer.add_tensor(names[name], values)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
