"""What a model of the Llama family looks like, as frozen data: shapes, biases, norms, RoPE, tied head.

One decoder runs every family; what differs between them is written here and nowhere else. Each fact has its own field
(a bias is not a sign of a missing norm). This module reads a ``config.json`` and refuses, in one sentence, anything it
would have to ignore: an unknown architecture, RoPE type or activation. It never touches torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

RopeKind = Literal["default", "linear", "llama3", "yarn", "factors"]


class ModelError(ValueError):
    """A model that cannot be found, prepared or run. The message is one sentence with a remedy."""


@dataclass(frozen=True)
class RopeSpec:
    """How positions become rotation angles. Beside ``kind`` and ``theta`` a field counts only for kinds that use it.

    ``factors`` holds one divisor per frequency, as GGUF files of Llama 3.1 and later store their scaling.
    """

    kind: RopeKind = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    original_max_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    factors: tuple[float, ...] = ()


@dataclass(frozen=True)
class ModelSpec:
    """Everything the decoder must know about a model. Immutable; equal specs mean equal computation."""

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int  # its own number: not always hidden_size / num_heads
    vocab_size: int
    max_positions: int
    rms_norm_eps: float
    rope: RopeSpec
    has_qkv_bias: bool = False
    has_o_bias: bool = False
    has_mlp_bias: bool = False
    has_qk_norm: bool = False
    tied_head: bool = False
    layers_without_rope: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "vocab_size"):
            if getattr(self, name) < 1:
                raise ModelError(f"{name} is {getattr(self, name)}; allowed: 1 or more; correct the model's config")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}; correct the config"
            )
        if self.head_dim < 2 or self.head_dim % 2:
            raise ModelError(f"head_dim is {self.head_dim}; allowed: an even number, because RoPE turns pairs")

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head; query head h reads KV head h // group_size."""
        return self.num_heads // self.num_kv_heads

    @property
    def qkv_size(self) -> int:
        """Rows of the fused projection: queries, then keys, then values."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


@dataclass(frozen=True)
class _Family:
    """What an architecture's name alone decides, and what its config may decide."""

    qkv_bias: bool | None = None  # None: the config's attention_bias says it
    o_bias: bool | None = None
    qk_norm: bool = False
    default_head_dim: int | None = None
    default_tied: bool = False


def _families() -> dict[str, _Family]:
    return {
        "LlamaForCausalLM": _Family(),
        "MistralForCausalLM": _Family(qkv_bias=False, o_bias=False),
        "Qwen2ForCausalLM": _Family(qkv_bias=True, o_bias=False),
        "Qwen3ForCausalLM": _Family(qk_norm=True, default_head_dim=128),
        "SmolLM3ForCausalLM": _Family(default_tied=True),
    }


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """The spec of a decoded ``config.json``. Pure. Raises: ModelError naming what is not supported or missing."""
    architecture = _architecture(config)
    family = _families()[architecture]
    _refuse_unsupported(config)
    num_heads = _whole(config, "num_attention_heads")
    hidden_size = _whole(config, "hidden_size")
    num_layers = _whole(config, "num_hidden_layers")
    attention_bias = bool(config.get("attention_bias", False))
    max_positions = _whole(config, "max_position_embeddings")
    return ModelSpec(
        architecture=architecture,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=_whole(config, "intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=_whole(config, "num_key_value_heads", num_heads),
        head_dim=_whole(config, "head_dim", family.default_head_dim or hidden_size // num_heads),
        vocab_size=_whole(config, "vocab_size"),
        max_positions=min(max_positions, _sliding_window(config, architecture) or max_positions),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=_rope(config),
        has_qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        has_o_bias=attention_bias if family.o_bias is None else family.o_bias,
        has_mlp_bias=bool(config.get("mlp_bias", False)),
        has_qk_norm=family.qk_norm,
        tied_head=bool(config.get("tie_word_embeddings", family.default_tied)),
        layers_without_rope=_layers_without_rope(config, architecture, num_layers),
    )


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures") or []
    known = _families()
    if len(names) != 1 or names[0] not in known:
        said = ", ".join(map(str, names)) or "no architecture"
        raise ModelError(f"the model's config names {said}; supported: {', '.join(known)}")
    return names[0]


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    """Whatever would change the numbers and is not implemented must not be passed over in silence."""
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelError(f"hidden_act is {activation!r}; supported: silu")
    if config.get("quantization_config"):
        method = dict(config["quantization_config"]).get("quant_method", "unknown")
        raise ModelError(f"the weights are quantized ({method}); give a folder with unquantized safetensors")
    partial = (config.get("rope_parameters") or {}).get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise ModelError(f"partial_rotary_factor is {partial}; supported: 1, every dimension of a head is rotated")


def _whole(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int):
        said = "missing" if value is None else repr(value)
        raise ModelError(f"{key} in the model's config is {said}; it must be a whole number")
    return value


def _sliding_window(config: Mapping[str, Any], architecture: str) -> int | None:
    """The window of the layers that have one. Up to its length a windowed layer equals a full one, so we stop there."""
    window = config.get("sliding_window")
    if architecture != "MistralForCausalLM" and not config.get("use_sliding_window", False):
        return None
    return window if isinstance(window, int) and window > 0 else None


def _layers_without_rope(config: Mapping[str, Any], architecture: str, num_layers: int) -> frozenset[int]:
    if architecture != "SmolLM3ForCausalLM":
        return frozenset()
    uses_rope = config.get("no_rope_layers")  # despite its name: 1 where a layer does rotate
    if uses_rope is None:
        interval = _whole(config, "no_rope_layer_interval", 4)
        uses_rope = [(layer + 1) % interval != 0 for layer in range(num_layers)]
    if len(uses_rope) != num_layers:
        raise ModelError(f"no_rope_layers has {len(uses_rope)} entries for {num_layers} layers; correct the config")
    return frozenset(layer for layer, rotates in enumerate(uses_rope) if not rotates)


def _rope(config: Mapping[str, Any]) -> RopeSpec:
    """RoPE from ``rope_parameters`` (since transformers 5) or from ``rope_theta`` and ``rope_scaling`` (before)."""
    given = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    kind = given.get("rope_type", given.get("type", "default"))
    theta = float(given.get("rope_theta", config.get("rope_theta", 10_000.0)))
    if kind not in ("default", "linear", "llama3", "yarn", "factors"):
        raise ModelError(f"RoPE type {kind!r} is not supported; supported: default, linear, llama3, yarn")
    if given.get("mscale") or given.get("mscale_all_dim"):
        raise ModelError("RoPE with mscale is not supported; choose another model")
    needed = {"linear": ["factor"], "llama3": ["factor", "low_freq_factor", "high_freq_factor"], "yarn": ["factor"]}
    for key in needed.get(kind, []):
        if key not in given:
            raise ModelError(f"RoPE type {kind} needs {key}, which the model's config does not give")
    original = given.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    return RopeSpec(
        kind=kind,
        theta=theta,
        factor=float(given.get("factor") or 1.0),
        original_max_positions=int(original or config.get("max_position_embeddings") or 0),
        low_freq_factor=float(given.get("low_freq_factor", 1.0)),
        high_freq_factor=float(given.get("high_freq_factor", 4.0)),
        beta_fast=float(given.get("beta_fast") or 32.0),
        beta_slow=float(given.get("beta_slow") or 1.0),
        truncate=bool(given.get("truncate", True)),
        attention_factor=given.get("attention_factor"),
        factors=tuple(float(f) for f in given.get("factors", ())),
    )
