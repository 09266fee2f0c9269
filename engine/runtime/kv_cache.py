"""The KV tensors of a run: one slot per token position of every block, in every layer, and two slots of its own.

It decides only where keys and values lie. Which block belongs to whom is the block pool's business. Two extra slots
stand after the pool's: the *zero* slot is never written and always reads as zeros (it stands in for positions that
are not there, so that whatever a dead slot holds, even NaN, has no effect), and the *trash* slot takes the writes of
padding rows. Follows PagedAttention (arXiv 2309.06180).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import psutil
import torch

from engine.lab.scenario import ScenarioError
from engine.model.spec import ModelSpec
from engine.scheduling.decision import Chunk


class KVCache:
    """Keys and values, [L, N * B + 2, 2, Hk, D]: in a slot first the key heads, then the value heads."""

    def __init__(
        self, spec: ModelSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Raises: ScenarioError when the device has too little memory for that many blocks."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.zero_slot = num_blocks * block_size
        self.trash_slot = self.zero_slot + 1
        self.block_bytes = kv_block_bytes(spec, block_size, dtype)
        require_memory(num_blocks, self.block_bytes, device)
        shape = (spec.num_layers, num_blocks * block_size + 2, 2, spec.num_kv_heads, spec.head_dim)
        # Left uninitialised: memory is taken when a slot is first written, and unwritten slots are never read.
        self.slots = torch.empty(shape, dtype=dtype, device=device)
        self.slots[:, self.zero_slot :] = 0.0

    @property
    def bytes_per_element(self) -> float:
        """Bytes of one number of K or V. Pure."""
        return float(self.slots.dtype.itemsize)

    def begin_run(self) -> None:
        """Before the first step of a run. Here there is nothing to forget."""

    def begin_step(self, chunks: Sequence[Chunk], slots: torch.Tensor) -> None:
        """Before ``store`` and ``reader`` of a step. Here a slot is all there is to know."""

    def store(self, layer: int, slots: torch.Tensor, kv: torch.Tensor) -> None:
        """slots: [T] int64; kv: [T, 2, Hk, D]. Effect: writes those slots of the layer."""
        self.slots[layer].index_copy_(0, slots, kv)

    def gather(self, layer: int, slots: torch.Tensor) -> torch.Tensor:
        """slots: [S] int64 -> keys and values [S, 2, Hk, D], a copy. Pure."""
        return self.slots[layer].index_select(0, slots)

    def export_blocks(self, block_ids: Sequence[int]) -> torch.Tensor:
        """Keys and values of whole blocks in all layers, [L, n * B, 2, Hk, D] on the CPU: a copy. Pure."""
        return self.slots.index_select(1, self._slots_of(block_ids)).cpu()

    def import_blocks(self, block_ids: Sequence[int], kv: torch.Tensor) -> None:
        """kv as ``export_blocks`` gives it. Effect: these blocks hold it."""
        self.slots.index_copy_(1, self._slots_of(block_ids), kv.to(self.slots.device))

    def _slots_of(self, block_ids: Sequence[int]) -> torch.Tensor:
        blocks = torch.tensor(block_ids, dtype=torch.int64, device=self.slots.device)
        return (blocks[:, None] * self.block_size + torch.arange(self.block_size, device=blocks.device)).flatten()

    def reader(self, slots: torch.Tensor) -> Callable[[int], torch.Tensor]:
        """slots: [S] -> a function from the layer to ``gather`` of them; a step reads the same slots in every layer."""
        return lambda layer: self.gather(layer, slots)


def kv_block_bytes(spec: ModelSpec, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block in all layers. Pure."""
    return (
        2  # key + value
        * spec.num_layers
        * block_size
        * spec.num_kv_heads
        * spec.head_dim
        * dtype.itemsize
    )


def require_memory(num_blocks: int, block_bytes: int, device: torch.device, other_bytes: int = 0) -> None:
    """Raises: ScenarioError when so many blocks, and ``other_bytes`` beside them, do not fit. Pure."""
    needed = num_blocks * block_bytes + other_bytes
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    if needed > free:
        raise ScenarioError(
            f"limits.num_blocks {num_blocks} needs {needed / 1e9:.2f} GB for keys and values and "
            f"{free / 1e9:.2f} GB of memory are free; allowed here: up to "
            f"{max((free - other_bytes) // block_bytes, 0)}",
            "limits.num_blocks",
        )
