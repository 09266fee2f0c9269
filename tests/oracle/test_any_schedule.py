"""The same requests give the same tokens however they are scheduled: policy, chunk, block, cache, preemption, drafts.

The oracle here is our own model serving each request alone, its prompt in one piece (that the model is right is judged
elsewhere, against transformers). It is tiny and random, so that every combination takes a moment; scheduling, blocks,
caches and attention are the real ones.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from engine.lab.scenario import Limits, Speculation
from engine.model.load import LoadedModel, decoder_from, load_model
from engine.runtime.engine import Engine
from engine.runtime.executor import TorchExecutor
from engine.scheduling.decision import Chunk
from engine.scheduling.invariants import StepChecker, check_empty
from engine.scheduling.policies import POLICIES
from engine.scheduling.prefix import PREFIX_CACHES
from engine.scheduling.requests import Request
from tests.model_kit import random_tensors, small_spec
from tests.oracle.near_ties import Answer, count_near_ties

NEAR_TIE = 1e-4  # logits; float32 rounding moves those of this model by about 1e-6
LENGTHS = (18, 20, 3, 12, 1, 14)
SHARED = [40 + index * index % 90 for index in range(37)]
PROMPTS = (
    [*SHARED, 60, 61, 62],
    [*SHARED, 60, 61, 70, 71],
    [200, 100, 50],
    SHARED,
    [*SHARED, *range(100, 130)],
    [90, 91, 92, 90, 91, 92, 90, 91, 92, 90],
)
POOLS = {1: 90, 4: 23, 16: 7}  # by block size: room for the first two prompts, but not for what becomes of them
ALL_POLICIES = list(POLICIES)
CONTINUOUS = [name for name in POLICIES if name != "static"]


@pytest.fixture(scope="module", autouse=True)
def one_torch_thread():
    """Tensors this small are not worth waiting for a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> LoadedModel:
    """Two layers in the place of the tiny model's four; of some random seeds the one whose text repeats least."""
    spec = small_spec()
    loaded = load_model("tiny-random", models_dir=tmp_path_factory.mktemp("models"), device="cpu")
    return dataclasses.replace(loaded, spec=spec, decoder=decoder_from(spec, random_tensors(spec, seed=1)))


@pytest.fixture(scope="module")
def answers(tiny) -> list[Answer]:
    return [alone(tiny, prompt, length) for prompt, length in zip(PROMPTS, LENGTHS, strict=True)]


def alone(tiny: LoadedModel, prompt: list[int], num_tokens: int) -> Answer:
    """One request, no scheduler: the prompt as one chunk, then token by token."""
    executor = TorchExecutor(tiny, Limits(num_blocks=8))
    request, gaps = Request("alone", prompt, num_tokens), []
    for start in [0, *range(len(prompt), len(prompt) + num_tokens - 1)]:
        chunk = Chunk(request, start, request.num_tokens - start, "prefill", list(range(8)), True)
        logits = executor.forward(executor.prepare([chunk]))[0]
        best, second = logits.topk(2).values.tolist()
        gaps.append(best - second)
        request.token_ids.append(int(logits.argmax()))
    return Answer(prompt, request.output_token_ids, gaps)


class Served:
    """All requests through one engine, with every invariant checked after every step."""

    def __init__(
        self,
        tiny: LoadedModel,
        policy: str,
        *,
        block_size: int = 16,
        num_blocks: int | None = None,
        speculation: Speculation | None = None,
        **limits,
    ) -> None:
        all_fit = sum(-(-(len(p) + n) // block_size) for p, n in zip(PROMPTS, LENGTHS, strict=True))
        defaults = {"max_requests": 4, "max_batch_tokens": 16}
        made = Limits(num_blocks=num_blocks or all_fit, **(defaults | limits))
        engine = Engine(TorchExecutor(tiny, made, block_size), policy, made, block_size, speculation=speculation)
        self.requests = [Request(f"r{i}", p, n) for i, (p, n) in enumerate(zip(PROMPTS, LENGTHS, strict=True))]
        self.records, checker = [], StepChecker(engine)
        for request in self.requests[:3]:
            engine.add(request)
        while engine.has_work or len(self.records) < 3:
            if len(self.records) == 3:  # the others come while the first are being served
                for request in self.requests[3:]:
                    engine.add(request)
            record = engine.step()
            checker.check(record)
            self.records.append(record)
        check_empty(engine.scheduler)

    def agree_with(self, answers: list[Answer]) -> None:
        outputs = [request.output_token_ids for request in self.requests]
        assert [len(output) for output in outputs] == list(LENGTHS)
        assert count_near_ties(answers, outputs, NEAR_TIE) <= 1

    @property
    def num_preemptions(self) -> int:
        return sum(request.num_preemptions for request in self.requests)

    @property
    def num_cached_tokens(self) -> int:
        return sum(row.num_cached_tokens for record in self.records for row in record.scheduled)

    @property
    def num_draft_tokens(self) -> int:
        return sum(row.num_draft_tokens for record in self.records for row in record.scheduled)


@pytest.mark.parametrize("prefix_cache", list(PREFIX_CACHES))
@pytest.mark.parametrize("block_size", list(POOLS))
@pytest.mark.parametrize("policy", ALL_POLICIES)
def test_policy_block_size_and_prefix_cache(tiny, answers, policy, block_size, prefix_cache):
    served = Served(tiny, policy, block_size=block_size, prefix_cache=prefix_cache)
    served.agree_with(answers)
    assert (served.num_cached_tokens > 0) == (prefix_cache != "none")


@pytest.mark.parametrize(("budget", "rows"), [(1, 1), (7, 3), (64, 6), (512, 6)])
@pytest.mark.parametrize("policy", ALL_POLICIES)
def test_chunk_size_and_batch_size(tiny, answers, policy, budget, rows):
    served = Served(tiny, policy, max_batch_tokens=budget, max_requests=rows)
    served.agree_with(answers)
    assert max(sum(row.num_tokens for row in record.scheduled) for record in served.records) <= budget


@pytest.mark.parametrize(("block_size", "prefix_cache"), [*((b, "none") for b in POOLS), (4, "hash"), (4, "radix")])
@pytest.mark.parametrize("policy", ALL_POLICIES)
def test_a_pool_so_small_that_somebody_is_always_in_the_way(tiny, answers, policy, block_size, prefix_cache):
    served = Served(tiny, policy, block_size=block_size, num_blocks=POOLS[block_size], prefix_cache=prefix_cache)
    served.agree_with(answers)
    reserves = policy in ("static", "orca")  # what is reserved at the door is never taken away
    if prefix_cache == "none":
        assert (served.num_preemptions == 0) if reserves else (served.num_preemptions > 0)


@pytest.mark.parametrize("policy", CONTINUOUS)
def test_everybody_preempted_after_every_token(tiny, answers, policy):
    served = Served(tiny, policy, kv_cache="none")
    served.agree_with(answers)
    assert served.num_preemptions == sum(length - 1 for length in LENGTHS)


@pytest.mark.parametrize("prefix_cache", list(PREFIX_CACHES))
@pytest.mark.parametrize("policy", CONTINUOUS)
def test_drafts_right_and_wrong(tiny, answers, policy, prefix_cache):
    guessing = Speculation(ngram=1, num_draft_tokens=3)
    served = Served(tiny, policy, block_size=4, prefix_cache=prefix_cache, speculation=guessing)
    served.agree_with(answers)
    assert served.num_draft_tokens > 0
