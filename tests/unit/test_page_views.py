"""What the pages read out of a Run, against counts made by hand and against the records themselves."""

from __future__ import annotations

import pytest

from engine.lab.records import Run
from lessons import scenarios
from pages._ui.marked_text import marked
from pages._ui.views import (
    decode_padding_share,
    e2e_per_request,
    length_model,
    one_request,
    policy_result,
    ttft_per_request,
)
from tests.pages.fake_client import serve


@pytest.fixture(scope="module")
def alone() -> Run:
    return serve(scenarios.prefill_decode("a b c", 20, 30), "run-00000000000a")


@pytest.fixture(scope="module")
def pair() -> dict[str, Run]:
    return {p: serve(scenarios.batching("abcd", p), f"run-{p}") for p in ("static", "chunked")}


def test_one_request_alone(alone: Run) -> None:
    view = one_request(alone)
    assert (view.num_prompt_tokens, view.num_output_tokens) == (20, 30)
    assert len(view.gaps_ms) == 29
    assert view.ttft_ms + sum(view.gaps_ms) == pytest.approx(alone.requests[0].completion_s * 1e3)
    assert view.tpot_ms == pytest.approx(sum(view.gaps_ms) / 29)
    assert view.decode_tps == pytest.approx(1e3 / view.tpot_ms)
    assert view.prefill_ms + view.decode_ms == pytest.approx(sum(s.t_end_s - s.t_begin_s for s in alone.steps) * 1e3)


def test_kv_grows_in_whole_blocks_and_holds_what_was_computed(alone: Run) -> None:
    view = one_request(alone)
    assert view.positions == list(range(20, 50))  # the last token is never stored
    assert view.held_blocks == [-(-p // 16) for p in view.positions]
    assert all(pool >= formula for pool, formula in zip(view.pool_bytes, view.formula_bytes, strict=True))
    assert view.pool_bytes[-1] == view.held_blocks[-1] * view.block_bytes


def test_the_model_is_weights_over_bandwidth_and_flops_over_rate(alone: Run) -> None:
    view, header = one_request(alone), alone.header
    assert view.modelled_tpot_ms == pytest.approx(header.model.weight_bytes / 20e9 * 1e3)
    assert view.modelled_ttft_ms == pytest.approx(view.prompt_flops / 0.1e12 * 1e3)


def test_without_ceilings_nothing_is_modelled(alone: Run) -> None:
    bare = alone.model_copy(deep=True)
    bare.header.device.read_gbps = bare.header.device.matmul_tflops = None
    view = one_request(bare)
    assert view.modelled_tpot_ms is None
    assert view.modelled_ttft_ms is None


def test_a_single_token_has_no_decode() -> None:
    view = one_request(serve(scenarios.prefill_decode("a b c", 20, 1).model_copy(), "run-00000000000b"))
    assert view.tpot_ms is None
    assert view.decode_tps is None
    assert view.gaps_ms == []


def test_an_unfinished_run_has_no_view(alone: Run) -> None:
    assert one_request(Run(header=alone.header, steps=[], requests=[])) is None


def test_the_two_policies(pair: dict[str, Run]) -> None:
    static, chunked = policy_result(pair["static"]), policy_result(pair["chunked"])
    assert static.num_output_tokens == chunked.num_output_tokens == 50 + 10 + 80 + 30
    assert static.makespan_ms > chunked.makespan_ms
    assert static.ttft_p95_ms > static.ttft_mean_ms
    assert chunked.padding_share == 0
    assert set(ttft_per_request(pair["static"])) == {"A", "B", "C", "D"}
    assert all(e2e_per_request(pair["static"])[r] >= ttft_per_request(pair["static"])[r] for r in "ABCD")


def test_padding_is_counted_in_the_records(pair: dict[str, Run]) -> None:
    rows = [row for step in pair["static"].steps for row in step.scheduled if row.phase in ("decode", "padding")]
    padding = sum(row.phase == "padding" for row in rows)
    assert padding == 100  # B 70 steps, A 30 steps, until C is done
    assert decode_padding_share(pair["static"]) == pytest.approx(padding / len(rows))


def test_the_length_model(pair: dict[str, Run]) -> None:
    model = length_model(pair["static"])
    assert (model.shortest, model.longest, model.mean, model.places) == (10, 80, 42.5, 3)
    assert model.static_steps == 80 + 30
    assert model.continuous_steps == 80  # D takes B's place and is done before C
    assert model.speed_up == pytest.approx(110 / 80)


@pytest.mark.parametrize(
    ("pieces", "place", "text"),
    [
        (["Once", " upon", " a"], 1, "Once⟦ upon⟧ a"),
        (["<0xE4><0xBD>", "<0xA0>", "可以"], 2, "你⟦可以⟧"),
        (["一", "<0xE9>", "<0xB8><0x9F>", "，"], 1, "一⟦鸟⟧，"),
        (["一", "<0xE9>", "<0xB8><0x9F>", "，"], 2, "一⟦鸟⟧，"),
        (["a", "<0xE9>"], 1, "a⟦\ufffd⟧"),
        (["<0x41>"], 0, "⟦<0x41>⟧"),
    ],
)
def test_the_mark_where_answers_part_goes_around_whole_characters(pieces: list[str], place: int, text: str) -> None:
    assert marked(pieces, place) == text
