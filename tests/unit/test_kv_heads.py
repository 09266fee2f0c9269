"""A model with other KV heads: more are the same function with a larger cache, fewer are the means of groups."""

from __future__ import annotations

import pytest
import torch

from engine.lab.check import check_run
from engine.lab.scenario import Scenario, ScenarioError
from engine.lab.work import kv_bytes_per_token
from engine.model.kv_heads import RegroupedHeads, with_num_kv_heads
from engine.model.spec import ModelError
from engine.model.tiny import tiny_spec, tiny_tensors
from engine.model.weights import check_tensors
from engine.runtime.lab import LabRuntime
from engine.settings import Settings

RUN_ID = "run-0123456789ab"


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> LabRuntime:
    home = tmp_path_factory.mktemp("home")
    return LabRuntime(Settings(home, f"sqlite:///{home}/lab.sqlite3", 8600, "tiny-random"))


def run(runtime: LabRuntime, num_kv_heads: int | None, **fields):
    requests = [{"prompt": "Why is the sky blue?", "max_tokens": 12, "ignore_eos": True}]
    wanted = Scenario.parse({"model": "tiny-random", "num_kv_heads": num_kv_heads, "requests": requests, **fields})
    return runtime.run(runtime.prepare(wanted), RUN_ID).run


def test_more_heads_say_the_same_with_a_larger_cache(runtime: LabRuntime) -> None:
    own, more = run(runtime, None), run(runtime, 4)
    check_run(more)
    assert more.requests[0].output_token_ids == own.requests[0].output_token_ids
    assert more.header.model.num_kv_heads == 4 and own.header.model.num_kv_heads == 2
    assert kv_bytes_per_token(more.header.model, 4) == 2 * kv_bytes_per_token(own.header.model, 4)
    assert more.header.model.num_parameters > own.header.model.num_parameters
    assert more.header.model.name == "tiny-random-kv4", "its cache must never be taken for the other's"


def test_fewer_heads_are_means_and_say_something_else(runtime: LabRuntime) -> None:
    own, fewer = run(runtime, None), run(runtime, 1)
    check_run(fewer)
    assert fewer.requests[0].output_token_ids != own.requests[0].output_token_ids
    name = "model.layers.1.self_attn.v_proj.weight"
    spec, heads = tiny_spec(), tiny_tensors().read(name).unflatten(0, (2, 32))
    regrouped = RegroupedHeads(tiny_tensors(), spec, 1)
    assert torch.allclose(regrouped.read(name), heads.mean(0))
    check_tensors(with_num_kv_heads(spec, 1), regrouped.shapes())
    assert torch.equal(regrouped.read("model.norm.weight"), tiny_tensors().read("model.norm.weight"))


def test_each_query_head_keeps_the_keys_it_had() -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    own = tiny_tensors().read(name).unflatten(0, (2, 32))
    more = RegroupedHeads(tiny_tensors(), tiny_spec(), 4).read(name).unflatten(0, (4, 32))
    for query_head in range(4):  # query head q attends with KV head q // (Hq / Hk)
        assert torch.equal(more[query_head], own[query_head // 2])


@pytest.mark.parametrize("wanted", [3, 8, 5])
def test_a_number_that_cannot_be_reached_is_refused_with_those_that_can(runtime: LabRuntime, wanted: int) -> None:
    with pytest.raises(ModelError, match="allowed: 1, 2, 4"):
        run(runtime, wanted)


def test_training_and_other_processes_keep_the_models_own(runtime: LabRuntime) -> None:
    with pytest.raises(ScenarioError, match="num_kv_heads"):
        run(runtime, 1, probes=["training_step"])
    with pytest.raises(ScenarioError, match="num_kv_heads"):
        run(runtime, 1, ring={})
