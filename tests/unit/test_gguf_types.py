"""Every GGUF tensor type we accept: the package's dequantization is the format's, and what we read is that."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from engine.model.load import decoder_from
from engine.model.load_gguf import GgufFile, half_split_order
from engine.model.spec import ModelError, spec_from_config
from engine.model.weights import MemoryTensors
from tests.gguf_kit import write_gguf
from tests.model_kit import Rig, random_tensors, small_spec

Kind = gguf.GGMLQuantizationType
QUANTIZED = ("Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
ALL = (*QUANTIZED, "F16", "BF16", "F32")
SPEC = small_spec(hidden_size=256, intermediate_size=256, head_dim=64)  # blocks of K-quants are 256 weights long


def random_blocks(kind: str, num_rows: int, num_columns: int, seed: int) -> np.ndarray:
    """[rows, bytes]: any bytes are a valid block, as long as its float16 scales are reasonable numbers."""
    size, num_bytes = gguf.GGML_QUANT_SIZES[Kind[kind]]
    noise = np.random.default_rng(seed)
    blocks = noise.integers(0, 256, (num_rows * num_columns // size, num_bytes), dtype=np.uint8)
    for at in {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q4_K": [0, 2], "Q6_K": [208]}[kind]:
        scales = noise.uniform(-0.02, 0.02, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(num_rows, -1)


def encoder(kind: str):
    """An ``Encode`` of random blocks, or of the values themselves where the type holds floats."""
    if kind in QUANTIZED:
        return lambda name, values: (random_blocks(kind, *values.shape, seed=len(name)), Kind[kind])
    return lambda name, values: (gguf.quants.quantize(values, Kind[kind]), Kind[kind])


# ---- the formats, written out ----------------------------------------------------------------------------------------


def half(block: np.ndarray, at: int) -> float:
    return float(block[at : at + 2].view(np.float16)[0])


def written_out(kind: str, block: np.ndarray) -> list[float]:
    """The weights of one block, as the format defines them."""
    b = [int(x) for x in block]
    if kind == "Q8_0":
        return [half(block, 0) * int(x) for x in block[2:].view(np.int8)]
    if kind == "Q4_0":
        return [half(block, 0) * (q - 8) for q in [x & 15 for x in b[2:]] + [x >> 4 for x in b[2:]]]
    if kind == "Q4_1":
        return [half(block, 0) * q + half(block, 2) for q in [x & 15 for x in b[4:]] + [x >> 4 for x in b[4:]]]
    return q4_k(block, b) if kind == "Q4_K" else q6_k(block, b)


def q4_k(block: np.ndarray, b: list[int]) -> list[float]:
    """Eight groups of 32, each with a 6-bit scale and a 6-bit minimum packed into twelve bytes."""
    s, out = b[4:16], []
    for group in range(8):
        if group < 4:
            scale, minimum = s[group] & 63, s[group + 4] & 63
        else:
            scale = (s[group + 4] & 15) | (s[group - 4] >> 6) << 4
            minimum = (s[group + 4] >> 4) | (s[group] >> 6) << 4
        for i in range(32):
            byte = b[16 + group // 2 * 32 + i]
            q = byte >> 4 if group % 2 else byte & 15
            out.append(half(block, 0) * scale * q - half(block, 2) * minimum)
    return out


def q6_k(block: np.ndarray, b: list[int]) -> list[float]:
    """Two halves of 128: four low bits and two high bits apart, an 8-bit scale for every 16 weights."""
    low, high, scales = b[:128], b[128:192], block[192:208].view(np.int8)
    out = []
    for part in range(2):
        for quarter in range(4):
            for i in range(32):
                byte = low[64 * part + 32 * (quarter % 2) + i]
                q = (byte >> 4 if quarter >= 2 else byte & 15) | (high[32 * part + i] >> 2 * quarter & 3) << 4
                out.append(half(block, 208) * int(scales[8 * part + 2 * quarter + i // 16]) * (q - 32))
    return out


@pytest.mark.parametrize("kind", QUANTIZED)
def test_the_packages_dequantization_is_the_format_written_out(kind):
    size = gguf.GGML_QUANT_SIZES[Kind[kind]][0]
    blocks = random_blocks(kind, 6, size, seed=1)
    expected = np.array([written_out(kind, block) for block in blocks])
    np.testing.assert_allclose(gguf.quants.dequantize(blocks, Kind[kind]), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ALL)
def test_every_tensor_of_a_file_is_read_as_the_package_reads_it(tmp_path, kind):
    source, encode = random_tensors(SPEC), encoder(kind)
    packed = {}

    def remember(name: str, values: np.ndarray):
        packed[name] = encode(name, values)
        return packed[name]

    opened = GgufFile(write_gguf(tmp_path / "m.gguf", SPEC, source, encode=remember))
    assert opened.quantization == kind
    assert len(packed) == 2 * 7 + 2
    for name in source.shapes():
        got = opened.read(name)
        assert got.dtype == torch.float32 and got.shape == source.read(name).shape
        if name not in packed:
            assert torch.equal(got, source.read(name)), name
            continue
        expected = gguf.quants.dequantize(*packed[name]).astype(np.float32)
        if "q_proj" in name or "k_proj" in name:  # stored for the interleaved rotation
            expected = half_split_order(expected, SPEC.num_heads if "q_proj" in name else SPEC.num_kv_heads)
        assert np.array_equal(got.numpy(), expected), name
        if kind in ("F32", "F16", "BF16"):
            torch.testing.assert_close(got, source.read(name), atol=1e-6, rtol=2**-8)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_what_the_package_quantized_comes_back_near(tmp_path, kind):
    source = random_tensors(SPEC)

    def encode(name: str, values: np.ndarray):
        return gguf.quants.quantize(values, Kind[kind]), Kind[kind]

    opened = GgufFile(write_gguf(tmp_path / "m.gguf", SPEC, source, encode=encode))
    for name in ("model.embed_tokens.weight", "model.layers.1.self_attn.k_proj.weight"):
        error = (opened.read(name) - source.read(name)).abs().max()
        assert 0 < error < (0.01 if kind == "Q8_0" else 0.12) * source.read(name).abs().max()


def test_a_file_of_mixed_types_runs_with_the_numbers_it_holds(tmp_path):
    """As Q4_K_M files are: Q4_K for most, Q6_K for some, norms in F32."""

    def encode(name: str, values: np.ndarray):
        kind = "Q6_K" if "v_proj" in name or "down_proj" in name or "embed" in name else "Q4_K"
        return encoder(kind)(name, values)

    opened = GgufFile(write_gguf(tmp_path / "m.gguf", SPEC, random_tensors(SPEC), encode=encode))
    assert opened.quantization == "Q4_K"
    tensors = MemoryTensors({name: opened.read(name) for name in opened.shapes()})
    expected = Rig(decoder_from(SPEC, tensors)).last_logits(range(20, 60), [40])
    got = Rig(decoder_from(spec_from_config(opened.config), opened)).last_logits(range(20, 60), [7])
    assert expected.std() > 0.01
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_a_type_that_cannot_be_dequantized_is_refused_with_the_ones_that_can(tmp_path):
    def encode(name: str, values: np.ndarray):
        return (values * 10).astype(np.int8), Kind.I8

    opened = GgufFile(write_gguf(tmp_path / "m.gguf", SPEC, random_tensors(SPEC), encode=encode))
    with pytest.raises(ModelError, match=r"is stored as I8, .* use a file in F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K"):
        opened.read("model.embed_tokens.weight")
