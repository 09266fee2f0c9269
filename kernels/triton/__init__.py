"""Triton kernels for a GPU. Each file is one kernel and one lesson: what it moves, and why it is cut the way it is.

Importing this package imports triton, which exists for Linux only, so nothing imports it before a GPU was found
(``engine.runtime.kernels_choice``). The launchers have the signatures of ``kernels.twins`` and never look at a tensor's
values: no synchronisation, nothing but shapes, so that a CUDA graph can capture them and a compiler without a GPU can
compile exactly what they would launch.

House rules of every kernel: arithmetic in float32, bfloat16 only as it is loaded, stored or multiplied by ``tl.dot``;
every masked load says what it reads instead (``other=``); a block id becomes int64 before it is multiplied by anything.
"""

from kernels.triton.decode import decode_splits, paged_decode
from kernels.triton.matmul_int4 import linear_int4
from kernels.triton.matmul_int8 import linear_int8, matvec
from kernels.triton.norm import add_rms_norm_, rms_norm
from kernels.triton.prefill import paged_prefill
from kernels.triton.rope import norm_rope_
from kernels.triton.sampling import sample
from kernels.triton.store import store_kv, store_kv_int8
from kernels.triton.swiglu import silu_mul

__all__ = [
    "add_rms_norm_",
    "decode_splits",
    "linear_int4",
    "linear_int8",
    "matvec",
    "norm_rope_",
    "paged_decode",
    "paged_prefill",
    "rms_norm",
    "sample",
    "silu_mul",
    "store_kv",
    "store_kv_int8",
]
