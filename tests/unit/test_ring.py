"""Ring attention over real processes: exact, each worker with its part of the keys and values, every pair once."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from engine.lab.check import CheckError, check_run
from engine.lab.export import BETWEEN, to_chrome
from engine.lab.records import Run
from engine.lab.ring import busy_share, num_pairs, parts, position_bytes, prompt_pairs
from engine.lab.scenario import Ring, Scenario, ScenarioError
from engine.runtime.ring import RingExecutor
from engine.runtime.ring_attention import Gathering, merge, partial_attention
from engine.runtime.ring_worker import Prompt
from engine.runtime.workers import WorkerDied
from tests.unit.split_runs import assert_same_tokens, is_gone, prompt, request, run, runtime_in, worker_model

LENGTHS = (6, 15, 16, 17, 33, 100)
WORKLOAD = [request(f"n{length}", length, 6) for length in LENGTHS]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def runtime(home):
    return runtime_in(home)


@pytest.fixture(scope="module")
def loaded(runtime):
    return runtime.load("tiny-random", "float32")


def scenario(ring: dict | None, requests: list[dict] = WORKLOAD, **limits: int) -> Scenario:
    limits = {"max_requests": 1, "max_batch_tokens": 256, "num_blocks": 32} | limits
    return Scenario.parse({"model": "tiny-random", "limits": limits, "requests": requests, "ring": ring})


@pytest.fixture(scope="module")
def single(runtime) -> Run:
    return run(runtime, scenario(None))


# ------------------------------------------------------------------ the arithmetic
def whole_attention(q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    """q: [T, Hq, D]; kv: [T, 2, Hk, D], causal, in double precision."""
    q, kv = q.double(), kv.double().repeat_interleave(q.shape[1] // kv.shape[2], dim=2)
    scores = torch.einsum("ihd,jhd->hij", q, kv[:, 0]) / q.shape[-1] ** 0.5
    scores.masked_fill_(torch.ones(scores.shape[1:], dtype=torch.bool).triu(1), float("-inf"))
    return torch.einsum("hij,jhd->ihd", scores.softmax(-1), kv[:, 1])


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("num_tokens", [8, 13, 64])
def test_parts_in_any_order_merge_to_full_attention(layout, n, num_tokens):
    generator = torch.Generator().manual_seed(num_tokens * n)
    q = torch.randn((num_tokens, 4, 8), generator=generator)
    kv = torch.randn((num_tokens, 2, 2, 8), generator=generator)
    wanted, owned = whole_attention(q, kv), parts(num_tokens, n, layout)
    assert sorted(p for own in owned for r in own for p in r) == list(range(num_tokens))
    for rank, own in enumerate(owned):
        rows = [p for r in own for p in r]
        gathering, pairs = Gathering(q[rows], own), 0
        for hop in range(n):
            other = owned[(rank - hop) % n]
            pairs += gathering.add(kv[[p for r in other for p in r]], other)
        assert torch.allclose(gathering.out().double(), wanted[rows], atol=1e-5)
        assert pairs == sum(num_pairs(own, other) for other in owned) == prompt_pairs(num_tokens, n, layout)[rank]


def test_merging_does_not_overflow_where_the_formula_of_the_book_does():
    q = torch.full((1, 1, 4), 100.0)
    kv = torch.stack([torch.full((3, 1, 4), 50.0), torch.arange(3.0)[:, None, None].expand(3, 1, 4)], dim=1)
    found = merge(partial_attention(q, kv[:1], False), partial_attention(q, kv[1:], False))
    assert found[1].isfinite().all() and not found[1].exp().isfinite().any()
    assert torch.allclose(found[0], torch.ones(1, 1, 4), atol=1e-3)


def test_zigzag_shares_the_work_of_causal_attention_and_contiguous_does_not():
    assert prompt_pairs(1024, 4, "contiguous")[-1] > 6 * prompt_pairs(1024, 4, "contiguous")[0]
    assert busy_share(prompt_pairs(1024, 4, "contiguous")) < 0.6
    assert busy_share(prompt_pairs(1024, 4, "zigzag")) > 0.999


# ------------------------------------------------------------------ real processes
@pytest.mark.parametrize(("n", "layout"), [(1, "contiguous"), (2, "contiguous"), (3, "zigzag"), (4, "contiguous")])
def test_outputs_equal_the_single_engines_and_each_worker_keeps_its_part(n, layout, runtime, loaded, single):
    lengths = [r for r in WORKLOAD if len(r["prompt_token_ids"]) >= 2 * n]
    ringed = run(runtime, scenario({"num_workers": n, "layout": layout}, lengths))
    check_run(ringed)
    names = {r["request_id"] for r in lengths}
    assert_same_tokens(
        loaded, ringed, single.model_copy(update={"requests": [r for r in single.requests if r.request_id in names]})
    )
    per_position, layers = position_bytes(ringed.header.model, 4.0), ringed.header.model.num_layers
    for step in ringed.steps:
        row, ring = step.scheduled[0], step.ring
        total = row.start + row.num_tokens
        assert sum(ring.kv_bytes) == total * per_position
        assert max(ring.kv_bytes) - min(ring.kv_bytes) <= 3 * per_position  # 1/n each, up to what does not divide
        assert sum(ring.pairs) == layers * (total * (total + 1) // 2 if row.start == 0 else total)
    assert len(ringed.header.workers) == n


def test_the_peak_of_keys_and_values_per_worker_is_an_nth(runtime):
    asked = [request("even", 96, 1)]
    peaks = {n: max(run(runtime, scenario({"num_workers": n}, asked)).steps[0].ring.kv_bytes) for n in (1, 2, 4)}
    assert peaks[1] == 2 * peaks[2] == 4 * peaks[4]


def test_each_part_but_ones_own_comes_by_once_in_each_layer(runtime):
    ringed = run(runtime, scenario({"num_workers": 3}, [request("a", 30, 2)]))
    layers, spans = ringed.header.model.num_layers, ringed.steps[0].ring.spans
    for layer in range(layers):
        sends = {(s.worker, s.source) for s in spans if s.layer == layer and s.op == "send"}
        assert sends == {(w, s) for w in range(3) for s in range(3) if s != (w + 1) % 3}
        computes = {(s.worker, s.source) for s in spans if s.layer == layer and s.op == "compute"}
        assert computes == {(w, s) for w in range(3) for s in range(w + 1)}  # nobody looks ahead
    sent = [sum(s.num_bytes for s in spans if s.worker == w) for w in range(3)]
    assert sent == ringed.steps[0].ring.sent_bytes == [20 * position_bytes(ringed.header.model, 4.0)] * 3


def test_a_trace_has_the_arithmetic_and_the_sends_of_each_worker(spoilable):
    run = Run.from_jsonl(spoilable)
    events = [e for e in to_chrome(run)["traceEvents"] if e["pid"] == BETWEEN]
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {f"ring {w}: {op}" for w in range(2) for op in ("compute", "send")}
    assert sum(e["ph"] == "X" for e in events) == len(run.steps[0].ring.spans)


def test_a_killed_worker_ends_the_run_with_one_sentence_and_leaves_no_process(loaded, home):
    with RingExecutor(loaded, worker_model(home), Ring(num_workers=3), 4.0) as ring:
        pids = ring.pids
        os.kill(pids["ring 1"], signal.SIGKILL)
        with pytest.raises(WorkerDied, match=r"the ring 1 worker .*SIGKILL.*the other workers were ended") as told:
            for _ in range(3):  # its death may be noticed when it is asked or when it does not answer
                ring._ask(Prompt(prompt(64)))
        folder = ring._folder.name
    assert "\n" not in str(told.value)
    assert all(is_gone(pid) for pid in pids.values()) and not os.path.exists(folder)


# ------------------------------------------------------------------ what is refused
@pytest.mark.parametrize(
    ("ring", "limits", "told"),
    [
        ({"num_workers": 5}, {}, "from 1 to 4"),
        ({"layout": "spiral"}, {}, "contiguous"),
        ({}, {"max_requests": 2}, "max_requests 1"),
    ],
)
def test_a_ring_that_cannot_be_is_refused_with_a_sentence(ring, limits, told):
    with pytest.raises(ScenarioError, match=told):
        scenario(ring, **limits)


@pytest.mark.parametrize(
    ("asked", "limits", "told"),
    [(request("a", 7, 2), {}, "needs 8 or more"), (request("a", 99, 2), {"max_batch_tokens": 64}, "so raise it")],
)
def test_a_prompt_that_a_ring_cannot_divide_is_refused(asked, limits, told, runtime):
    with pytest.raises(ScenarioError, match=told):
        run(runtime, scenario({"num_workers": 4, "layout": "zigzag"}, [asked], **limits))


# ------------------------------------------------------------------ the check sees what is new
@pytest.mark.parametrize("part", ["positions", "kv_bytes", "sent_bytes", "pairs"])
@pytest.mark.parametrize("number", [0, 1])  # the prompt's pass, a decoded token
def test_a_spoilt_ring_record_is_found(part, number, spoilable):
    run = Run.from_jsonl(spoilable)
    getattr(run.steps[number].ring, part)[0] += 1
    with pytest.raises(CheckError) as found:
        check_run(run)
    assert found.value.invariant == "ring"


def test_a_spoilt_span_is_found(spoilable):
    for field, value in (("t_end_s", 1e3), ("num_bytes", 1), ("worker", 7)):
        run = Run.from_jsonl(spoilable)
        setattr(run.steps[0].ring.spans[0], field, value)
        with pytest.raises(CheckError) as found:
            check_run(run)
        assert found.value.invariant == "ring"


@pytest.fixture(scope="module")
def spoilable(runtime) -> str:
    return run(runtime, scenario({"num_workers": 2}, [request("a", 20, 3)])).to_jsonl()
