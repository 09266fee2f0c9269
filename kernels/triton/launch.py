"""What the launchers share: sizes rounded to what a tile can have, and the checks that stand above every launch.

A kernel sees addresses and strides, nothing else: a wrong one reads foreign memory without a word. So each launcher
states by assertion which layout it needs. These are asserts, not errors: a caller inside this project is wrong, not a
user. Nothing here touches a device.

Every launch says ``enable_fp_fusion=True``: a product and a sum may become one instruction, which the kernels'
tolerances allow and their speed needs. Left unsaid, the answer depends on the version of Triton.
"""

from __future__ import annotations

import torch

FLOAT_TYPES = (torch.float32, torch.bfloat16, torch.float16)
SMALLEST_DOT = 16  # tl.dot multiplies tiles of at least 16 x 16


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n. Pure."""
    return 1 << max(n - 1, 0).bit_length()


def ceil_div(n: int, size: int) -> int:
    """How many tiles of ``size`` cover n. Pure."""
    return -(-n // size)


def dot_size(n: int) -> int:
    """n rounded up to a size that tl.dot takes. Pure."""
    return max(next_power_of_2(n), SMALLEST_DOT)


def warps_for(num_elements: int, per_thread: int = 8) -> int:
    """Warps so that a thread holds ``per_thread`` elements of a tile: 8 bfloat16 are the widest load. Pure."""
    return min(max(next_power_of_2(num_elements // (32 * per_thread)), 1), 8)


def check_rows(name: str, x: torch.Tensor, dim: int) -> None:
    """x has ``dim`` dimensions and all but the first are packed, so that one stride describes it."""
    assert x.dim() == dim, f"{name} has {x.dim()} dimensions, not {dim}"
    packed = 1
    for size, stride in zip(reversed(x.shape[1:]), reversed(x.stride()[1:]), strict=True):
        assert size == 1 or stride == packed, f"{name}'s rows must be packed: strides {x.stride()} of {tuple(x.shape)}"
        packed *= size


def check_float(name: str, *tensors: torch.Tensor) -> None:
    """All of one floating type that the kernels know, on one device."""
    first = tensors[0]
    assert first.dtype in FLOAT_TYPES, f"{name} is {first.dtype}; the kernels know float32, bfloat16 and float16"
    for tensor in tensors:
        assert tensor.dtype == first.dtype, f"{name}: {tensor.dtype} beside {first.dtype}"
        assert tensor.device == first.device, f"{name}: {tensor.device} beside {first.device}"


def check_cache(cache: torch.Tensor, scales: torch.Tensor | None, dtype: torch.dtype) -> None:
    """cache: [slots, 2, Hk, D], one layer; scales: [slots, 2, Hk] float32, exactly where the cache is int8."""
    check_rows("cache", cache, 4)
    assert cache.shape[1] == 2, "a slot holds key heads, then value heads"
    assert cache.dtype == (dtype if scales is None else torch.int8), f"the cache is {cache.dtype} beside {dtype} rows"
    if scales is not None:
        assert scales.dtype == torch.float32 and scales.is_contiguous(), "scales are float32, packed"
        assert scales.shape == cache.shape[:3], "one scale per slot, K or V, and head"


def check_tables(block_tables: torch.Tensor, context_lens: torch.Tensor) -> None:
    """block_tables: [R, W] int32; context_lens: [R] int32."""
    check_rows("block_tables", block_tables, 2)
    assert block_tables.dtype == context_lens.dtype == torch.int32, "block tables and context lengths are int32"
    assert context_lens.is_contiguous() and context_lens.shape == block_tables.shape[:1], "one context length per table"
