"""The quantized cache: whatever way tokens come, a full block reads as its rounded self and a filling one exactly."""

from __future__ import annotations

import pytest
import torch

from engine.lab.scenario import ScenarioError
from engine.model.load import decoder_from
from engine.runtime.kv_cache_quant import QuantizedKVCache
from engine.runtime.kv_quant import KVFormat, kv_format, quantize
from engine.scheduling.decision import Chunk
from engine.scheduling.requests import Request
from tests.model_kit import Rig, poison, random_tensors, small_spec

CPU = torch.device("cpu")
FORMATS = [kv_format("int8"), kv_format("int4"), KVFormat(8, "token", "token"), KVFormat(4, "channel", "channel")]
BLOCK = 4


def make_cache(fmt: KVFormat = FORMATS[0], num_blocks=24, max_requests=4, dtype=torch.float32) -> QuantizedKVCache:
    return poison(QuantizedKVCache(small_spec(), num_blocks, BLOCK, dtype, CPU, fmt, max_requests))


class Writer:
    """Drives a cache as an engine would, and knows what every position of every request was."""

    def __init__(self, cache: QuantizedKVCache, seed: int = 0) -> None:
        self.cache = cache
        self.noise = torch.Generator().manual_seed(seed)
        self.free = list(range(cache.num_blocks))
        self.written: dict[str, torch.Tensor] = {}  # [L, positions, 2, Hk, D]
        self.requests: dict[str, Request] = {}

    def start(self, name: str) -> None:
        self.requests[name] = Request(name, [0] * 1000, 1)
        self.written[name] = torch.empty((2, 0, 2, 2, 12))

    def take_blocks_back(self, name: str) -> None:
        """A preemption, an end or an abort: the table is empty and other requests may get the blocks."""
        request = self.requests[name]
        self.free += request.block_ids
        request.block_ids.clear()
        self.written[name] = self.written[name][:, :0]

    def step(self, sizes: dict[str, int], padding: tuple[str, ...] = ()) -> None:
        """Each request stores its next so many positions. Effect: one step of the cache, in all layers."""
        chunks, slots, kv = [], [], []
        for name, size in sizes.items():
            request, start = self.requests[name], self.written[name].shape[1]
            while len(request.block_ids) * BLOCK < start + size:
                request.block_ids.append(self.free.pop(0))
            chunks.append(Chunk(request, start, size, "prefill", list(request.block_ids), True))
            slots += [request.block_ids[p // BLOCK] * BLOCK + p % BLOCK for p in range(start, start + size)]
            kv.append(torch.randn((2, size, 2, 2, 12), generator=self.noise))
            self.written[name] = torch.cat((self.written[name], kv[-1]), dim=1)
        for name in padding:
            chunks.append(Chunk(self.requests[name], 0, 1, "padding", self.requests[name].block_ids, False))
            slots.append(self.cache.trash_slot)
            kv.append(torch.full((2, 1, 2, 2, 12), float("nan")))
        where = torch.tensor(slots)
        self.cache.begin_step(chunks, where)
        for layer in range(2):
            self.cache.store(layer, where, torch.cat(kv, dim=1)[layer])

    def read(self, name: str) -> torch.Tensor:
        """[L, positions, 2, Hk, D] as attention gets it."""
        blocks = self.requests[name].block_ids
        slots = torch.tensor([blocks[p // BLOCK] * BLOCK + p % BLOCK for p in range(self.written[name].shape[1])])
        read = self.cache.reader(slots)
        return torch.stack([read(layer) for layer in range(2)])

    def expected(self, name: str, fmt: KVFormat) -> torch.Tensor:
        written = self.written[name]
        full = written.shape[1] // BLOCK * BLOCK
        parts = []
        for part, axis in enumerate((fmt.keys, fmt.values)):
            x = written[:, :, part]
            if axis == "token":
                parts.append(quantize(x, fmt.bits, dim=-1).dequantize(torch.float32))
                continue
            blocks = x[:, :full].unflatten(1, (-1, BLOCK))
            rounded = quantize(blocks, fmt.bits, dim=2).dequantize(torch.float32).flatten(1, 2)
            parts.append(torch.cat((rounded, x[:, full:]), dim=1))  # the block that fills is exact
        return torch.stack(parts, dim=2)

    def check(self, fmt: KVFormat) -> None:
        for name, request in self.requests.items():
            if request.block_ids:
                assert torch.equal(self.read(name), self.expected(name, fmt)), name


@pytest.mark.parametrize("fmt", FORMATS)
def test_chunks_of_any_size_round_each_full_block_once(fmt):
    for sizes in ([1] * 11, [4, 4, 3], [11], [3, 6, 2], [2, 9], [8, 1, 1, 1]):
        writer = Writer(make_cache(fmt))
        writer.start("a")
        for size in sizes:
            writer.step({"a": size})
            writer.check(fmt)


@pytest.mark.parametrize("fmt", FORMATS)
def test_requests_that_come_go_and_take_each_others_blocks_never_mix(fmt):
    """300 steps: three or four requests at a time, some sit steps out, lose their blocks and begin again."""
    writer = Writer(make_cache(fmt))
    choose = torch.Generator().manual_seed(7)

    def draw(most: int) -> int:
        return int(torch.randint(0, most, (1,), generator=choose))

    for name in "abcd":
        writer.start(name)
    for _ in range(300):
        sizes = {name: 1 + draw(6) for name in "abcd" if draw(3)}
        for name in list(sizes):
            if writer.written[name].shape[1] + sizes[name] > 6 * BLOCK or draw(12) == 0:
                writer.take_blocks_back(name)
        idle = tuple(name for name in "abcd" if name not in sizes and writer.requests[name].block_ids)
        writer.step(sizes, padding=idle[:1])
        writer.check(fmt)


def test_an_idle_request_keeps_its_exact_block_while_others_come_and_go():
    writer = Writer(make_cache(max_requests=2))
    writer.start("idle")
    writer.step({"idle": 6})
    for turn in range(8):
        writer.start(f"r{turn}")
        writer.step({f"r{turn}": 3})
        writer.check(FORMATS[0])
        writer.take_blocks_back(f"r{turn}")
    writer.step({"idle": 1})
    writer.check(FORMATS[0])


def test_nobody_goes_back_into_a_block_that_became_codes():
    """Its exact keys are gone. (Why speculation, which takes tokens back, is refused with a quantized cache.)"""
    writer = Writer(make_cache())
    writer.start("a")
    writer.step({"a": 8})
    writer.written["a"] = writer.written["a"][:, :6]
    with pytest.raises(AssertionError, match="a goes on within a block that it was not filling"):
        writer.step({"a": 1})


def test_a_new_run_owes_nothing_to_one_that_was_cut_off():
    cache = make_cache(max_requests=2)
    for run in range(3):
        cache.begin_run()
        writer = Writer(cache, seed=run)
        for name in (f"{run}a", f"{run}b"):
            writer.start(name)
        writer.step({f"{run}a": 6, f"{run}b": 3})  # nobody gives anything back
        writer.check(FORMATS[0])


@pytest.mark.parametrize("block_size", [1, 4])
def test_the_zero_slot_reads_as_zeros_whatever_the_trash_slot_gets(block_size):
    for fmt in FORMATS:
        cache = QuantizedKVCache(small_spec(), 3, block_size, torch.float32, CPU, fmt, 2)
        request = Request("done", [1, 2], 1)
        slots = torch.tensor([cache.trash_slot])
        cache.begin_step([Chunk(request, 0, 1, "padding", [0], False)], slots)
        cache.store(1, slots, torch.full((1, 2, 2, 12), 5.0))
        assert not cache.reader(torch.tensor([cache.zero_slot] * 3))(1).any()


@pytest.mark.parametrize("fmt", FORMATS)
def test_block_bytes_are_those_of_the_tensors(fmt):
    cache = make_cache(fmt, num_blocks=5)
    tensors = [t for s in (cache.keys.stored, cache.values.stored) for t in (s.codes, s.scale, s.minimum)]
    held = sum(t.numel() * t.element_size() for t in tensors if t is not None)
    assert held == (5 + 2) * cache.block_bytes
    assert cache.bytes_per_element == cache.block_bytes / (2 * 2 * BLOCK * 2 * 12)
    rows = [s.rows.numel() * s.rows.element_size() for s in (cache.keys, cache.values) if hasattr(s, "rows")]
    assert cache.filling_bytes == sum(rows)


def test_more_blocks_than_memory_are_refused_counting_the_filling_ones(monkeypatch):
    class Memory:
        available = 1_000_000

    monkeypatch.setattr("psutil.virtual_memory", lambda: Memory)
    cache = make_cache(num_blocks=1, max_requests=100)
    most = (1_000_000 - cache.filling_bytes) // cache.block_bytes
    make_cache(num_blocks=most, max_requests=100)
    with pytest.raises(ScenarioError, match=f"num_blocks {most + 1} needs .* up to {most}"):
        make_cache(num_blocks=most + 1, max_requests=100)


@pytest.mark.parametrize("sizes", [[40], [17, 1], [1]])
def test_a_decoder_stays_near_its_full_precision_self(sizes):
    spec = small_spec()
    decoder = decoder_from(spec, random_tensors(spec))
    exact = Rig(decoder).last_logits(range(40), [40])
    error = {}
    for name in ("int8", "int4"):
        logits = Rig(decoder, kv_format=kv_format(name)).last_logits(range(40), sizes)
        error[name] = float((logits - exact).abs().max() / exact.abs().max())
    assert 0 < 5 * error["int8"] < error["int4"] < 0.1


def test_a_mixed_step_gives_each_request_what_it_gets_alone():
    spec = small_spec()
    decoder = decoder_from(spec, random_tensors(spec))
    fmt = kv_format("int8")
    rig, prompts = Rig(decoder, kv_format=fmt), {"a": range(5, 28), "b": range(40, 60), "c": [9]}
    requests = {name: rig.request(ids, name) for name, ids in prompts.items()}
    rig.run(rig.chunk(requests["a"], 0, 10), rig.chunk(requests["b"], 0, 19))
    together = rig.run(
        rig.chunk(requests["b"], 19, 1, "decode"), rig.chunk(requests["a"], 10, 13), rig.chunk(requests["c"], 0, 1)
    )
    alone = [
        Rig(decoder, kv_format=fmt).last_logits(prompts[name], sizes)
        for name, sizes in (("b", [19, 1]), ("a", [10, 13]), ("c", [1]))
    ]
    torch.testing.assert_close(together, torch.stack(alone), atol=1e-5, rtol=1e-5)
