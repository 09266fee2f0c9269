"""Make bfloat16 honest in Triton's interpreter, for these tests only.

The interpreter keeps a bfloat16 as its 16 raw bits: casting from float32 cuts instead of rounding, and ``tl.dot``
multiplies the bits. Our kernels touch bfloat16 in three ways only (load and widen, narrow and store, ``tl.dot``), so
three places are patched: casts go through exact float32 and round to nearest even, dot widens its operands.
Arithmetic on bfloat16 has no patch but an error: a kernel that did it would be right on a GPU and wrong here, and our
rule is that none does. Built on private methods of the interpreter: ``check_bf16`` is the first to fail when they
change.
"""

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def _is_bf16(handle) -> bool:
    return handle.dtype.scalar == tl.bfloat16


def _widened(handle):
    if not _is_bf16(handle):
        return handle
    return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def _narrowed(values: np.ndarray):
    rounded = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).to(torch.bfloat16)
    return TensorHandle(rounded.view(torch.int16).numpy().view(np.uint16), tl.bfloat16)


def install() -> None:
    """Effect: patches the interpreter of this process, once."""
    if getattr(InterpreterBuilder, "honest_bf16", False):
        return
    cast, dot, binary, unary = (
        getattr(InterpreterBuilder, name) for name in ("cast_impl", "create_dot", "binary_op", "unary_op")
    )

    def cast_impl(self, source, target):
        if target.scalar == tl.bfloat16 and not _is_bf16(source):
            return _narrowed(source.data.astype(np.float32))
        return source if target.scalar == tl.bfloat16 else cast(self, _widened(source), target)

    def create_dot(self, a, b, acc, *rest):
        return dot(self, _widened(a), _widened(b), acc, *rest)

    def binary_op(self, left, right, op):
        assert not (_is_bf16(left) or _is_bf16(right)), f"{op} on bfloat16: widen it first"
        return binary(self, left, right, op)

    def unary_op(self, value, op):
        assert not _is_bf16(value), f"{op} on bfloat16: widen it first"
        return unary(self, value, op)

    InterpreterBuilder.cast_impl = cast_impl
    InterpreterBuilder.create_dot = create_dot
    InterpreterBuilder.binary_op = binary_op
    InterpreterBuilder.unary_op = unary_op
    InterpreterBuilder.get_bf16 = lambda self, value: _narrowed(np.array([value], dtype=np.float32))
    InterpreterBuilder.honest_bf16 = True
