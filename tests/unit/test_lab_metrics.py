"""Metrics: exact on a Run whose times are known, and true to their identities on random Runs of the real scheduler."""

from __future__ import annotations

import statistics
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.lab.metrics import (
    Wait,
    achieved_gbps,
    achieved_tflops,
    all_request_metrics,
    goodput,
    inter_token_gaps,
    kv_after_steps,
    kv_of_request,
    makespan_s,
    percentile,
    percentiles,
    phase_rate,
    request_record,
    request_table,
    run_metrics,
    spread,
    step_kind,
    step_spread,
    step_table,
    token_times,
    waits,
)
from engine.lab.records import Run, TimeMs
from engine.lab.replay import block_snapshots
from engine.lab.steps import computed_ends
from engine.lab.work import moved_bytes
from tests.unit.lab_runs import (
    chunked_scenario,
    make_run,
    preempting_scenario,
    prompt,
    random_scenario,
    static_scenario,
)

STEP = 0.010  # a pass of the fake executor takes 10 ms and 0.1 ms per token
TOKEN = 0.0001
KV = 2 * 2 * 2 * 2 * 4  # bytes per position of the fake model in float32


@pytest.fixture(scope="module")
def single() -> Run:
    """One request: a prompt of 5, 4 output tokens. Steps: 10.5 ms, then three of 10.1 ms."""
    return make_run({"block_size": 4, "requests": [{"prompt_token_ids": prompt(5), "max_tokens": 4}]})


@pytest.fixture(scope="module")
def static() -> Run:
    return make_run(static_scenario())


@pytest.fixture(scope="module")
def chunked() -> Run:
    return make_run(chunked_scenario())


# ------------------------------------------------------------------------------------------------- requests
def test_latencies_of_one_request(single: Run) -> None:
    metrics = all_request_metrics(single)["r0"]
    assert metrics.queue_s == pytest.approx(0)
    assert metrics.ttft_s == pytest.approx(STEP + 5 * TOKEN)
    assert metrics.tpot_s == pytest.approx(STEP + TOKEN)
    assert metrics.e2e_s == pytest.approx(4 * STEP + 8 * TOKEN)
    assert (metrics.num_prompt_tokens, metrics.num_output_tokens, metrics.finish_reason) == (5, 4, "length")


def test_a_single_token_has_no_tpot() -> None:
    run = make_run({"requests": [{"prompt_token_ids": prompt(3), "max_tokens": 1}]})
    metrics = all_request_metrics(run)["r0"]
    assert metrics.tpot_s is None
    assert metrics.e2e_s == pytest.approx(metrics.ttft_s)
    assert run_metrics(run).tpot_s.p50 is None
    assert inter_token_gaps(run, "r0") == ()


def test_an_aborted_request_has_no_end_to_end_latency() -> None:
    metrics = all_request_metrics(make_run(static_scenario(), aborts={2: "A"}))
    assert metrics["A"].e2e_s is None and metrics["A"].tpot_s is None
    assert metrics["B"].e2e_s is not None


def test_every_token_has_its_time(single: Run) -> None:
    tokens = token_times(single)["r0"]
    assert [t.index for t in tokens] == [0, 1, 2, 3]
    assert [t.token_id for t in tokens] == request_record(single, "r0").output_token_ids
    assert [t.latency_s for t in tokens] == pytest.approx([STEP + 5 * TOKEN] + [STEP + TOKEN] * 3)
    assert tokens[-1].t_s == pytest.approx(all_request_metrics(single)["r0"].e2e_s)


@pytest.mark.parametrize("seed", range(20))
def test_identities_hold_on_random_runs(seed: int) -> None:
    run = make_run(random_scenario(seed))
    for request_id, metrics in all_request_metrics(run).items():
        gaps = inter_token_gaps(run, request_id)
        times = [t.t_s for t in token_times(run)[request_id]]
        assert times == sorted(times) and len(times) == metrics.num_output_tokens
        assert sum(t.latency_s for t in token_times(run)[request_id]) == pytest.approx(metrics.e2e_s)
        if metrics.tpot_s is not None:
            assert statistics.fmean(gaps) == pytest.approx(metrics.tpot_s)
            total = metrics.ttft_s + (metrics.num_output_tokens - 1) * metrics.tpot_s
            assert metrics.e2e_s == pytest.approx(total)


def test_an_unknown_request_is_a_key_error(single: Run) -> None:
    with pytest.raises(KeyError):
        waits(single, "nobody")


# ------------------------------------------------------------------------------------------------- waiting
def test_a_latecomer_waits_for_the_static_batch_to_drain(static: Run) -> None:
    drained = next(s.t_begin_s for s in static.steps if "D" in s.admitted)
    arrival = request_record(static, "D").arrival_s
    considered = next(s.t_begin_s for s in static.steps if s.t_begin_s >= arrival)
    assert waits(static, "D") == (
        Wait(arrival, considered, "step_running"),
        Wait(considered, drained, "batch_not_drained"),
    )
    assert sum(w.seconds for w in waits(static, "D")) == pytest.approx(all_request_metrics(static)["D"].queue_s)


def test_a_latecomer_joins_the_running_chunked_batch(static: Run, chunked: Run) -> None:
    assert "batch_not_drained" not in {w.why for w in waits(chunked, "D")}
    queue = {name: all_request_metrics(run)["D"].queue_s for name, run in (("static", static), ("chunked", chunked))}
    assert queue["chunked"] < queue["static"]


def test_a_row_whose_prompt_is_done_is_not_at_its_turn_while_others_prefill(static: Run) -> None:
    assert waits(static, "C") == ()  # 5 + 9 of 16 tokens went to A and B, 2 to C, and the step after to C alone
    second = static.steps[1]
    assert waits(static, "A") == (Wait(second.t_begin_s, static.steps[2].t_begin_s, "not_its_turn"),)


def test_a_preempted_request_waits_for_blocks_again() -> None:
    run = make_run(preempting_scenario())
    victim = next(r.request_id for r in run.requests if r.num_preemptions)
    step = next(s for s in run.steps if victim in s.preempted)
    assert any(w.why == "no_blocks" and w.t_begin_s <= step.t_begin_s < w.t_end_s for w in waits(run, victim))


@pytest.mark.parametrize("seed", range(20))
def test_a_request_either_runs_or_waits_until_its_end(seed: int) -> None:
    run = make_run(random_scenario(seed))
    for record in run.requests:
        spans = [(w.t_begin_s, w.t_end_s) for w in waits(run, record.request_id)]
        for step, after in zip(run.steps, [*run.steps[1:], None], strict=True):
            until = after.t_begin_s if after else step.t_end_s
            if any(row.request_id == record.request_id and row.phase != "padding" for row in step.scheduled):
                spans.append((step.t_begin_s, min(until, record.completion_s)))
        spans.sort()
        assert spans[0][0] == record.arrival_s and spans[-1][1] == record.completion_s
        assert all(a[1] == b[0] for a, b in pairwise(spans))


# ------------------------------------------------------------------------------------------------- the run
def test_the_run_in_one_glance(single: Run) -> None:
    metrics = run_metrics(single)
    assert metrics.makespan_s == pytest.approx(4 * STEP + 8 * TOKEN)
    assert metrics.output_tokens_per_s == pytest.approx(4 / (4 * STEP + 8 * TOKEN))
    assert (metrics.num_requests, metrics.num_finished, metrics.num_output_tokens, metrics.num_steps) == (1, 1, 4, 4)
    assert metrics.padding_share == 0
    assert metrics.mean_rows == pytest.approx(1)
    assert metrics.peak_blocks_in_use == 2


def test_padding_is_static_batchings_own(static: Run, chunked: Run) -> None:
    assert run_metrics(static).padding_share > 0
    assert run_metrics(chunked).padding_share == 0
    padding = sum(1 for s in static.steps for row in s.scheduled if row.phase == "padding")
    assert step_table(static)["num_padding_rows"].sum() == padding == step_table(static)["padding_tokens"].sum()


def test_makespan_begins_with_the_first_arrival() -> None:
    scenario = {"requests": [{"prompt_token_ids": prompt(3), "max_tokens": 2, "arrival_s": 0.5}]}
    assert makespan_s(make_run(scenario)) == pytest.approx(2 * STEP + 4 * TOKEN, abs=1e-6)


def test_goodput_counts_who_met_both_objectives(static: Run) -> None:
    each = all_request_metrics(static)
    all_met = goodput(static, 10, 10)
    assert (all_met.num_within, all_met.share) == (4, 1)
    assert all_met.output_tokens_per_s == pytest.approx(run_metrics(static).output_tokens_per_s)
    without_d = goodput(static, (each["D"].ttft_s + each["C"].ttft_s) / 2, 10)
    assert without_d.num_within == 3
    assert goodput(static, 10, 0).num_within == 0
    one_token = make_run({"requests": [{"prompt_token_ids": prompt(3), "max_tokens": 1}]})
    assert goodput(one_token, 10, 0).num_within == 1


def test_a_run_without_steps_is_undefined_not_zero(single: Run) -> None:
    record = request_record(single, "r0")
    nothing = {"first_scheduled_s": None, "first_token_s": None, "completion_s": None, "num_output_tokens": 0}
    empty = Run(header=single.header, steps=[], requests=[record.model_copy(update=nothing)])
    metrics = run_metrics(empty)
    assert metrics.makespan_s is metrics.output_tokens_per_s is metrics.padding_share is metrics.mean_rows is None
    assert waits(empty, "r0") == ()
    assert phase_rate(empty, "decode").tokens_per_s is None
    assert goodput(empty, 1, 1).output_tokens_per_s is None
    assert len(step_table(empty)) == 0


# ------------------------------------------------------------------------------------------------- steps
def test_prefill_and_decode_rates(single: Run) -> None:
    prefill, decode = phase_rate(single, "prefill"), phase_rate(single, "decode")
    assert (prefill.num_steps, prefill.num_tokens) == (1, 5)
    assert prefill.tokens_per_s == pytest.approx(5 / (STEP + 5 * TOKEN))
    assert (decode.num_steps, decode.num_tokens) == (3, 3)
    assert decode.tokens_per_s == pytest.approx(1 / (STEP + TOKEN))


def test_kinds_of_steps(static: Run, chunked: Run) -> None:
    assert "mixed" not in {step_kind(s) for s in static.steps}
    assert "mixed" in {step_kind(s) for s in chunked.steps}
    padded = next(s for s in static.steps if any(row.phase == "padding" for row in s.scheduled))
    assert step_kind(padded) == "decode"
    assert step_kind(padded.model_copy(update={"scheduled": []})) == "empty"


def test_achieved_rates_are_work_over_the_forward_pass(single: Run) -> None:
    step = single.steps[1]
    assert achieved_gbps(step) == pytest.approx(moved_bytes(step.work) / 1e9 / (STEP + TOKEN))
    assert achieved_tflops(step) == pytest.approx(step.work.flops / 1e12 / (STEP + TOKEN))
    assert achieved_gbps(step.model_copy(update={"time_ms": TimeMs()})) is None


# ------------------------------------------------------------------------------------------------- KV memory
def test_kv_grows_by_one_position_per_token(single: Run) -> None:
    uses = kv_of_request(single, "r0")
    assert [u.num_tokens for u in uses] == [5, 6, 7, 8]  # the last token made is never stored
    assert [u.num_blocks for u in uses] == [2, 2, 2, 2]
    assert [u.filled_bytes for u in uses] == [n * KV for n in (5, 6, 7, 8)]
    assert [u.reserved_bytes for u in uses] == [8 * KV] * 4


def test_the_pool_is_empty_again_at_the_end(single: Run) -> None:
    after = kv_after_steps(single)
    assert [u.filled_bytes for u in after] == [5 * KV, 6 * KV, 7 * KV, 0]
    assert [u.num_blocks for u in after] == [2, 2, 2, 0]


def test_static_batching_reserves_what_it_may_need(static: Run) -> None:
    first = kv_of_request(static, "C")[0]
    assert first.num_blocks == 3  # prompt 3 + max_tokens 8 in blocks of 4
    assert first.num_tokens < 3


@pytest.mark.parametrize("seed", range(20))
def test_kv_use_agrees_with_the_pool_on_random_runs(seed: int) -> None:
    run = make_run(random_scenario(seed) if seed else preempting_scenario())
    for step, use, snapshot in zip(run.steps, kv_after_steps(run), block_snapshots(run), strict=True):
        assert use.num_blocks == step.blocks.in_use == len(snapshot.users)
        assert use.filled_bytes <= use.reserved_bytes
        states = [snapshot.state(b) for b in range(step.blocks.total)]
        assert states.count("free") == step.blocks.free
    for record in run.requests:
        uses = kv_of_request(run, record.request_id)
        assert uses[-1].num_tokens == record.num_prompt_tokens + record.num_output_tokens - 1
        assert all(u.filled_bytes <= u.reserved_bytes for u in uses)


@pytest.mark.parametrize("prefix_cache", ["none", "radix"])
def test_tokens_in_the_pool_are_counted_block_by_block_and_a_shared_one_once(prefix_cache: str) -> None:
    asked = [{"prompt_token_ids": [*prompt(8), 90 + i], "max_tokens": 6, "arrival_s": 0.02 * i} for i in range(4)]
    limits = {"max_requests": 4, "max_batch_tokens": 16, "num_blocks": 32, "prefix_cache": prefix_cache}
    run = make_run({"policy": "chunked", "block_size": 4, "limits": limits, "requests": asked})
    computed: dict[str, int] = {}
    num_shared = 0
    for step, use, snapshot in zip(run.steps, kv_after_steps(run), block_snapshots(run), strict=True):
        computed |= computed_ends(step)
        held: dict[int, int] = {}
        for name, table in snapshot.tables.items():
            for index, block in enumerate(table):
                held[block] = max(held.get(block, 0), min(4, computed[name] - 4 * index))
        assert (use.num_tokens, use.num_blocks) == (sum(held.values()), len(held))
        num_shared += sum(len(users) > 1 for users in snapshot.users.values())
    assert (num_shared > 0) == (prefix_cache == "radix")


# ------------------------------------------------------------------------------------------------- numbers
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(0, 100))
def test_percentile_is_numpys(values: list[float], q: float) -> None:
    numpy = pytest.importorskip("numpy")
    assert percentile(values, q) == pytest.approx(float(numpy.percentile(values, q)), rel=1e-9, abs=1e-6)


def test_percentiles_leave_out_the_undefined() -> None:
    found = percentiles([3.0, None, 1.0, 2.0])
    assert (found.count, found.p50, found.maximum, found.mean) == (3, 2, 3, 2)
    assert percentiles([None]).p99 is None


def test_spread_tells_quiet_from_noisy() -> None:
    assert spread([1.0, 1.01, 0.99, 1.0, 1.02]).noisy is False
    assert spread([1.0, 1.5, 0.7, 1.0, 1.2]).noisy is True
    assert spread([1.0, 1.0]).noisy is True  # too few to say
    assert spread([]).relative is None


def test_step_spread_compares_only_like_steps(static: Run) -> None:
    quiet = step_spread(static)
    assert quiet.relative == pytest.approx(0, abs=1e-9) and not quiet.noisy
    assert step_spread(static, "mixed").noisy


# ------------------------------------------------------------------------------------------------- tables
def test_tables_have_a_row_for_everything(chunked: Run) -> None:
    requests, steps = request_table(chunked), step_table(chunked)
    assert list(requests["request_id"]) == ["A", "B", "C", "D"]
    assert requests["ttft_ms"].iloc[0] == pytest.approx(all_request_metrics(chunked)["A"].ttft_s * 1e3)
    assert len(steps) == len(chunked.steps)
    assert steps["tokens"].sum() == sum(s.work.tokens for s in chunked.steps)
    assert steps["outputs"].sum() == run_metrics(chunked).num_output_tokens


def test_importing_metrics_leaves_torch_and_pandas_unloaded() -> None:
    code = "import sys, engine.lab.metrics, engine.lab.check; sys.exit(bool({'torch', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
