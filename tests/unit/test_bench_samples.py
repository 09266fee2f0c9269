"""The arithmetic of the bench: medians, spreads, ratios round by round, shares of the roof."""

from __future__ import annotations

import pytest

from engine.bench.samples import Sample, of, ratio, read_gbps, share_of_roof, spread, tflops


def samples(system: str, values: dict[int, float], unit: str = "tok/s", **extra: float) -> list[Sample]:
    return [Sample("decode", "decode 64", system, "bfloat16", r, value, unit, **extra) for r, value in values.items()]


def test_a_spread_is_the_median_with_its_lowest_and_highest() -> None:
    found = spread([3.0, 100.0, 1.0, 2.0, 4.0])
    assert (found.median, found.low, found.high, found.count) == (3.0, 1.0, 100.0, 5)
    assert spread([1.0, 2.0]).median == 1.5
    assert spread([]) is None


def test_a_ratio_is_taken_round_by_round_so_a_slow_minute_for_all_does_not_show() -> None:
    ours, theirs = samples("ours", {0: 120.0, 1: 60.0, 2: 120.0}), samples("hf", {0: 60.0, 1: 30.0, 2: 40.0})
    found = ratio(ours, theirs)
    assert (found.median, found.low, found.high) == (2.0, 2.0, 3.0)


def test_rounds_without_a_partner_are_left_out_of_a_ratio() -> None:
    assert ratio(samples("ours", {0: 10.0, 1: 20.0}), samples("hf", {1: 10.0, 7: 1.0})).count == 1
    assert ratio(samples("ours", {0: 10.0}), samples("hf", {1: 10.0})) is None
    assert ratio(samples("ours", {0: 10.0}), []) is None
    assert ratio(samples("ours", {0: 10.0}), samples("hf", {0: 0.0})) is None


@pytest.mark.parametrize("unit", ["s", "ms", "MB"])
def test_where_less_is_better_the_ratio_is_turned_round(unit: str) -> None:
    assert ratio(samples("ours", {0: 2.0}, unit), samples("hf", {0: 6.0}, unit)).median == 3.0


def test_a_share_of_the_roof_uses_the_highest_roof_so_a_disturbed_one_does_not_flatter_it() -> None:
    mine = samples("ours", {0: 100.0, 1: 150.0, 4: 100.0}, bytes_read=0.2e9)  # 20 and 30 GB/s
    roofs = samples("roof", {0: 40.0, 1: 25.0}, "GB/s")
    found = share_of_roof(mine, roofs, read_gbps)
    assert sorted([found.low, found.median, found.high]) == pytest.approx([0.5, 0.5, 0.75])
    assert share_of_roof(mine, [], read_gbps) is None
    assert share_of_roof(samples("ours", {0: 100.0}), roofs, read_gbps) is None  # nothing is known of its bytes


def test_flops_of_a_prefill_are_per_token() -> None:
    (sample,) = samples("ours", {0: 1_000.0}, flops=0.25e9)
    assert tflops(sample) == pytest.approx(0.25)


def test_cells_are_found_by_case_system_and_precision_in_the_order_of_rounds() -> None:
    mixed = samples("ours", {2: 2.0, 0: 1.0}) + samples("hf", {0: 9.0})
    assert [sample.value for sample in of(mixed, "decode 64", "ours", "bfloat16")] == [1.0, 2.0]
    assert of(mixed, "decode 64", "ours", "int8") == []
