"""The checks can fail: one broken index in a kernel, and the check of that kernel must see it.

Each mutation changes one place of a kernel's source and stays inside the buffers, so that it gives wrong numbers and
no crash.
"""

import ast
import importlib.util
import inspect
import types
from pathlib import Path

import pytest
import torch

from kernels.triton import decode, matmul_int4, matmul_int8, norm, prefill, probes, rope, sampling, store, swiglu
from tests.kernels.interpreted import check_dense, check_linear, check_probes, check_sampling, check_store
from tests.kernels.interpreted.paged import assert_decode, assert_prefill, paged

F32 = torch.float32
ROWS = {"num_tokens": 7, "heads": 2, "head_dim": 64, "dtype": F32}
LINEAR = {"num_rows": 7, "num_outputs": 48, "num_inputs": 64, "dtype": F32, "bias": True}
INT4 = {"num_rows": 7, "num_outputs": 48, "num_inputs": 128, "group": 32, "dtype": F32}


def stores(kernels):
    check_store.assert_store(kernels, ROWS)


def stores_int8(kernels):
    check_store.assert_store_int8(kernels, ROWS)


def norms(kernels):
    check_dense.assert_norm(kernels, 3, 576, F32)


def ropes(kernels):
    check_dense.assert_rope(kernels, 3, (3, 1), 64, F32, norm=True, rope=True)


def swiglus(kernels):
    check_dense.assert_swiglu(kernels, 3, 576, F32)


def decodes(kernels):
    assert_decode(kernels, paged([(1, 200), (1, 0), (1, 32)]), num_splits=4)


def decodes_int8(kernels):
    assert_decode(kernels, paged([(1, 40)], int8=True))


def prefills(kernels):
    assert_prefill(kernels, paged([(7, 30), (64, 64)], group=1))


def prefills_groups(kernels):
    assert_prefill(kernels, paged([(7, 30)], group=3))


def prefills_int8(kernels):
    assert_prefill(kernels, paged([(7, 30)], int8=True))


def matvecs(kernels):
    check_linear.assert_matvec(kernels, **LINEAR)


def linears_int8(kernels):
    check_linear.assert_linear_int8(kernels, **LINEAR)


def linears_int4(kernels):
    check_linear.assert_linear_int4(kernels, **INT4)


def matvecs_int4(kernels):
    check_linear.assert_linear_int4(kernels, **{**INT4, "num_rows": 1})


# (kernel, check, what stands there, what is put in its place)
MUTATIONS = [
    (store, stores, "slot * cache_stride + at, row", "slot * cache_stride + (at ^ 1), row"),
    (store, stores, "if slot >= 0:\n        at = tl", "if slot >= 20:\n        at = tl"),
    (store, stores_int8, "slot * scale_stride + head, scale", "slot * scale_stride + (head ^ 1), scale"),
    (store, stores_int8, "(x / scale + ROUNDER) - ROUNDER", "x / scale"),
    (norm, norms, "delta_ptr + row * delta_stride + column", "delta_ptr + row * delta_stride + (column ^ 1)"),
    (norm, norms, "out_ptr + row * NUM_COLUMNS + column", "out_ptr + row * NUM_COLUMNS + (column ^ 1)"),
    (rope, ropes, "sin_ptr + angle_at", "sin_ptr + (angle_at ^ 1)"),
    (rope, ropes, "b * cos - a * minus_sin", "b * cos + a * minus_sin"),
    (rope, ropes, "head < num_q_heads", "head <= num_q_heads"),
    (swiglu, swiglus, "row * stride + SIZE + column", "row * stride + SIZE + (column ^ 1)"),
    (decode, decodes, "+ token % BLOCK_SIZE", "+ (token + 1) % BLOCK_SIZE"),
    (decode, decodes, "present = token < end", "present = token <= end"),
    (decode, decodes, "kv_head * GROUP + member", "member * NUM_KV_HEADS + kv_head"),
    (decode, decodes, "token // BLOCK_SIZE, mask", "(token + 1) // BLOCK_SIZE, mask"),
    (decode, decodes, "begin = part * tokens_per_part", "begin = part * TILE"),
    (decode, decodes, "weight = tl.exp2(best - largest)", "weight = tl.exp2(best - best)"),
    (decode, decodes, "acc_ptr + part[:, None] * HEAD_DIM", "acc_ptr + (part ^ 1)[:, None] * HEAD_DIM"),
    (decode, decodes, 'tl.where(largest == float("-inf"), 0.0, largest)', "largest"),
    (decode, decodes_int8, "(2 * NUM_KV_HEADS) + NUM_KV_HEADS + kv_head", "(2 * NUM_KV_HEADS) + kv_head"),
    (prefill, prefills, "+ token % BLOCK_SIZE", "+ (token + 1) % BLOCK_SIZE"),
    (prefill, prefills, "num_before = context_len - num_queries", "num_before = 0 * context_len"),
    (prefill, prefills, "token[None, :] <= last_seen[:, None]", "token[None, :] < last_seen[:, None] + 2"),
    (prefill, prefills, "num_before + first_query + 1, 0", "num_before + first_query + BLOCK_Q, 0"),
    (prefill, prefills, "row = (first_row + query)", "row = query"),
    (prefill, prefills_groups, "kv_head * GROUP + m % GROUP", "m % GROUP * NUM_KV_HEADS + kv_head"),
    (prefill, prefills_int8, "(2 * NUM_KV_HEADS) + NUM_KV_HEADS + kv_head", "(2 * NUM_KV_HEADS) + kv_head"),
    (matmul_int8, matvecs, "x_ptr + k, mask", "x_ptr + (k ^ 1), mask"),
    (matmul_int8, linears_int8, "x_row + k[None, :]", "x_row + (k ^ 1)[None, :]"),
    (matmul_int4, matvecs_int4, "high * x_high[:, None, :]", "high * x_low[:, None, :]"),
    (matmul_int4, matvecs_int4, "tl.sum(x_low + x_high, axis=1)", "tl.sum(x_low, axis=1)"),
    (matmul_int4, linears_int4, "(2 * HALF) + k % HALF", "(2 * HALF) + (k + 1) % HALF"),
    (sampling, check_sampling.assert_sampling, "tl.load(seed_ptr + row)", "tl.load(seed_ptr)"),
    (sampling, check_sampling.assert_sampling, "piece * BLOCK + tl.argmax", "tl.argmax"),
    (sampling, check_sampling.assert_sampling, "best_ptr + row * num_pieces + piece", "best_ptr + piece"),
    (probes, check_probes.assert_probes, "at = begin + tl.arange", "at = first + tl.arange"),
    (probes, check_probes.assert_probes, "tl.load(x_ptr + at, mask=at < num_elements, other=0.0), mask", "0.0, mask"),
    (probes, check_probes.assert_probes, "b_ptr + b_at", "b_ptr + (b_at ^ 1)"),
    (probes, check_probes.assert_probes, "c = c * 0.5 + 0.25", "c = c * 0.5 + 0.5"),
]


def rewritten(module: types.ModuleType, folder, old: str = "", new: str = "") -> types.ModuleType:
    """The module again, from a file in which ``old`` has become ``new``."""
    source = inspect.getsource(module)
    assert source.count(old) == 1 or not old, f"{old!r} stands {source.count(old)} times in {module.__name__}"
    path = folder / f"{module.__name__.rsplit('.', 1)[1]}.py"
    path.write_text(source.replace(old, new) if old else source)
    spec = importlib.util.spec_from_file_location(f"mutant_{path.stem}", path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.parametrize(
    ("module", "check", "old", "new"), MUTATIONS, ids=[f"{m[1].__name__}: {m[3]}" for m in MUTATIONS]
)
def test_a_broken_index_is_seen(module, check, old, new, tmp_path):
    with pytest.raises(AssertionError):
        check(rewritten(module, tmp_path, old, new))


@pytest.mark.parametrize("module", list(dict.fromkeys(m[0] for m in MUTATIONS)), ids=lambda module: module.__name__)
def test_the_same_module_unbroken_passes(module, tmp_path):
    again = rewritten(module, tmp_path)
    for check in dict.fromkeys(check for found, check, _, _ in MUTATIONS if found is module):
        check(again)


def test_every_kernel_has_a_mutation():
    """Each function under @triton.jit holds the place of at least one of them."""
    for path in sorted(Path(store.__file__).parent.glob("*.py")):
        source = path.read_text()
        places = [m[2] for m in MUTATIONS if Path(m[0].__file__) == path]
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and "triton.jit" in "".join(map(ast.unparse, node.decorator_list)):
                text = ast.get_source_segment(source, node)
                assert any(place in text for place in places), f"no mutation of {path.stem}.{node.name}"
