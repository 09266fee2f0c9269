"""Quantized weights: the product is that of the rounded weights, the error is what rounding allows, bytes are true."""

from __future__ import annotations

import pytest
import torch

import engine.model.quant as quant
from engine.model.load import decoder_from, load_model
from engine.model.ops import TorchOps
from engine.model.quant import Int4Product, Int8Product, QuantizedOps, ops_for
from engine.model.spec import ModelError
from engine.model.weights import decode_weight_bytes, num_decode_parameters
from kernels.reference import quantize_int4, quantize_int8
from tests.model_kit import Rig, random_tensors, small_spec

FORMATS = [("int8", 32), ("int4", 32), ("int4", 64)]
TOLERANCES = {torch.float32: 1e-6, torch.bfloat16: 3e-3, torch.float16: 5e-4}  # of |x| |w|: a rounding at the end


def weight(num_outputs=96, num_inputs=192, seed=0) -> torch.Tensor:
    """Outputs of very different size, so that a scale on the wrong axis or applied twice shows."""
    values = torch.randn((num_outputs, num_inputs), generator=torch.Generator().manual_seed(seed))
    return values * torch.logspace(-2, 1, num_outputs)[:, None]


def assert_near(got: torch.Tensor, x: torch.Tensor, values: torch.Tensor, bias: float | torch.Tensor = 0.0) -> None:
    """got = x @ values.T + bias within the rounding of got's dtype, measured against the lengths of the two vectors."""
    x = x.float()
    sizes = x.norm(dim=1)[:, None] * values.norm(dim=1) + torch.as_tensor(bias).abs()
    error = (got.float() - (x @ values.T + bias)).abs() / sizes
    assert error.max() < TOLERANCES[got.dtype]


def rounded(values: torch.Tensor, weights: str, group: int) -> torch.Tensor:
    return (quantize_int8(values) if weights == "int8" else quantize_int4(values, group)).dequantize()


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("num_rows", [1, 3, 40])
@pytest.mark.parametrize(("weights", "group"), FORMATS)
def test_the_product_is_that_of_the_rounded_weights(weights, group, num_rows, dtype):
    bias = torch.randn(96, generator=torch.Generator().manual_seed(1))
    x = torch.randn((num_rows, 192), generator=torch.Generator().manual_seed(2))
    linear = QuantizedOps(weights, group).linear(weight().to(dtype), bias.to(dtype))
    got = linear(x.to(dtype))
    assert got.dtype == dtype and got.shape == (num_rows, 96)
    assert_near(got, x.to(dtype), rounded(weight().to(dtype), weights, group), bias.to(dtype).float())


@pytest.mark.parametrize(("weights", "group"), FORMATS)
def test_the_error_against_the_float_product_is_what_rounding_allows(weights, group):
    """Each weight moves by at most half a step: the largest of its output over 127, or its group's range over 15."""
    x = torch.randn((5, 192), generator=torch.Generator().manual_seed(2))
    if weights == "int8":
        step = (weight().abs().amax(dim=1) / 127)[:, None].expand(-1, 192)
    else:
        grouped = weight().unflatten(1, (-1, group))
        step = ((grouped.amax(-1) - grouped.amin(-1)) / 15).repeat_interleave(group, dim=1)
    allowed = x.abs() @ (0.5 * 1.02 * step).T  # scale and minimum are themselves float16
    error = (QuantizedOps(weights, group).linear(weight(), None)(x) - x @ weight().T).abs()
    assert (error <= allowed).all()
    assert error.mean() > 0.02 * allowed.mean(), "a bound a hundred times too wide would prove nothing"


@pytest.mark.parametrize("num_outputs", [1, 30, 96])
@pytest.mark.parametrize(("weights", "group"), FORMATS)
def test_tiles_do_not_change_the_product(monkeypatch, weights, group, num_outputs):
    x = torch.randn((4, 192), generator=torch.Generator().manual_seed(2))
    monkeypatch.setattr(quant, "TILE_ELEMENTS", 7 * 192)
    got = QuantizedOps(weights, group).linear(weight(num_outputs), None)(x)
    assert_near(got, x, rounded(weight(num_outputs), weights, group))


@pytest.mark.parametrize(
    ("weights", "missing"), [("int8", "_weight_int8pack_mm"), ("int4", "_weight_int4pack_mm_for_cpu")]
)
def test_without_torchs_own_kernel_or_with_a_wrong_one_tiles_take_over(monkeypatch, weights, missing):
    def wrong(x, packed, *others):
        return torch.zeros((x.shape[0], packed.shape[0]), dtype=x.dtype)

    x = torch.randn((1, 192), generator=torch.Generator().manual_seed(2)).bfloat16()
    for replacement in (wrong, None):
        if replacement is None:
            monkeypatch.delattr(torch, missing)
        else:
            monkeypatch.setattr(torch, missing, replacement)
        got = QuantizedOps(weights).linear(weight().bfloat16(), None)(x)
        assert_near(got, x, rounded(weight().bfloat16(), weights, 32))


def test_a_weight_that_is_all_zero_stays_zero():
    for weights in ("int8", "int4"):
        for dtype in TOLERANCES:
            out = QuantizedOps(weights).linear(torch.zeros((8, 64), dtype=dtype), None)(
                torch.ones((2, 64), dtype=dtype)
            )
            assert out.tolist() == [[0.0] * 8] * 2


def test_bytes_are_those_of_the_tensors_a_product_reads():
    def held(*tensors: torch.Tensor) -> int:
        return sum(t.numel() * t.element_size() for t in tensors)

    int8 = Int8Product(quantize_int8(weight()), fused=False)
    assert QuantizedOps("int8").linear_bytes(96, 192, torch.bfloat16) == held(int8.q, int8.scale)
    for group in (32, 64):
        for fused in (False, True) if QuantizedOps("int4")._has_int4 else (False,):
            int4 = Int4Product(quantize_int4(weight(), group), fused)
            scales = (int4._affine,) if fused else (int4.scale, int4.minimum)
            expected = QuantizedOps("int4", group).linear_bytes(96, 192, torch.bfloat16)
            assert expected == held(int4.packed, *scales) == 96 * 192 // 2 + 96 * 192 // group * 4


def test_bytes_of_a_model_count_matrices_norms_and_biases_once():
    spec = small_spec(hidden_size=64, intermediate_size=96, head_dim=16, has_qkv_bias=True)
    assert decode_weight_bytes(spec, torch.bfloat16, TorchOps()) == 2 * num_decode_parameters(spec)
    matrices = 2 * (128 * 64 + 64 * 64 + 3 * 96 * 64) + 256 * 64
    outputs = 2 * (128 + 64 + 2 * 96 + 64) + 256
    vectors = 2 * (2 * 64 + 128) + 64
    assert decode_weight_bytes(spec, torch.bfloat16, QuantizedOps("int8")) == matrices + 4 * outputs + 2 * vectors
    in_layers = matrices - 256 * 64
    expected = in_layers // 2 + in_layers // 32 * 4 + 256 * 64 + 256 * 4 + 4 * vectors
    assert decode_weight_bytes(spec, torch.float32, QuantizedOps("int4")) == expected


def test_a_whole_decoder_with_fewer_bits_is_further_from_float32():
    spec = small_spec(hidden_size=64, intermediate_size=96, head_dim=16, tied_head=True)
    tensors = random_tensors(spec)
    exact = Rig(decoder_from(spec, tensors)).last_logits(range(40), [40])
    errors = {}
    for weights in ("int8", "int4"):
        decoder = decoder_from(spec, tensors, weights=weights)
        assert torch.equal(decoder.embedding, tensors.read("model.embed_tokens.weight")), "rows are read as they are"
        logits = Rig(decoder).last_logits(range(40), [17, 1])
        torch.testing.assert_close(Rig(decoder).last_logits(range(40), [40]), logits, atol=1e-4, rtol=1e-4)
        errors[weights] = float((logits - exact).abs().max() / exact.abs().max())
    assert 0 < errors["int8"] < 0.05 < errors["int4"] < 0.7


def test_the_head_is_int8_in_both():
    x = torch.randn((3, 192), generator=torch.Generator().manual_seed(2))
    for weights in ("int8", "int4"):
        assert_near(QuantizedOps(weights).head(weight())(x), x, rounded(weight(), "int8", 32))
        assert QuantizedOps(weights).head_bytes(96, 192, torch.float32) == 96 * 192 + 96 * 4


def test_a_model_stored_in_groups_of_4_bits_loses_nothing():
    """Q4_1 is this very format: weights that came from it are found again, so int4 gives back its numbers."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randint(0, 16, (96, 6, 32), generator=generator)
    q[..., 0], q[..., 1] = 0, 15
    scale, minimum = (torch.rand((96, 6, 1), generator=generator).half() for _ in range(2))
    stored = (q * scale.float() - minimum.float()).flatten(1)
    found = rounded(stored, "int4", 32)
    assert (found - stored).abs().max() <= 15 * 2**-11 * scale.max()


def test_a_loaded_model_says_how_its_weights_are_kept(tmp_path):
    plain = load_model("tiny-random", models_dir=tmp_path, device="cpu")
    assert plain.weights is None and plain.weight_bytes_per_element == 4
    int8 = load_model("tiny-random", models_dir=tmp_path, device="cpu", weights="int8")
    assert int8.weights == "int8" and int8.weight_bytes_per_element == 1 + 4 / 128
    assert int8.info.num_parameters == plain.info.num_parameters
    assert 0.25 < int8.info.weight_bytes / plain.info.weight_bytes < 0.27
    int4 = load_model("tiny-random", "bfloat16", models_dir=tmp_path, device="cpu", weights="int4")
    assert int4.weight_bytes_per_element == int8.weight_bytes_per_element, "the head is int8 in both"
    assert int4.info.weight_bytes < 0.66 * int8.info.weight_bytes


def test_formats_and_groups_there_are_not_are_refused():
    assert type(ops_for(None)) is TorchOps
    with pytest.raises(ModelError, match="weights is 'int2'; allowed: null, int8, int4"):
        ops_for("int2")
    with pytest.raises(ModelError, match="group is 48 inputs; allowed: 32, 64"):
        QuantizedOps("int4", 48)
    with pytest.raises(ModelError, match="groups of 64 inputs and this model has a product of 96; use int8"):
        QuantizedOps("int4", 64).linear(weight(8, 96), None)
