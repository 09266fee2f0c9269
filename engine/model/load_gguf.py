"""Reading a GGUF file: its metadata as a Hugging Face config, its tensors under Hugging Face names, dequantized.

Strict where converters are usually silent: an unknown architecture, tensor, RoPE scaling or a missing head count is
refused, the RoPE factors of Llama 3.1 and later are read, Q and K of Llama are brought back from the interleaved to the
half-split order, and every end-of-text id is kept. Everything becomes float32; nothing here writes a file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from engine.model.spec import ModelError
from engine.model.weights import Shape

ROPE_FACTORS = "rope_freqs.weight"

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

_TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GgufFile:
    """An opened GGUF file. It is a TensorSource: shapes() and read() use Hugging Face names. Pure but for reading."""

    def __init__(self, path: Path) -> None:
        """Raises: ModelError when the file cannot be read or holds what we would have to ignore."""
        self.path = path
        try:
            reader = gguf.GGUFReader(path)
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise ModelError(f"cannot read {path} as GGUF ({error}); fetch it again") from None
        self.fields: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
        self.architecture = str(self.fields.get("general.architecture"))
        if self.architecture not in _ARCHITECTURES:
            supported = ", ".join(_ARCHITECTURES)
            raise ModelError(f"{path.name} holds a {self.architecture!r} model; supported in GGUF: {supported}")
        stored = {tensor.name: tensor for tensor in reader.tensors}
        self._rope_factors = stored.pop(ROPE_FACTORS, None)
        self._tensors = {_hugging_face_name(name, path): tensor for name, tensor in stored.items()}
        self.config = self._config()

    @property
    def quantization(self) -> str:
        """The type most weights are stored in, such as Q4_1."""
        types = [t.tensor_type.name for t in self._tensors.values() if len(t.shape) > 1]
        return max(set(types), key=types.count) if types else "F32"

    def eos_token_ids(self) -> set[int]:
        """Every id the file names as an end: of text, of a turn, of a message. Pure."""
        keys = ("eos_token_id", "eot_token_id", "eom_token_id")
        found = (self.fields.get(f"tokenizer.ggml.{key}") for key in keys)
        return {int(index) for index in found if index is not None}

    def shapes(self) -> dict[str, Shape]:
        """As TensorSource. GGUF writes dimensions innermost first."""
        return {name: tuple(int(n) for n in reversed(t.shape)) for name, t in self._tensors.items()}

    def read(self, name: str) -> torch.Tensor:
        """One tensor in float32, in Hugging Face's order. Raises: ModelError for a type that is not known."""
        tensor = self._tensors[name]
        try:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            raise ModelError(
                f"tensor {name} in {self.path.name} is stored as {tensor.tensor_type.name}, which cannot be "
                "dequantized here; use a file in F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K or Q6_K"
            ) from None
        values = np.array(values, dtype=np.float32).reshape(self.shapes()[name])  # a copy: the file is mapped read-only
        if self.architecture == "llama" and re.search(r"self_attn\.[qk]_proj", name):
            heads = "num_attention_heads" if "q_proj" in name else "num_key_value_heads"
            values = half_split_order(values, self.config[heads])
        return torch.from_numpy(values)

    def _config(self) -> dict[str, Any]:
        """The metadata in the words of a Hugging Face config.json."""
        heads, kv_heads = self._number("attention.head_count"), self._number("attention.head_count_kv")
        hidden = self._number("embedding_length")
        head_dim = self.fields.get(f"{self.architecture}.attention.key_length", hidden // heads)
        value_dim = self.fields.get(f"{self.architecture}.attention.value_length", head_dim)
        rotated = self.fields.get(f"{self.architecture}.rope.dimension_count", head_dim)
        if not head_dim == value_dim == rotated:
            raise ModelError(
                f"{self.path.name} has keys of {head_dim}, values of {value_dim} and rotates {rotated} dimensions; "
                "supported: all three equal"
            )
        return {
            "architectures": [_ARCHITECTURES[self.architecture]],
            "model_type": self.architecture,
            "hidden_act": "silu",
            "hidden_size": hidden,
            "intermediate_size": self._number("feed_forward_length"),
            "num_hidden_layers": self._number("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": int(head_dim),
            "vocab_size": self.shapes()["model.embed_tokens.weight"][0],
            "max_position_embeddings": self._number("context_length"),
            "rms_norm_eps": _shortest(self._number("attention.layer_norm_rms_epsilon")),
            "tie_word_embeddings": "lm_head.weight" not in self._tensors,
            "attention_bias": "model.layers.0.self_attn.q_proj.bias" in self._tensors,
            "mlp_bias": "model.layers.0.mlp.up_proj.bias" in self._tensors,
            "rope_parameters": self._rope(),
            "bos_token_id": self.fields.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.fields.get("tokenizer.ggml.eos_token_id"),
        }

    def _rope(self) -> dict[str, Any]:
        theta = _shortest(self.fields.get(f"{self.architecture}.rope.freq_base", 10_000.0))
        kind = self.fields.get(f"{self.architecture}.rope.scaling.type", "none")
        if self._rope_factors is not None:
            return {"rope_type": "factors", "rope_theta": theta, "factors": self._rope_factors.data.tolist()}
        if kind == "none":
            return {"rope_type": "default", "rope_theta": theta}
        if kind == "linear":
            return {"rope_type": "linear", "rope_theta": theta, "factor": float(self._number("rope.scaling.factor"))}
        raise ModelError(f"{self.path.name} scales RoPE by {kind!r}; supported in GGUF: none, linear, stored factors")

    def _number(self, key: str) -> Any:
        value = self.fields.get(f"{self.architecture}.{key}")
        if value is None or isinstance(value, list):
            raise ModelError(f"{self.path.name} does not give {self.architecture}.{key} as one number; fetch another")
        return value


def half_split_order(values: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of Q or K from GGUF's interleaved order to the half-split one. values: [H * D, ...]. Pure.

    In a head, GGUF row 2i + j (j in {0, 1}) is checkpoint row i + j * D/2.
    """
    head_dim = values.shape[0] // num_heads
    paired = values.reshape(num_heads, head_dim // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(values.shape)


def _hugging_face_name(name: str, path: Path) -> str:
    """Raises: ModelError for a tensor we know no place for."""
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if layer and layer[2] in _LAYER_NAMES:
        return f"model.layers.{layer[1]}.{_LAYER_NAMES[layer[2]]}.{layer[3]}"
    top = re.fullmatch(r"(\w+)\.weight", name)
    if top and top[1] in _TOP_NAMES:
        return f"{_TOP_NAMES[top[1]]}.weight"
    raise ModelError(f"{path.name} holds a tensor {name}, which this engine has no place for; use another model")


def _shortest(value: float) -> float:
    """A float32 from the file as the decimal it was written as: 9.9999997e-06 -> 1e-05."""
    return float(str(np.float32(value)))
