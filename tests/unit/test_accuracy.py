"""Accuracy of a quantized model: nothing against itself, what was put in found again, and where the texts part."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from typer.testing import CliRunner

from engine.__main__ import cli
from engine.lab.scenario import Limits, ScenarioError
from engine.model.load import load_model
from engine.runtime.accuracy import compare_quantized
from engine.runtime.engine import Engine
from engine.runtime.executor import TorchExecutor
from engine.scheduling.requests import Request

PROMPTS = [list(range(40, 60)), list(range(90, 133)), [70]]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {w: load_model("tiny-random", models_dir=folder, device="cpu", weights=w) for w in (None, "int8", "int4")}


def greedy(loaded, prompt: list[int], num_tokens: int, kv_dtype: str | None = None) -> list[int]:
    limits = Limits(num_blocks=16)
    engine = Engine(TorchExecutor(loaded, limits, 16, kv_dtype), "chunked", limits, 16)
    request = Request("r", prompt, num_tokens, ignore_eos=True)
    engine.add(request)
    while engine.has_work:
        engine.step()
    return request.output_token_ids


def test_a_model_against_itself_shows_nothing(models):
    report = compare_quantized(models[None], models[None], PROMPTS, 8)
    assert (report.max_logit_error, report.max_kl, report.same_choices) == (0, 0, 1)
    assert report.first_divergent_token is None
    assert [p.num_prompt_tokens for p in report.prompts] == [20, 43, 1]
    assert all(p.num_tokens == 8 and p.first_divergent_token is None for p in report.prompts)


def test_what_is_put_in_is_found(models):
    """A head whose logits are all off by 0.5 for odd tokens: the error is known, and so is the divergence."""
    plain = models[None]
    head = plain.decoder.head

    def shifted(x: torch.Tensor) -> torch.Tensor:
        logits = head(x).clone()
        logits[:, 1::2] += 0.5
        return logits

    decoder = type(plain.decoder)(
        plain.spec, plain.decoder.embedding, plain.decoder.layers, plain.decoder.final_norm, shifted, plain.decoder.ops
    )
    report = compare_quantized(plain, dataclasses.replace(plain, decoder=decoder), PROMPTS, 4)
    assert report.max_logit_error == pytest.approx(0.5, abs=1e-5)
    assert report.mean_logit_error == pytest.approx(0.5 * 129 / 259, rel=1e-3)
    logits = _logits_of_last(plain, PROMPTS[2])
    p, other = logits.softmax(-1), logits.clone()
    other[1::2] += 0.5
    kl = float((p * (p.log() - other.log_softmax(-1))).sum())
    first = compare_quantized(plain, dataclasses.replace(plain, decoder=decoder), PROMPTS[2:], 1)
    assert first.mean_kl == first.max_kl == pytest.approx(kl, rel=1e-4)


def _logits_of_last(loaded, prompt: list[int]) -> torch.Tensor:
    from tests.model_kit import Rig

    return Rig(loaded.decoder).last_logits(prompt, [len(prompt)])


@pytest.mark.parametrize(("weights", "kv_dtype"), [("int4", None), (None, "int4"), ("int4", "int4")])
def test_the_first_divergent_token_is_where_the_greedy_texts_part(models, weights, kv_dtype):
    report = compare_quantized(models[None], models[weights], PROMPTS, 24, kv_dtype)
    assert any(p.first_divergent_token is not None for p in report.prompts), "choose prompts that do part"
    for prompt, found in zip(PROMPTS, report.prompts, strict=True):
        ours, theirs = greedy(models[weights], prompt, 24, kv_dtype), greedy(models[None], prompt, 24)
        differing = [i for i in range(24) if ours[i] != theirs[i]]
        assert found.first_divergent_token == (differing[0] if differing else None)
        assert (found.gap_there is None) == (not differing)
        assert found.num_same_choices < 24 if differing else found.num_same_choices == 24
    parted = [p.first_divergent_token for p in report.prompts if p.first_divergent_token is not None]
    assert report.first_divergent_token == min(parted)


def test_fewer_bits_err_more_and_read_less(models):
    reports = [
        compare_quantized(models[None], models[weights], PROMPTS, 8, kv_dtype)
        for weights, kv_dtype in (("int8", None), ("int8", "int8"), ("int4", "int4"))
    ]
    errors = [report.mean_kl for report in reports]
    assert 0 < errors[0] < errors[1] < errors[2]
    assert (
        reports[0].kv_bytes_per_element == 4 > 1.2 > reports[1].kv_bytes_per_element > reports[2].kv_bytes_per_element
    )
    assert reports[2].weight_bytes < reports[0].weight_bytes < reports[0].reference_weight_bytes / 3


def test_what_cannot_be_compared_is_refused_with_numbers(models):
    with pytest.raises(ScenarioError, match="0 prompts and 4 tokens"):
        compare_quantized(models[None], models["int8"], [], 4)
    with pytest.raises(ScenarioError, match="none of them empty"):
        compare_quantized(models[None], models["int8"], [[]], 4)
    with pytest.raises(ScenarioError, match="take 8193 positions; the model has 8192"):
        compare_quantized(models[None], models["int8"], [[1, 2]], 8_191)
    with pytest.raises(ScenarioError, match="kv_dtype is 'int3'"):
        compare_quantized(models[None], models["int8"], PROMPTS, 4, "int3")


def command(*arguments: str):
    return CliRunner().invoke(cli, ["accuracy", "--model", "tiny-random", *arguments])


def test_the_command_prints_the_report_as_json(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKEN_BY_TOKEN_HOME", str(tmp_path))
    result = command("--weights", "int8", "--kv-dtype", "int8", "--tokens", "3", "--prompt", "one", "--prompt", "two")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["model"], report["weights"], report["kv_dtype"]) == ("tiny-random", "int8", "int8")
    assert [p["num_tokens"] for p in report["prompts"]] == [3, 3]
    assert report["mean_kl"] > 0


def test_the_command_wants_something_quantized_and_known(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKEN_BY_TOKEN_HOME", str(tmp_path))
    result = command()
    assert (result.exit_code, result.stdout) == (2, "")
    assert "nothing is quantized; give --weights, --kv-dtype or both" in result.stderr
    assert command("--weights", "int2").exit_code == 2
    result = command("--weights", "int8", "--tokens", "1024", "--prompt", "x" * 8_000)
    assert result.exit_code == 2 and "9024 positions" in result.stderr
