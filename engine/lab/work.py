"""What a step has to do: FLOPs and bytes counted from shapes alone, so that measured time can be read against them.

It decides how work is counted, once, for the engine's records, for the check that recomputes them and for every
modelled number on a page; it never measures anything and never imports torch. The recipe is the usual transformer
inference arithmetic (the scaling book's chapter on inference, kipply's "Transformer inference arithmetic"):

* a linear layer costs 2 FLOPs per parameter per token; its weights are read once per step, however many share it;
* attention costs 4·Hq·D FLOPs per layer for each (query, key) pair: 2 for the score, 2 for the weighted sum of values;
* the LM head works on rows that sample; of the embedding table only single rows are read, too few bytes to count.

Invariant: the same chunks always give the same Work. Letters: L layers, d hidden size, Hq/Hk query/KV heads, D head
size, V vocabulary, P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from engine.lab.records import Header, ModelInfo, Phase, Scheduled, Work

BYTES_PER_ELEMENT: dict[str, float] = {
    "float64": 8.0,
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "int8": 1.0,
    "int4": 0.5,
}


@dataclass(frozen=True)
class ChunkShape:
    """One request's positions [start, start + num_tokens) in a step, and whether its last row is sampled."""

    start: int
    num_tokens: int
    phase: Phase
    samples: bool

    @property
    def end(self) -> int:
        """Positions the chunk's last token sees: the context length after the chunk."""
        return self.start + self.num_tokens

    @property
    def attended_pairs(self) -> int:
        """(query, key) pairs under the causal mask: the token at position p sees p + 1 positions.

        sum over p in [start, end) of (p + 1) = n·start + n·(n + 1)/2 with n = num_tokens.
        """
        return self.num_tokens * self.start + self.num_tokens * (self.num_tokens + 1) // 2


def row_shapes(row: Scheduled) -> list[ChunkShape]:
    """What a recorded row computed. A draft is a chunk of its own behind the token it follows, and samples. Pure."""
    samples = row.phase != "padding" and row.is_last_chunk
    if row.num_draft_tokens:
        return [ChunkShape(row.start + i, 1, row.phase, samples) for i in range(row.num_tokens)]
    return [ChunkShape(row.start, row.num_tokens, row.phase, samples)]


# ------------------------------------------------------------------------------------------------- model sizes
def bytes_per_element(dtype: str) -> float:
    """Bytes of one element of a dtype by name (``bfloat16`` -> 2.0, ``int4`` -> 0.5). Pure. Raises: ValueError."""
    try:
        return BYTES_PER_ELEMENT[dtype]
    except KeyError:
        raise ValueError(f"dtype is {dtype!r}; allowed: {', '.join(BYTES_PER_ELEMENT)}") from None


def element_sizes(header: Header) -> tuple[float, float]:
    """(weight, KV) bytes per element of a Run. Pure. Raises: ValueError for a dtype it does not know.

    A quantized format that also stores scales may state its true sizes as ``weight_bytes_per_element`` and
    ``kv_bytes_per_element`` in the header; otherwise they follow from ``weights``, ``dtype`` and ``kv_dtype``.
    """
    extra = header.model_extra or {}
    stated_weight, stated_kv = extra.get("weight_bytes_per_element"), extra.get("kv_bytes_per_element")
    weight = stated_weight or bytes_per_element(str(header.scenario.get("weights") or header.dtype))
    kv = stated_kv or bytes_per_element(header.kv_dtype)
    return _positive(weight), _positive(kv)


def _positive(size: object) -> float:
    if isinstance(size, bool) or not isinstance(size, int | float) or not 0 < size <= 64:
        raise ValueError(f"bytes per element is {size!r}; allowed: a number from more than 0 to 64")
    return float(size)


def head_parameters(model: ModelInfo) -> int:
    """Parameters of the LM head, V·d. With tied embeddings this matrix is the embedding table. Pure."""
    return model.vocab_size * model.hidden_size


def is_tied(model: ModelInfo) -> bool:
    """Whether the LM head is the embedding table (stored once, so counted once in ``num_parameters``). Pure.

    Taken from ``tie_word_embeddings`` where the record has it. Otherwise from ``weight_bytes``, which is what one
    decode step reads: all P parameters when tied, P − V·d (not the embedding table) when not.
    The inference is exact for plain dtypes; a quantized model whose scales blur the size should state its tie.
    """
    stated = (model.model_extra or {}).get("tie_word_embeddings")
    if isinstance(stated, bool):
        return stated
    untied = model.num_parameters - head_parameters(model)
    if untied <= 0:
        return True
    # The right reading is (nearly) a plain element size; the wrong one is off by the share of the table.
    return _misfit(model.weight_bytes, model.num_parameters) <= _misfit(model.weight_bytes, untied)


def _misfit(weight_bytes: int, parameters: int) -> float:
    """Relative distance of bytes/parameters from the nearest plain element size."""
    if parameters <= 0:
        return 1.0
    size = weight_bytes / parameters
    return min(abs(size - plain) / plain for plain in BYTES_PER_ELEMENT.values())


def layer_parameters(model: ModelInfo) -> int:
    """Parameters every token passes through: all but the embedding table and the LM head. Pure.

    Norms and biases are in it; they are under 0.1 % of a real model and count as if they were matrix entries.
    """
    tables = 1 if is_tied(model) else 2
    return max(model.num_parameters - tables * head_parameters(model), 0)


def stored_bytes_per_element(model: ModelInfo) -> float:
    """Mean bytes per weight: ``weight_bytes`` over the parameters a decode step reads. Pure."""
    return model.weight_bytes / max(layer_parameters(model) + head_parameters(model), 1)


# ------------------------------------------------------------------------------------------------- one step
def step_work(
    model: ModelInfo,
    chunks: Iterable[ChunkShape],
    weight_bytes_per_element: float,
    kv_bytes_per_element: float,
) -> Work:
    """Work of one forward pass over the chunks. Pure; all results are whole numbers.

    flops          2·P_layers·T  +  4·L·Hq·D·Σ pairs  +  2·V·d·(rows that sample)
    weight_bytes   the model's ``weight_bytes`` once; less the LM head (V·d elements) if no row samples; 0 if no chunk
    kv_read_bytes  2·L·Hk·D·b_kv·Σ (start + num_tokens): a chunk reads K and V of all its positions once
    kv_write_bytes 2·L·Hk·D·b_kv·Σ num_tokens, real tokens only

    Padding rows cost the same FLOPs and reads as real ones (that is what they waste), but store nothing.
    ``tokens`` counts real rows, ``padding_tokens`` padding rows; T is both.
    """
    chunks = list(chunks)
    real = sum(c.num_tokens for c in chunks if c.phase != "padding")
    padding = sum(c.num_tokens for c in chunks if c.phase == "padding")
    sampling = sum(1 for c in chunks if c.samples)
    pairs = sum(c.attended_pairs for c in chunks)
    per_position = kv_bytes_per_token(model, kv_bytes_per_element)
    head_bytes = 0 if sampling else head_parameters(model) * weight_bytes_per_element
    return Work(
        tokens=real,
        padding_tokens=padding,
        flops=2 * layer_parameters(model) * (real + padding)
        + attention_flops(model, pairs)
        + 2 * head_parameters(model) * sampling,
        weight_bytes=max(round(model.weight_bytes - head_bytes), 0) if chunks else 0,
        kv_read_bytes=round(per_position * sum(c.end for c in chunks)),
        kv_write_bytes=round(per_position * real),
    )


def attention_flops(model: ModelInfo, pairs: int) -> int:
    """FLOPs of attention over so many (query, key) pairs in every layer: 4·L·Hq·D·pairs. Pure."""
    return 4 * model.num_layers * model.num_heads * model.head_dim * pairs


# ------------------------------------------------------------------------------------------------- formulas for pages
def kv_bytes_per_token(model: ModelInfo, bytes_per_element: float) -> float:
    """KV cache bytes of one position: 2 (K and V)·L·Hk·D·bytes. Pure. With Hk = Hq this is 2·L·d·bytes (MHA)."""
    return 2 * model.num_layers * model.num_kv_heads * model.head_dim * bytes_per_element


def prefill_flops(model: ModelInfo, num_tokens: int) -> int:
    """FLOPs to process a fresh prompt of so many tokens and sample one token from its last row. Pure."""
    return step_work(model, [ChunkShape(0, num_tokens, "prefill", True)], 2.0, 2.0).flops


def decode_step_flops(model: ModelInfo, context: int, batch: int = 1) -> int:
    """FLOPs of one decode step of ``batch`` requests, each seeing ``context`` positions, its own new one included."""
    return step_work(model, [ChunkShape(context - 1, 1, "decode", True)] * batch, 2.0, 2.0).flops


def decode_step_bytes(model: ModelInfo, context: int, kv_bytes_per_element: float | None = None, batch: int = 1) -> int:
    """Bytes one decode step reads: the weights once, and K and V of ``context`` positions per request. Pure.

    Divide by the device's read rate for the lower bound of the time per output token. ``kv_bytes_per_element`` defaults
    to the mean size of a weight, which is right as long as weights and KV cache share a dtype.
    """
    size = stored_bytes_per_element(model) if kv_bytes_per_element is None else kv_bytes_per_element
    return round(model.weight_bytes + batch * context * kv_bytes_per_token(model, size))


def kv_cache_bytes(model: ModelInfo, num_tokens: int, bytes_per_element: float, num_requests: int = 1) -> int:
    """KV cache bytes of so many requests of so many positions each, without block rounding. Pure."""
    return round(kv_bytes_per_token(model, bytes_per_element) * num_tokens * num_requests)


def with_kv_heads(model: ModelInfo, num_kv_heads: int) -> ModelInfo:
    """The model's shape with another number of KV heads: Hq = MHA, 1 = MQA, between them GQA. Pure. Raises: ValueError.

    Only the cache follows; the smaller K and V projections of a real model would also save some weights.
    """
    if num_kv_heads < 1 or model.num_heads % num_kv_heads:
        raise ValueError(f"num_kv_heads is {num_kv_heads}; it must divide the {model.num_heads} query heads")
    return model.model_copy(update={"num_kv_heads": num_kv_heads})


def kv_outgrows_weights_at(model: ModelInfo, bytes_per_element: float, num_requests: int = 1) -> int:
    """Positions per request from which the KV cache is larger than the weights a decode step reads. Pure."""
    return math.floor(model.weight_bytes / (kv_bytes_per_token(model, bytes_per_element) * num_requests)) + 1


def stored_weight_bytes(model: ModelInfo) -> float:
    """Bytes all weights take in memory: what a decode step reads, and a separate embedding table. Pure."""
    tables = 1 if is_tied(model) else 2
    return (layer_parameters(model) + tables * head_parameters(model)) * stored_bytes_per_element(model)


def num_requests_that_fit(
    model: ModelInfo, memory_bytes: float, num_tokens: int, bytes_per_element: float, reserved_bytes: float = 0
) -> int:
    """Requests of ``num_tokens`` positions beside the weights and what is reserved (activations); 0 if none. Pure."""
    left = memory_bytes - stored_weight_bytes(model) - reserved_bytes
    return max(math.floor(left / (kv_bytes_per_token(model, bytes_per_element) * num_tokens)), 0)


def moved_bytes(work: Work) -> int:
    """All bytes a step moves: weights, KV read, KV written. Pure."""
    return work.weight_bytes + work.kv_read_bytes + work.kv_write_bytes


def intensity(work: Work) -> float | None:
    """Arithmetic intensity of a step in FLOP per byte moved; None when it moved nothing. Pure."""
    moved = moved_bytes(work)
    return work.flops / moved if moved else None


def roofline_s(flops: float, num_bytes: float, read_gbps: float, matmul_tflops: float) -> float:
    """Least seconds for the work: the slower of moving the bytes and doing the FLOPs. Pure. Rates are decimal."""
    return max(num_bytes / (read_gbps * 1e9), flops / (matmul_tflops * 1e12))
