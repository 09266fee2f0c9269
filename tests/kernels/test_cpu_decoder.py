"""The whole forward pass in C++ against its torch twin: prefill, chunks, decoding and padding in one paged cache."""

from dataclasses import dataclass, replace

import pytest
import torch

from kernels.cpu import CpuDecoder, CpuLibrary, DecoderShape, LayerWeights
from kernels.cpu.decoder import CacheView, head_rows, interleave_gate_up
from kernels.cpu.library import RowChunk
from kernels.cpu.pack import pack, pack_int4, pack_int8
from kernels.reference import PlainDecoder, PlainLayer, quantize_int4, quantize_int8

BLOCK_SIZE, NUM_BLOCKS = 4, 40


@dataclass(frozen=True)
class _Sizes:
    hidden: int = 64
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    inner: int = 96
    vocab: int = 101  # no multiple of a block
    layers: int = 3
    bias: bool = False
    qk_norm: bool = False
    rope_scale: float = 1.0


class _Model:
    """The same random weights twice: plain for the twin, packed for the kernels."""

    def __init__(self, library, sizes: _Sizes, kind: str):
        self.noise = torch.Generator().manual_seed(7)
        self.kind, self.sizes = kind, sizes
        self.dtype = torch.float32 if kind == "float32" else torch.bfloat16
        plain, packed = zip(*(self._layer(index) for index in range(sizes.layers)), strict=True)
        embedding = self._normal(sizes.vocab, sizes.hidden).to(self.dtype)
        head, packed_head = self._weight(sizes.vocab, sizes.hidden)
        frequencies = 1000.0 ** (-torch.arange(0, sizes.head_dim, 2) / sizes.head_dim)
        final_norm = 1 + self._normal(sizes.hidden) / 10
        self.twin = PlainDecoder(
            sizes.heads, sizes.kv_heads, 1e-5, embedding, frequencies, plain, final_norm, head, sizes.rope_scale
        )
        shape = DecoderShape(
            sizes.hidden,
            sizes.layers,
            sizes.heads,
            sizes.kv_heads,
            sizes.head_dim,
            sizes.inner,
            sizes.vocab,
            1e-5,
            sizes.rope_scale,
        )
        self.decoder = CpuDecoder(library, shape, embedding, frequencies, packed, final_norm, packed_head)
        self.caches = [self._poisoned(), self._poisoned()]
        self.view = CacheView(
            [layer[:, 0] for layer in self.caches[0]], [layer[:, 1] for layer in self.caches[0]], BLOCK_SIZE
        )

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.noise)

    def _poisoned(self) -> torch.Tensor:
        shape = (self.sizes.layers, NUM_BLOCKS * BLOCK_SIZE, 2, self.sizes.kv_heads, self.sizes.head_dim)
        return torch.full(shape, float("nan"), dtype=self.dtype)

    def _weight(self, num_outputs, num_inputs, order=lambda rows: rows, bias=None):
        """(what the twin multiplies by, the packed weight in the kernels' row order)."""
        weight = self._normal(num_outputs, num_inputs) / num_inputs**0.5
        ordered_bias = None if bias is None else order(bias)
        if self.kind == "int8":
            q = quantize_int8(weight)
            return q.dequantize(), pack_int8(order(q.q), order(q.scale[:, None])[:, 0], ordered_bias)
        if self.kind == "int4":
            q = quantize_int4(weight, 32)
            return q.dequantize(), pack_int4(order(q.q), order(q.scale), order(q.minimum), ordered_bias)
        weight = weight.to(self.dtype)
        return weight, pack(order(weight), ordered_bias)

    def _layer(self, index: int) -> tuple[PlainLayer, LayerWeights]:
        s = self.sizes
        rows = {"qkv": (s.heads + 2 * s.kv_heads) * s.head_dim, "o": s.hidden, "gate_up": 2 * s.inner, "down": s.hidden}
        columns = {"qkv": s.hidden, "o": s.heads * s.head_dim, "gate_up": s.hidden, "down": s.inner}
        orders = {"qkv": lambda rows: head_rows(rows, s.head_dim), "gate_up": interleave_gate_up}
        biases = {name: self._normal(rows[name]) / 4 if s.bias else None for name in rows}
        plain, packed = {}, {}
        for name in rows:
            order = orders.get(name, lambda rows: rows)
            plain[name], packed[name] = self._weight(rows[name], columns[name], order, biases[name])
        norms = {name: 1 + self._normal(s.hidden) / 10 for name in ("attention_norm", "mlp_norm")}
        if s.qk_norm:
            norms |= {name: 1 + self._normal(s.head_dim) / 10 for name in ("q_norm", "k_norm")}
        uses_rope = index != 1
        named_biases = {f"{name}_bias": bias for name, bias in biases.items()}
        return (
            PlainLayer(**plain, **norms, **named_biases, uses_rope=uses_rope),
            LayerWeights(**packed, **norms, uses_rope=uses_rope),
        )

    def step(self, chunks: list[RowChunk], padding: frozenset[int] = frozenset()) -> None:
        """Run one step both ways; compare logits of every chunk's last row and all that was written to the caches."""
        ids, positions, slots, last_rows = [], [], [], []
        for index, chunk in enumerate(chunks):
            start = chunk.context_len - chunk.num_rows
            at = range(max(start, 0), max(start, 0) + chunk.num_rows)
            positions += at
            ids += [(13 * p + 5 * index + 1) % self.sizes.vocab for p in at]
            if index in padding:
                slots += [-1] * chunk.num_rows
            else:
                slots += [chunk.block_ids[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in at]
                last_rows.append(chunk.first_row + chunk.num_rows - 1)
        got = self.decoder.forward(ids, positions, slots, chunks, last_rows, self.view)
        twin_cache = self.caches[1]
        tensors = [torch.tensor(values) for values in (ids, positions, slots)]
        rows = torch.tensor(last_rows, dtype=torch.int64)
        wanted = self.twin.forward(
            *tensors, chunks, rows, list(twin_cache[:, :, 0]), list(twin_cache[:, :, 1]), BLOCK_SIZE
        )
        self._compare(got, wanted)
        self._compare(self.caches[0], twin_cache)

    def _compare(self, got: torch.Tensor, wanted: torch.Tensor) -> None:
        got, wanted = got.float(), wanted.float()
        assert torch.equal(got.isnan(), wanted.isnan()), "only the slots of the step are written"
        tolerance = 2e-5 if self.kind == "float32" else 0.06
        torch.testing.assert_close(got, wanted, atol=tolerance, rtol=tolerance, equal_nan=True)


def _tables(count: int) -> list[tuple[int, ...]]:
    order = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(3)).tolist()
    size = NUM_BLOCKS // count
    return [tuple(order[i * size : (i + 1) * size]) for i in range(count)]


def _run_a_life(model: _Model) -> None:
    """Two prompts, one of them in two chunks, then decoding together with a row of padding and one without context."""
    a, b, c = _tables(3)
    model.step([RowChunk(0, 9, 9, a), RowChunk(9, 3, 3, b)])
    model.step([RowChunk(0, 1, 10, a), RowChunk(1, 13, 16, b)])
    model.step([RowChunk(0, 1, 11, a), RowChunk(1, 1, 17, b), RowChunk(2, 40, 40, c)])
    model.step([RowChunk(0, 1, 11, a), RowChunk(1, 1, 18, b), RowChunk(2, 1, 0, ())], padding=frozenset({0, 2}))
    model.step([RowChunk(0, 1, 19, b)])


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8", "int4"])
def test_a_few_steps_of_mixed_work(cpu_library, kind):
    _run_a_life(_Model(cpu_library, _Sizes(), kind))


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "change",
    [
        {"bias": True},
        {"qk_norm": True},
        {"rope_scale": 1.3},
        {"head_dim": 16, "heads": 4, "kv_heads": 4},
        {"head_dim": 80, "heads": 2, "kv_heads": 1},
        {"head_dim": 128, "heads": 7, "kv_heads": 1},
        {"hidden": 80, "inner": 48},
    ],
    ids=lambda change: "-".join(map(str, change.items())),
)
def test_what_families_do_differently(cpu_library, change, kind):
    _run_a_life(_Model(cpu_library, replace(_Sizes(), **change), kind))


def test_a_long_prompt_equals_the_same_prompt_in_chunks(cpu_library):
    model = _Model(cpu_library, _Sizes(), "float32")
    (table,) = _tables(1)
    model.step([RowChunk(0, 150, 150, table)])
    whole = model.caches[0].clone()
    model.caches[0].fill_(float("nan"))
    model.caches[1].fill_(float("nan"))
    for start, count in ((0, 1), (1, 7), (8, 64), (72, 78)):
        model.step([RowChunk(0, count, start + count, table)])
    torch.testing.assert_close(model.caches[0], whole, atol=1e-5, rtol=1e-5, equal_nan=True)


def test_steps_that_sample_nothing_or_do_nothing(cpu_library):
    model = _Model(cpu_library, _Sizes(), "float32")
    table = _tables(1)[0]
    assert model.decoder.forward([], [], [], [], [], model.view).shape == (0, 101)
    slots = [table[0] * BLOCK_SIZE, table[0] * BLOCK_SIZE + 1]
    logits = model.decoder.forward([0, 1], [0, 1], slots, [RowChunk(0, 2, 2, table)], [], model.view)
    assert logits.shape == (0, 101)
    assert model.caches[0][:, slots].isfinite().all()


def test_the_same_step_twice_gives_the_same_bits(cpu_library):
    model = _Model(cpu_library, _Sizes(), "bfloat16")
    table = _tables(1)[0]
    ids, chunk = list(range(30)), [RowChunk(0, 30, 30, table)]
    slots = [table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(30)]
    results = [model.decoder.forward(ids, ids, slots, chunk, ids, model.view).clone() for _ in range(20)]
    assert all(torch.equal(results[0], result) for result in results)


def test_threads_that_come_late_do_no_harm(cpu_library):
    """More threads than cores, two models in turn: a thread often still leaves one when the next begins."""
    library = CpuLibrary(cpu_library.path, 6)
    models = [
        _Model(library, sizes, "float32") for sizes in (_Sizes(), _Sizes(hidden=96, inner=48, layers=2, vocab=300))
    ]
    table = _tables(1)[0]
    wanted = {}
    for turn in range(120):
        model, rows = models[turn % 2], 1 + turn % 5 * 9
        ids, chunk = list(range(rows)), [RowChunk(0, rows, rows, table)]
        slots = [table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(rows)]
        logits = model.decoder.forward(ids, ids, slots, chunk, [rows - 1][: turn % 3], model.view).clone()
        key = (turn % 2, rows, len(logits))
        assert torch.equal(logits, wanted.setdefault(key, logits))
    del models
    library.close()


def test_every_phase_of_a_pass_has_a_time(cpu_library):
    table = _tables(1)[0]
    for kind, per_layer in (("bfloat16", 7), ("int4", 9)):  # int4 adds up inputs twice more
        model = _Model(cpu_library, _Sizes(), kind)
        model.decoder.forward([5], [0], [table[0]], [RowChunk(0, 1, 1, table)], [0], model.view)
        times = cpu_library.phase_times_ns()
        assert len(times) == 1 + per_layer * model.sizes.layers + 2 and min(times) >= 0 and sum(times) > 0


def test_what_the_kernels_cannot_do_is_said():
    shape = DecoderShape(64, 2, 4, 2, 32, 96, 100, 1e-5)
    assert shape.unsupported() == ""
    assert "head_dim to be a multiple of 16; this model has 24" in replace(shape, head_dim=24).unsupported()
    assert "at most 512" in replace(shape, head_dim=1024).unsupported()


def test_a_step_that_would_touch_foreign_memory_is_refused(cpu_library):
    model = _Model(cpu_library, _Sizes(), "float32")
    one, chunk = [0], [RowChunk(0, 1, 1, (0,))]
    for ids, slots, rows, message in (
        ([101], one, one, "vocabulary"),
        (one, [NUM_BLOCKS * BLOCK_SIZE], one, "slots lie in the cache"),
        (one, one, [1], "logit rows lie in the step"),
    ):
        with pytest.raises(AssertionError, match=message):
            model.decoder.forward(ids, one, slots, chunk, rows, model.view)
