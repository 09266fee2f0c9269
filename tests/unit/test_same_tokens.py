"""One workload on a real (tiny, random) model: policy, prefix cache, budget, block size and guesses change no token.

The scheduling tests say the same with a fake model that cannot round. Here keys and values are really shared,
recomputed and overwritten, in float32. Another grouping of rows rounds differently in the last bits, so a token may
differ where the model's two best logits are closer than ``TIE``; after such a place the texts go their own ways.
"""

import pytest
import torch

from engine.lab.check import check_run
from engine.lab.prefix_use import prefix_use
from engine.lab.scenario import Limits, Speculation
from engine.model.load import load_model
from engine.runtime.engine import Engine
from engine.runtime.executor import TorchExecutor
from engine.scheduling.decision import Chunk
from engine.scheduling.policies import POLICIES
from engine.scheduling.requests import Request
from tests.fakes import as_run

TIE = 1e-4
SHARED = [40 + i * i % 90 for i in range(37)]
LENGTHS = [(0, 3, 9), (37, 5, 12), (37, 0, 30), (20, 9, 7), (37, 5, 12), (12, 1, 25)]  # shared, own, output


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return load_model("tiny-random", models_dir=tmp_path_factory.mktemp("models"), device="cpu")


def serve(tiny, policy, prefix="none", tokens=64, blocks=64, block_size=8, speculation=None):
    limits = Limits(max_requests=4, max_batch_tokens=tokens, num_blocks=blocks, prefix_cache=prefix)
    ticks = iter(range(10**6))
    executor = TorchExecutor(tiny, limits, block_size)
    executor.model = tiny.info
    engine = Engine(executor, policy, limits, block_size, clock=lambda: next(ticks) / 1000, speculation=speculation)
    for i, (shared, own, max_tokens) in enumerate(LENGTHS):
        prompt = SHARED[:shared] + [100 + 7 * i + j for j in range(own)]
        engine.add(Request(f"r{i}", prompt, max_tokens, arrival_s=0.01 * i, ignore_eos=True))
    records = []
    while engine.has_work:
        record = engine.step()
        if record is not None:
            records.append(record)
    run = as_run(engine, records)
    check_run(run)
    return run


def gap(tiny, tokens):
    """How far apart the two best logits after these tokens are, each request alone and whole."""
    limits = Limits(num_blocks=16)
    executor = TorchExecutor(tiny, limits, 16)
    chunk = Chunk(Request("a", tokens, 1), 0, len(tokens), "prefill", list(range(16)), True)
    best = torch.topk(executor.forward(executor.prepare([chunk]))[0], 2).values
    return float(best[0] - best[1])


def assert_same_tokens(tiny, run, expected):
    prompts = {r["request_id"]: r["prompt_token_ids"] for r in run.header.scenario["requests"]}
    for one, other in zip(run.requests, expected.requests, strict=True):
        for i, (token, wanted) in enumerate(zip(one.output_token_ids, other.output_token_ids, strict=True)):
            if token != wanted:
                assert gap(tiny, prompts[one.request_id] + other.output_token_ids[:i]) < TIE, (one.request_id, i)
                break


@pytest.fixture(scope="module")
def expected(tiny):
    return serve(tiny, "static")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("prefix", ["none", "hash", "radix"])
def test_policy_and_prefix_cache(policy, prefix, tiny, expected):
    run = serve(tiny, policy, prefix)
    assert_same_tokens(tiny, run, expected)
    assert (prefix_use(run).num_cached_tokens > 0) == (prefix != "none")


@pytest.mark.parametrize("policy", ["paged", "chunked"])
@pytest.mark.parametrize("prefix", ["none", "radix"])
def test_a_pool_so_small_that_requests_are_preempted(policy, prefix, tiny, expected):
    run = serve(tiny, policy, prefix, blocks=10)
    assert sum(r.num_preemptions for r in run.requests) > 0
    assert_same_tokens(tiny, run, expected)


@pytest.mark.parametrize("tokens", [4, 7, 256])
@pytest.mark.parametrize("block_size", [1, 5, 16])
def test_budget_and_block_size(tokens, block_size, tiny, expected):
    run = serve(tiny, "chunked", "hash", tokens=tokens, block_size=block_size, blocks=320 // block_size)
    assert_same_tokens(tiny, run, expected)


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "static"])
@pytest.mark.parametrize("ngram", [1, 2])
def test_guesses(policy, ngram, tiny, expected):
    run = serve(tiny, policy, "radix", speculation=Speculation(ngram=ngram, num_draft_tokens=3))
    rows = [(row, step) for step in run.steps for row in step.scheduled if row.num_draft_tokens]
    assert rows, "nothing was guessed"
    assert_same_tokens(tiny, run, expected)
