"""From named tensors to a Decoder, strictly: every name the spec needs is there, every name there is used.

A dropped or uninitialised tensor gives a model that runs and talks nonsense, so both are refused by name before any
weight is read. Q, K, V and gate, up are joined here, once; the tied head is the embedding's own storage.
Names and layouts are those of Hugging Face checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open

from engine.model.decoder import Decoder, Layer
from engine.model.ops import Ops
from engine.model.spec import ModelError, ModelSpec

Shape = tuple[int, ...]


class TensorSource(Protocol):
    """Where named tensors come from: a folder of safetensors, a GGUF file, or memory."""

    def shapes(self) -> dict[str, Shape]:
        """Name and shape of every tensor, without reading any. Pure."""
        ...

    def read(self, name: str) -> torch.Tensor:
        """One tensor. Raises: ModelError when it cannot be read."""
        ...


class MemoryTensors:
    """Tensors that already exist."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def shapes(self) -> dict[str, Shape]:
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def read(self, name: str) -> torch.Tensor:
        return self._tensors[name]


class SafetensorsFolder:
    """``*.safetensors`` of a folder, memory-mapped. A name that stands in two files is refused."""

    def __init__(self, folder: Path) -> None:
        paths = sorted(folder.glob("*.safetensors"))
        if not paths:
            raise ModelError(f"{folder} holds no .safetensors file; give a folder with config.json and safetensors")
        self._files = {}
        self._shapes: dict[str, Shape] = {}
        for path in paths:
            try:
                opened = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise ModelError(f"cannot read {path}: {error}; fetch or convert the model again") from None
            for name in opened.keys():  # noqa: SIM118 (not a dict)
                if name in self._files:
                    raise ModelError(f"tensor {name} stands in two files of {folder}; remove one of them")
                self._files[name] = opened
                self._shapes[name] = tuple(opened.get_slice(name).get_shape())

    def shapes(self) -> dict[str, Shape]:
        return dict(self._shapes)

    def read(self, name: str) -> torch.Tensor:
        try:
            return self._files[name].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"cannot read tensor {name}: {error}; fetch or convert the model again") from None


def expected_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Name and shape of every tensor a model of this spec has. A tied head has none of its own. Pure."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (spec.vocab_size, hidden), "model.norm.weight": (hidden,)}
    if not spec.tied_head:
        shapes["lm_head.weight"] = (spec.vocab_size, hidden)
    for layer in range(spec.num_layers):
        at = f"model.layers.{layer}."
        shapes[at + "input_layernorm.weight"] = (hidden,)
        shapes[at + "post_attention_layernorm.weight"] = (hidden,)
        products = {
            "self_attn.q_proj": (q_size, hidden, spec.has_qkv_bias),
            "self_attn.k_proj": (kv_size, hidden, spec.has_qkv_bias),
            "self_attn.v_proj": (kv_size, hidden, spec.has_qkv_bias),
            "self_attn.o_proj": (hidden, q_size, spec.has_o_bias),
            "mlp.gate_proj": (inner, hidden, spec.has_mlp_bias),
            "mlp.up_proj": (inner, hidden, spec.has_mlp_bias),
            "mlp.down_proj": (hidden, inner, spec.has_mlp_bias),
        }
        for name, (rows, columns, has_bias) in products.items():
            shapes[f"{at}{name}.weight"] = (rows, columns)
            if has_bias:
                shapes[f"{at}{name}.bias"] = (rows,)
        if spec.has_qk_norm:
            shapes[at + "self_attn.q_norm.weight"] = (spec.head_dim,)
            shapes[at + "self_attn.k_norm.weight"] = (spec.head_dim,)
    return shapes


def num_parameters(spec: ModelSpec) -> int:
    """Trained numbers in the model, a tied head counted once. Pure."""
    return sum(math.prod(shape) for shape in expected_shapes(spec).values())


def num_decode_parameters(spec: ModelSpec) -> int:
    """Numbers one decode step reads: all but an untied embedding, whose single row is too little to count. Pure."""
    embedding = 0 if spec.tied_head else spec.vocab_size * spec.hidden_size
    return num_parameters(spec) - embedding


def decode_weight_bytes(spec: ModelSpec, dtype: torch.dtype, ops: Ops) -> int:
    """Bytes of weights one decode step reads: matrices as ``ops`` keeps them, norms and biases in ``dtype``. Pure."""
    num_bytes = ops.head_bytes(spec.vocab_size, spec.hidden_size, dtype)  # tied or not
    for name, shape in expected_shapes(spec).items():
        if len(shape) == 1:
            num_bytes += shape[0] * dtype.itemsize
        elif name.startswith("model.layers."):
            num_bytes += ops.linear_bytes(*shape, dtype)
    return num_bytes


def check_tensors(spec: ModelSpec, found: dict[str, Shape]) -> None:
    """Raises: ModelError naming the first tensor that is missing, unknown or of another shape. Pure."""
    expected = expected_shapes(spec)
    missing = [name for name in expected if name not in found]
    if missing:
        raise ModelError(f"tensor {missing[0]} is missing ({len(missing)} in all); the model's files are not complete")
    unknown = [name for name in found if name not in expected and not _may_stand_beside(name, spec)]
    if unknown:
        raise ModelError(
            f"tensor {unknown[0]} ({len(unknown)} such in all) has no place in a {spec.architecture}; "
            "the config and the weights do not belong together"
        )
    for name, shape in expected.items():
        if found[name] != shape:
            raise ModelError(f"tensor {name} has shape {found[name]}; the model's config asks for {shape}")


def _may_stand_beside(name: str, spec: ModelSpec) -> bool:
    """Tensors some checkpoints store although they follow from others: RoPE frequencies, the copy of a tied head."""
    return name.endswith(".rotary_emb.inv_freq") or (spec.tied_head and name == "lm_head.weight")


def build_decoder(
    spec: ModelSpec,
    source: TensorSource,
    dtype: torch.dtype,
    device: torch.device,
    ops: Ops,
    on_layer: Callable[[int], None] = lambda layer: None,
) -> Decoder:
    """Read, convert and join all weights. ``on_layer(n)`` is called when n layers are ready. Raises: ModelError."""
    found = source.shapes()
    check_tensors(spec, found)

    def read(name: str) -> torch.Tensor:
        return source.read(name).to(device=device, dtype=dtype)

    def joined(at: str, names: tuple[str, ...], has_bias: bool):
        weight = (
            torch.cat([read(f"{at}{name}.weight") for name in names])
            if len(names) > 1
            else read(f"{at}{names[0]}.weight")
        )
        bias = torch.cat([read(f"{at}{name}.bias") for name in names]) if has_bias else None
        return ops.linear(weight, bias)

    embedding = read("model.embed_tokens.weight")
    if spec.tied_head and "lm_head.weight" in found and not torch.equal(read("lm_head.weight"), embedding):
        raise ModelError("the config ties the head to the embedding, but lm_head.weight differs; correct the config")
    layers = []
    for index in range(spec.num_layers):
        at = f"model.layers.{index}."
        attention, mlp = at + "self_attn.", at + "mlp."
        layers.append(
            Layer(
                attention_norm=read(at + "input_layernorm.weight"),
                qkv=joined(attention, ("q_proj", "k_proj", "v_proj"), spec.has_qkv_bias),
                q_norm=read(attention + "q_norm.weight") if spec.has_qk_norm else None,
                k_norm=read(attention + "k_norm.weight") if spec.has_qk_norm else None,
                o=joined(attention, ("o_proj",), spec.has_o_bias),
                mlp_norm=read(at + "post_attention_layernorm.weight"),
                gate_up=joined(mlp, ("gate_proj", "up_proj"), spec.has_mlp_bias),
                down=joined(mlp, ("down_proj",), spec.has_mlp_bias),
                uses_rope=index not in spec.layers_without_rope,
            )
        )
        on_layer(index + 1)
    head = ops.head(embedding if spec.tied_head else read("lm_head.weight"))
    return Decoder(spec, embedding, layers, read("model.norm.weight"), head, ops)
