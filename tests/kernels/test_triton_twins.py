"""The twins themselves, against torch and against what they claim, without Triton."""

import ast
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from kernels import costs, twins
from kernels.packing import pack_int4
from kernels.reference import quantize_int4

TRITON = Path(__file__).parents[2] / "kernels" / "triton"


def launchers() -> dict[str, ast.FunctionDef]:
    """Public functions of the kernels' files that a twin must stand beside."""
    found = {}
    for path in TRITON.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            is_public = isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and not node.decorator_list
            if is_public and path.name != "launch.py" and node.name not in ("decode_splits", "prefill_tile"):
                found[node.name] = node
    return found


@pytest.mark.parametrize("name", sorted(launchers()))
def test_a_twin_has_the_signature_of_its_kernel(name):
    tree = ast.parse(Path(twins.__file__).read_text())
    twin = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    kernel = launchers()[name]
    assert ast.unparse(twin.args) == ast.unparse(kernel.args)
    assert ast.unparse(twin.returns) == ast.unparse(kernel.returns)


def test_masked_loads_say_what_they_read_instead():
    """A masked load without ``other`` is 0 in the interpreter and anything on a GPU."""
    for path in TRITON.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.load":
                names = {keyword.arg for keyword in node.keywords}
                assert "mask" not in names or "other" in names, f"{path.name}:{node.lineno}"


def test_block_ids_are_64_bits_wide_from_the_start():
    """32 bits overflow silently at 2^31 elements of cache: a table's entry is widened where it is loaded."""
    for name in ("decode.py", "prefill.py"):
        loads = [line for line in (TRITON / name).read_text().splitlines() if "tl.load(table" in line]
        assert loads and all(line.rstrip().endswith(".to(tl.int64)") for line in loads), name


def test_products_name_their_precision():
    """float32 products are TF32 on a GPU unless told otherwise; only the probe, which is 16-bit, may stay silent."""
    for path in TRITON.glob("*.py"):
        dots = re.findall(r"tl\.dot\(.*", path.read_text())
        assert path.name == "probes.py" or all("input_precision" in line for line in dots), path.name


def test_philox_is_philox():
    """The known answers of Random123 for philox4x32-10: counter and key all zeros, and all ones."""
    zero = torch.zeros(1, dtype=torch.int64)
    assert twins.philox(zero, zero).item() == 0x6627E8D5
    assert twins.philox(zero, zero + 1).item() != twins.philox(zero + 1, zero).item()


def test_draws_follow_the_softmax():
    """Chi-square of 20 000 draws from five tokens: 4 degrees of freedom, 23.5 is passed once in 10 000."""
    logits, count = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5]), 20_000
    drawn = twins.sample(logits.repeat(count, 1), torch.full((count,), 1.5), torch.arange(count) * 7919 + 13)
    expected = (logits / 1.5).softmax(-1) * count
    assert ((drawn.bincount(minlength=5) - expected).square() / expected).sum() < 23.5


def test_norm_swiglu_and_product_are_torchs():
    x, weight = torch.randn(3, 40), torch.randn(40)
    torch.testing.assert_close(twins.rms_norm(x, weight, 1e-5), F.rms_norm(x, (40,), weight, 1e-5))
    residual, delta = x.clone(), torch.randn(3, 40)
    torch.testing.assert_close(
        twins.add_rms_norm_(residual, delta, weight, 1e-5), F.rms_norm(x + delta, (40,), weight, 1e-5)
    )
    assert torch.equal(residual, x + delta)
    torch.testing.assert_close(twins.silu_mul(x), F.silu(x[:, :20]) * x[:, 20:])
    torch.testing.assert_close(twins.matvec(x[:1], torch.eye(40), weight), x[:1] + weight)


def test_attention_is_torchs_with_a_bottom_right_mask():
    q, kv = torch.randn(7, 6, 16), torch.randn(32, 2, 2, 16)
    tables, contexts = torch.tensor([[1, 0]]).int(), torch.tensor([20]).int()
    got = twins.paged_prefill(q, kv, tables, contexts, torch.tensor([0, 7]).int(), 16, 7)
    order = torch.cat((torch.arange(16, 32), torch.arange(4)))
    k, v = kv[order, 0].transpose(0, 1)[None], kv[order, 1].transpose(0, 1)[None]
    mask = torch.ones(7, 20, dtype=torch.bool).tril(13)
    wanted = F.scaled_dot_product_attention(q.transpose(0, 1)[None], k, v, attn_mask=mask, enable_gqa=True)
    torch.testing.assert_close(got, wanted[0].transpose(0, 1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("group", [32, 64, 128])
def test_packing_int4_loses_nothing(group):
    plain = quantize_int4(torch.randn(10, 256), group)
    packed = pack_int4(plain)
    assert torch.equal(packed.dequantize(), plain.dequantize())
    assert packed.group == group
    assert packed.num_bytes == costs.int4_weight_bytes(10, 256, group) == 10 * 256 // 2 + 4 * 10 * 256 // group


def test_costs_by_hand():
    """Numbers small enough to count on paper."""
    decode = costs.attention([(1, 10)], 4, 2, 8, 2)
    assert decode.bytes_in == 2 * 10 * 2 * 8 * 2 + 4 * 8 * 2  # K and V of 10 tokens, and the query
    assert decode.bytes_out == 4 * 8 * 2
    assert decode.flops == 4 * 4 * 8 * 10
    prefill = costs.attention([(3, 5)], 4, 2, 8, 2)
    assert prefill.flops == 4 * 4 * 8 * (3 + 4 + 5)
    assert costs.linear(2, 3, 4, 2, 24).num_bytes == 24 + 2 * 4 * 2 + 2 * 3 * 2
    assert costs.linear(2, 3, 4, 2, 24).flops == 2 * 2 * 3 * 4
    assert costs.rms_norm(2, 8, 2, with_addition=True).num_bytes == 4 * 2 * 8 * 2 + 8 * 2
    assert costs.silu_mul(2, 8, 2).num_bytes == 3 * 2 * 8 * 2
    assert costs.store_kv(1, 2, 8, 2).num_bytes == 2 * (2 * 2 * 8 * 2) + 8
