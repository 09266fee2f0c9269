"""What one call of a kernel has to move and compute, from its shapes alone: the numbers every rate is divided by.

It counts what the algorithm needs once: each input in, each output out. Scratch between two passes of one kernel,
repeated reads that a cache absorbs and padding to a tile are the kernel's own affair, so they count as its loss. The
same functions serve the report, the benchmark on a GPU and the lessons. Nothing here measures, and torch is not
imported. Shapes: T tokens or rows, C hidden size, F intermediate size, N outputs, K inputs, V vocabulary, Hq query
heads, Hk KV heads, D head_dim; ``size`` is bytes per element of rows, ``kv_size`` of the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SLOT_BYTES = 8
SCALE_BYTES = 4  # of an int8 cache: float32, one per token, K or V, and head


@dataclass(frozen=True)
class Cost:
    """Bytes that have to cross the memory bus, and operations (a multiplication and an addition are two)."""

    bytes_in: float
    bytes_out: float
    flops: float

    @property
    def num_bytes(self) -> float:
        return self.bytes_in + self.bytes_out

    @property
    def intensity(self) -> float:
        """Operations per byte. Below the device's ridge the memory is the limit."""
        return self.flops / self.num_bytes


def store_kv(num_tokens: int, num_kv_heads: int, head_dim: int, size: int, *, quantized: bool = False) -> Cost:
    """T rows of keys and values into their slots; quantized to int8 with a scale per head, or as they are."""
    elements = num_tokens * 2 * num_kv_heads * head_dim
    heads = num_tokens * 2 * num_kv_heads
    written = elements + heads * SCALE_BYTES if quantized else elements * size
    return Cost(elements * size + num_tokens * SLOT_BYTES, written, 4.0 * elements if quantized else 0.0)


def attention(
    chunks: Sequence[tuple[int, int]],
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    size: int,
    *,
    quantized: bool = False,
) -> Cost:
    """chunks: (queries, context) of each request, one query being a decode row. Keys and values are read once each.

    4 * Hq * D operations for every (query, key) pair that the causal mask lets through.
    """
    rows = sum(queries for queries, _ in chunks)
    keys = sum(context for _, context in chunks)
    pairs = sum(n * (context - n) + n * (n + 1) // 2 for n, context in chunks)
    slot_bytes = 2 * num_kv_heads * ((head_dim + SCALE_BYTES) if quantized else head_dim * size)
    row_bytes = rows * num_heads * head_dim * size
    return Cost(keys * slot_bytes + row_bytes, row_bytes, 4.0 * num_heads * head_dim * pairs)


def rms_norm(num_rows: int, num_columns: int, size: int, *, with_addition: bool = False) -> Cost:
    """x and the weight in, the normed rows out; with the addition also delta in and x out."""
    row_bytes, moves = num_rows * num_columns * size, 2 if with_addition else 1
    return Cost(moves * row_bytes + num_columns * size, moves * row_bytes, 4.0 * num_rows * num_columns)


def norm_rope(num_tokens: int, num_heads: int, head_dim: int, size: int, *, with_norm: bool = False) -> Cost:
    """Queries and keys in and out, a cosine and a sine per dimension of each token in."""
    elements = num_tokens * num_heads * head_dim
    tables = 2 * num_tokens * head_dim * size + (2 * head_dim * size if with_norm else 0)
    return Cost(elements * size + tables, elements * size, (7.0 if with_norm else 3.0) * elements)


def silu_mul(num_rows: int, intermediate_size: int, size: int) -> Cost:
    """Gate and up in, their product out."""
    elements = num_rows * intermediate_size
    return Cost(2 * elements * size, elements * size, 5.0 * elements)


def linear(num_rows: int, num_outputs: int, num_inputs: int, size: int, weight_bytes: float) -> Cost:
    """x and the weight in, the outputs out. ``weight_bytes``: the whole weight with its scales."""
    rows_in, rows_out = num_rows * num_inputs * size, num_rows * num_outputs * size
    return Cost(weight_bytes + rows_in, rows_out, 2.0 * num_rows * num_outputs * num_inputs)


def int8_weight_bytes(num_outputs: int, num_inputs: int) -> int:
    """One byte a weight and a float32 scale per output."""
    return num_outputs * num_inputs + 4 * num_outputs


def int4_weight_bytes(num_outputs: int, num_inputs: int, group: int) -> int:
    """Half a byte a weight, a float16 scale and minimum per output and group."""
    return num_outputs * num_inputs // 2 + 4 * num_outputs * num_inputs // group


def sample(num_rows: int, vocab_size: int) -> Cost:
    """Logits, a temperature and a seed in, a token out. Operations beside Philox: two logarithms, a division, a sum."""
    return Cost(num_rows * (4 * vocab_size + 12), 8 * num_rows, 4.0 * num_rows * vocab_size)


def stream(num_elements: int, *, copies: bool) -> Cost:
    """float32 elements in; out as well if copied, else one addition each."""
    return Cost(4 * num_elements, 4 * num_elements if copies else 0, 0.0 if copies else float(num_elements))


def fma_chain(num_elements: int, num_rounds: int, chains: int = 4) -> Cost:
    """float32 elements in and out, and a multiplication and an addition in every chain and round."""
    return Cost(4 * num_elements, 4 * num_elements, 2.0 * chains * num_rounds * num_elements)
