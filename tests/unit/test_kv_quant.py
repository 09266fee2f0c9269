"""KV formats: rounding within half a step, honest bytes, and what a scale per token does to keys with an outlier."""

from __future__ import annotations

import pytest
import torch

from engine.runtime.kv_quant import KVFormat, kv_format, quantize, scale_axis

BLOCK, HEADS, DIM = 16, 2, 64
STEPS = {8: 127, 4: 15}


def keys(outlier: float = 1.0, num_blocks: int = 32) -> torch.Tensor:
    """[blocks, B, Hk, D] of normal numbers; channel 5 of every head is ``outlier`` times as large."""
    k = torch.randn((num_blocks, BLOCK, HEADS, DIM), generator=torch.Generator().manual_seed(0))
    k[..., 5] *= outlier
    return k


@pytest.mark.parametrize("dim", [1, -1])
@pytest.mark.parametrize("bits", [8, 4])
def test_every_number_moves_by_at_most_half_a_step(bits, dim):
    k = keys() * torch.logspace(-3, 3, DIM)
    spread = k.abs().amax(dim, keepdim=True) if bits == 8 else k.amax(dim, keepdim=True) - k.amin(dim, keepdim=True)
    step = spread / STEPS[bits]
    error = (quantize(k, bits, dim).dequantize(torch.float32) - k).abs()
    assert (error <= 0.51 * step).all(), "the stored scale is float16, so a little more than half"
    assert (error > 0.4 * step).any(), "a bound that nothing comes near would prove nothing"


@pytest.mark.parametrize("value", [0.0, 1e-9, 3.25, -70_000.0, 1e30])
@pytest.mark.parametrize("bits", [8, 4])
def test_numbers_that_are_all_alike_or_beyond_the_scale_stay_finite(bits, value):
    got = quantize(torch.full((1, 4, 1, 2), value), bits, dim=1).dequantize(torch.float32)
    assert got.isfinite().all()
    if abs(value) < 60_000:
        assert (got - value).abs().max() <= 0.01 * abs(value) + 1e-7


@pytest.mark.parametrize("dim", [1, -1])
@pytest.mark.parametrize("bits", [8, 4])
def test_rounding_what_was_rounded_changes_nothing(bits, dim):
    once = quantize(keys(), bits, dim).dequantize(torch.float32)
    again = quantize(once, bits, dim).dequantize(torch.float32)
    assert (again - once).abs().max() <= 1e-3 * once.abs().max()


def test_two_codes_in_a_byte_come_back_in_place():
    x = torch.arange(16.0).repeat(1, 1, 1, 1)  # 0..15 with scale 1 and minimum 0
    stored = quantize(x, 4, dim=-1)
    assert stored.codes.shape == (1, 1, 1, 8)
    assert torch.equal(stored.dequantize(torch.float32), x)


def rms_error(k: torch.Tensor, bits: int, axis: str) -> float:
    """Root mean square error of the channels without the outlier."""
    got = quantize(k, bits, dim=1 if axis == "channel" else -1).dequantize(torch.float32)
    normal = [d for d in range(DIM) if d != 5]
    return float((got - k)[..., normal].pow(2).mean().sqrt())


def test_one_large_channel_ruins_a_scale_per_token_by_the_predicted_amount():
    """Rounding errors lie evenly over a step, so their rms is step / sqrt(12). Per token the step is set by the
    outlier, per channel by the channel's own largest key, which itself is exact: one token of the 16 has no error."""
    k = keys(outlier=100.0)
    per_token, per_channel = k.abs().amax(dim=-1) / 127, keys().abs().amax(dim=1) / 127
    predicted_per_token = float((per_token.pow(2).mean() / 12).sqrt())
    predicted_per_channel = float((per_channel.pow(2).mean() / 12 * (BLOCK - 1) / BLOCK).sqrt())
    assert rms_error(k, 8, "token") == pytest.approx(predicted_per_token, rel=0.02)
    assert rms_error(k, 8, "channel") == pytest.approx(predicted_per_channel, rel=0.02)
    assert rms_error(k, 8, "channel") == pytest.approx(rms_error(keys(), 8, "channel"), rel=1e-6), "nobody else notices"
    assert rms_error(k, 8, "token") > 40 * rms_error(k, 8, "channel")


@pytest.mark.parametrize("bits", [8, 4])
def test_attention_survives_the_outlier_only_with_a_scale_per_channel(bits):
    """Queries meet the outlier with small weights, as trained models do; scores then err by the rounding alone."""
    k = keys(outlier=100.0, num_blocks=4).flatten(0, 1)[:, 0]  # [S, D] of one head
    q = torch.randn((50, DIM), generator=torch.Generator().manual_seed(1))
    q[:, 5] /= 100
    exact = (q @ k.T / DIM**0.5).softmax(-1)
    moved = {}
    for axis, dim in (("channel", 1), ("token", -1)):
        stored = quantize(k.view(4, BLOCK, 1, DIM), bits, dim).dequantize(torch.float32).view(-1, DIM)
        moved[axis] = float(((q @ stored.T / DIM**0.5).softmax(-1) - exact).abs().sum(-1).mean() / 2)
    limit = {8: 0.005, 4: 0.05}[bits]
    assert moved["channel"] < limit, f"{moved}: share of attention that goes elsewhere"
    assert moved["token"] > 5 * moved["channel"] and moved["token"] > 0.05


def test_which_part_shares_what_is_said_by_one_function():
    assert (scale_axis("keys"), scale_axis("values")) == ("channel", "token")
    assert kv_format("int4") == KVFormat(4, keys="channel", values="token")


def test_int8_halves_and_int4_quarters_what_a_bfloat16_block_takes_but_for_the_scales():
    bfloat16 = 2 * BLOCK * HEADS * DIM * 2
    int8 = KVFormat(8, "channel", "token").block_bytes(1, BLOCK, HEADS, DIM)
    assert int8 == bfloat16 // 2 + 2 * (HEADS * DIM + BLOCK * HEADS)
    int4 = KVFormat(4, "channel", "token").block_bytes(1, BLOCK, HEADS, DIM)
    assert int4 == bfloat16 // 4 + 4 * (HEADS * DIM + BLOCK * HEADS)
    assert (round(int8 / bfloat16, 2), round(int4 / bfloat16, 2)) == (0.54, 0.33)
