"""Numbers as people read them: significant digits, units, and a dash where there is nothing."""

from __future__ import annotations

import pytest

from engine.lab import units


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"), (3.0, "3"), (0.00123, "0.00123"), (0.5, "0.500"), (12.345, "12.3"), (99.96, "100.0"),
        (1234.5, "1,234"), (123456.7, "123,457"), (10_000_000.0, "10,000,000"), (-2.5, "-2.50"),
        (None, "–"), (float("nan"), "–"),
    ],
)  # fmt: skip
def test_number(value: float | None, expected: str) -> None:
    assert units.number(value, "en") == expected


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_units_follow_the_size(lang: str) -> None:
    assert units.milliseconds(0.5, lang) == "0.500 ms"
    assert units.milliseconds(2_500, lang) == "2.50 s"
    assert units.milliseconds(300_000, lang) == "5 min"
    assert units.seconds(0.0129, lang) == "12.9 ms"
    assert units.byte_count(538_060_032, lang) == "538 MB"
    assert units.byte_count(14e9, lang) == "14 GB"
    assert units.byte_count(999, lang) == "999 B"
    assert units.flop_count(13_794_435_072, lang) == "13.8 GFLOP"
    assert units.percent(0.376, lang) == ("37.6%" if lang == "zh" else "37.6 %")
    assert units.factor(1.5, lang) == "1.50×"


def test_nothing_measured_is_a_dash() -> None:
    say = (units.milliseconds, units.seconds, units.byte_count, units.flop_count, units.percent, units.factor)
    assert {f(None, "en") for f in say} == {"–"}
