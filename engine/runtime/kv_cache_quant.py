"""The quantized KV cache: the same slots as ``KVCache``, with codes and scales instead of numbers.

A scale per token is known when the token comes. A scale per channel is not: it needs all tokens of the block. So the
keys of the block a request is filling stay in full precision, in a row beside the pool, one row per running request,
and become codes when the block is full. The newest tokens, which get most of the attention, are thus exact, and no key
is ever rounded twice. The price is ``filling_bytes``, which depends on the number of requests and not on the pool's
size, and that a prompt computed in other chunks sees other blocks already rounded: tokens may differ within the error
of the format. Follows KIVI's residual (arXiv 2402.02750), with the paged block as its group.
Invariant: a block is read from its row as long as its request holds it and has not filled it; a row belongs to the
request whose table holds its block, so preempted, aborted and finished requests lose theirs without being asked.
Shapes: T tokens in the step, S context slots, U blocks written in the step, B block size, Hk KV heads, D head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engine.model.spec import ModelSpec
from engine.runtime.kv_cache import require_memory
from engine.runtime.kv_quant import SCALE_DTYPE, KVFormat, Quantized, quantize
from engine.scheduling.decision import Chunk
from engine.scheduling.requests import Request

ReadLayer = Callable[[int], torch.Tensor]  # layer -> [S, Hk, D]


@dataclass(frozen=True)
class CacheShape:
    """Sizes shared by the stores of a cache. Slots outside the pool lie in two blocks of their own."""

    num_layers: int
    num_blocks: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    max_requests: int
    dtype: torch.dtype
    device: torch.device


class QuantizedKVCache:
    """Keys and values in a ``KVFormat``. Same interface as ``KVCache``, but that it has no ``slots`` tensor."""

    def __init__(
        self,
        spec: ModelSpec,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        kv_format: KVFormat,
        max_requests: int,
    ) -> None:
        """Raises: ScenarioError when the device has too little memory for that many blocks."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.zero_slot = num_blocks * block_size
        self.trash_slot = self.zero_slot + 1
        self.block_bytes = kv_format.block_bytes(spec.num_layers, block_size, spec.num_kv_heads, spec.head_dim)
        heads = spec.num_kv_heads, spec.head_dim
        shape = CacheShape(spec.num_layers, num_blocks, block_size, *heads, max_requests, dtype, device)
        stores = {"channel": ChannelStore, "token": TokenStore}
        filling_bytes = sum(stores[axis].filling_bytes(shape) for axis in (kv_format.keys, kv_format.values))
        require_memory(num_blocks, self.block_bytes, device, filling_bytes)
        self.filling_bytes = filling_bytes
        self.keys = stores[kv_format.keys](shape, kv_format)
        self.values = stores[kv_format.values](shape, kv_format)

    @property
    def bytes_per_element(self) -> float:
        """Mean bytes of one number of K or V in the pool, scales included. Pure."""
        shape = self.keys.shape
        per_block = 2 * shape.num_layers * shape.block_size * shape.num_kv_heads * shape.head_dim
        return self.block_bytes / per_block

    def begin_run(self) -> None:
        """Effect: forgets the blocks that requests of an earlier run were filling."""
        self.keys.begin_run()
        self.values.begin_run()

    def begin_step(self, chunks: Sequence[Chunk], slots: torch.Tensor) -> None:
        """Before ``store`` and ``reader``. slots: [T]. Effect: settles which blocks fill up in this step."""
        self.keys.begin_step(chunks, slots)
        self.values.begin_step(chunks, slots)

    def store(self, layer: int, slots: torch.Tensor, kv: torch.Tensor) -> None:
        """slots: [T], those of ``begin_step``; kv: [T, 2, Hk, D]. Effect: writes those slots of the layer."""
        self.keys.store(layer, slots, kv[:, 0])
        self.values.store(layer, slots, kv[:, 1])

    def reader(self, slots: torch.Tensor) -> ReadLayer:
        """slots: [S] -> a function from the layer to its keys and values there, [S, 2, Hk, D], after ``store``."""
        keys, values = self.keys.reader(slots), self.values.reader(slots)
        return lambda layer: torch.stack((keys(layer), values(layer)), dim=1)


class TokenStore:
    """Codes with a scale per token and head."""

    def __init__(self, shape: CacheShape, kv_format: KVFormat) -> None:
        self.shape = shape
        self.bits = kv_format.bits
        num_slots = (shape.num_blocks + 2) * shape.block_size
        self.stored = _empty(shape, kv_format, (num_slots,), (num_slots, shape.num_kv_heads, 1))

    @staticmethod
    def filling_bytes(shape: CacheShape) -> int:
        """Memory beside the pool: none."""
        return 0

    def begin_run(self) -> None:
        """Nothing to forget."""

    def begin_step(self, chunks: Sequence[Chunk], slots: torch.Tensor) -> None:
        """Nothing to settle."""

    def store(self, layer: int, slots: torch.Tensor, x: torch.Tensor) -> None:
        """slots: [T]; x: [T, Hk, D]. Effect: writes those slots of the layer."""
        _put(self.stored, layer, slots, quantize(x, self.bits, dim=-1))

    def reader(self, slots: torch.Tensor) -> ReadLayer:
        """slots: [S] -> a function from the layer to [S, Hk, D]."""
        return lambda layer: _take(self.stored, layer, slots).dequantize(self.shape.dtype)


@dataclass(frozen=True)
class _Filling:
    """The block a request is filling, and the row it lies in."""

    request: Request
    block_id: int
    row: int

    @property
    def is_held(self) -> bool:
        return self.block_id in self.request.block_ids


@dataclass(frozen=True)
class _StepWrites:
    """What a step does to blocks: U of them are put together from what they held and the step's tokens, then kept.

    Each pair of index tensors says which of the U blocks, and which row or block of the store.
    """

    num_blocks: int  # U
    tokens: torch.Tensor  # rows of the step that are stored at all
    places: torch.Tensor  # where in the U blocks each goes: u * B + offset
    from_rows: tuple[torch.Tensor, torch.Tensor]  # were filling already
    to_codes: tuple[torch.Tensor, torch.Tensor]  # are full now
    to_rows: tuple[torch.Tensor, torch.Tensor]  # are still filling


class ChannelStore:
    """Codes with a scale per channel of a block; blocks that are being filled lie in rows of full precision."""

    def __init__(self, shape: CacheShape, kv_format: KVFormat) -> None:
        self.shape = shape
        self.bits = kv_format.bits
        num_blocks = shape.num_blocks + 2
        heads = shape.num_kv_heads, shape.head_dim
        self.stored = _empty(shape, kv_format, (num_blocks, shape.block_size), (num_blocks, 1, *heads))
        rows = (shape.num_layers, shape.max_requests, shape.block_size, *heads)
        self.rows = torch.zeros(rows, dtype=shape.dtype, device=shape.device)
        self._filling: dict[str, _Filling] = {}  # by request_id
        self._row_of_block = torch.full((num_blocks,), -1, dtype=torch.int64, device=shape.device)
        self._writes: _StepWrites | None = None

    @staticmethod
    def filling_bytes(shape: CacheShape) -> int:
        """Memory beside the pool: one block in full precision for each request."""
        per_row = shape.num_layers * shape.block_size * shape.num_kv_heads * shape.head_dim
        return shape.max_requests * per_row * shape.dtype.itemsize

    def begin_run(self) -> None:
        """Effect: no row is taken."""
        self._filling.clear()

    # ---- before the step ---------------------------------------------------------------------------------------

    def begin_step(self, chunks: Sequence[Chunk], slots: torch.Tensor) -> None:
        """Effect: plans what ``store`` does; rows go to the blocks that are not full after this step."""
        blocks: list[int] = []
        from_rows, to_codes, to_rows = [], [], []
        real = [chunk for chunk in chunks if chunk.phase != "padding"]
        before = {chunk.request.request_id: self._filling.get(chunk.request.request_id) for chunk in real}
        self._settle_rows(real)
        for chunk in real:
            end = chunk.start + chunk.num_tokens
            for index in range(chunk.start // self.shape.block_size, -(-end // self.shape.block_size)):
                u, block_id = len(blocks), chunk.block_ids[index]
                blocks.append(block_id)
                if index * self.shape.block_size < chunk.start:  # holds earlier tokens of its request
                    old = before[chunk.request.request_id]
                    goes_on = old is not None and old.request is chunk.request and old.block_id == block_id
                    assert goes_on, f"{chunk.request.request_id} goes on within a block that it was not filling"
                    from_rows.append((u, old.row))
                if (index + 1) * self.shape.block_size <= end:
                    to_codes.append((u, block_id))
                else:
                    to_rows.append((u, self._filling[chunk.request.request_id].row))
        tokens, places = self._places(blocks, slots)
        pairs = [self._pairs(pair) for pair in (from_rows, to_codes, to_rows)]
        self._writes = _StepWrites(len(blocks), tokens, places, *pairs)

    def _settle_rows(self, chunks: Sequence[Chunk]) -> None:
        """Effect: every request that ends this step within a block has a row, and nobody else a row to no purpose."""
        self._filling = {name: filling for name, filling in self._filling.items() if filling.is_held}
        for chunk in chunks:
            self._filling.pop(chunk.request.request_id, None)
        taken = {filling.row for filling in self._filling.values()}
        free = [row for row in range(self.shape.max_requests) if row not in taken]
        for chunk in chunks:
            index, offset = divmod(chunk.start + chunk.num_tokens, self.shape.block_size)
            if offset:
                assert free, "no more requests hold blocks than may run"
                self._filling[chunk.request.request_id] = _Filling(chunk.request, chunk.block_ids[index], free.pop())
        self._row_of_block.fill_(-1)
        blocks, rows = self._pairs([(filling.block_id, filling.row) for filling in self._filling.values()])
        self._row_of_block[blocks] = rows

    def _places(self, blocks: list[int], slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(rows of the step that go to the pool [n], their places in the U blocks [n])."""
        size = self.shape.block_size
        tokens = (slots < self.shape.num_blocks * size).nonzero().flatten()
        place_of_block = torch.empty_like(self._row_of_block)
        place_of_block[self._index(blocks)] = torch.arange(len(blocks), device=self.shape.device)
        stored = slots[tokens]
        return tokens, place_of_block[stored // size] * size + stored % size

    def _index(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.shape.device)

    def _pairs(self, pairs: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        return self._index([u for u, _ in pairs]), self._index([other for _, other in pairs])

    # ---- in every layer ----------------------------------------------------------------------------------------

    def store(self, layer: int, slots: torch.Tensor, x: torch.Tensor) -> None:
        """slots: [T]; x: [T, Hk, D]. Effect: the step's tokens go to rows; blocks that are full become codes."""
        writes = self._writes
        assert writes is not None, "begin_step comes first"
        heads = x.shape[1:]
        blocks = torch.zeros((writes.num_blocks, self.shape.block_size, *heads), dtype=x.dtype, device=x.device)
        # Everything is read before anything is written: a row that one request leaves may go to another at once.
        u, row = writes.from_rows
        blocks[u] = self.rows[layer][row]
        blocks.flatten(0, 1)[writes.places] = x[writes.tokens]
        u, row = writes.to_rows
        self.rows[layer][row] = blocks[u]
        u, block = writes.to_codes
        if u.shape[0]:
            _put(self.stored, layer, block, quantize(blocks[u], self.bits, dim=1))

    def reader(self, slots: torch.Tensor) -> ReadLayer:
        """slots: [S] -> a function from the layer to [S, Hk, D]. Whole blocks are widened, then their slots taken."""
        size = self.shape.block_size
        blocks, index = torch.unique(slots // size, return_inverse=True)
        places = index * size + slots % size
        rows = self._row_of_block[blocks]
        filling = (rows >= 0).nonzero().flatten()
        rows = rows[filling]

        def read(layer: int) -> torch.Tensor:
            widened = _take(self.stored, layer, blocks).dequantize(self.shape.dtype)  # [blocks, B, Hk, D]
            widened[filling] = self.rows[layer][rows]
            return widened.flatten(0, 1).index_select(0, places)

        return read


def _empty(shape: CacheShape, kv_format: KVFormat, codes: tuple[int, ...], scales: tuple[int, ...]) -> Quantized:
    """Room for all layers: uninitialised, but for the two blocks outside the pool, whose zero slot reads as zeros."""

    def room(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty((shape.num_layers, *size), dtype=dtype, device=shape.device)
        first_outside = size[0] // (shape.num_blocks + 2) * shape.num_blocks
        tensor[:, first_outside:] = 0
        return tensor

    code_dtype = torch.int8 if kv_format.bits == 8 else torch.uint8
    width = kv_format.width(shape.head_dim)
    return Quantized(
        room((*codes, shape.num_kv_heads, width), code_dtype),
        room(scales, SCALE_DTYPE),
        None if kv_format.bits == 8 else room(scales, SCALE_DTYPE),
    )


def _put(stored: Quantized, layer: int, index: torch.Tensor, new: Quantized) -> None:
    stored.codes[layer][index] = new.codes
    stored.scale[layer][index] = new.scale
    if stored.minimum is not None and new.minimum is not None:
        stored.minimum[layer][index] = new.minimum


def _take(stored: Quantized, layer: int, index: torch.Tensor) -> Quantized:
    minimum = None if stored.minimum is None else stored.minimum[layer].index_select(0, index)
    return Quantized(stored.codes[layer].index_select(0, index), stored.scale[layer].index_select(0, index), minimum)
