"""Ceilings: the window that counts, the cache and its damage, and one tiny real measurement (no speed is asserted)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.lab import ceilings
from engine.lab.device import describe_device
from engine.lab.records import DeviceInfo
from engine.lab.roof import Ceilings, Rate, better_rate, load_cached, save_cached

INFO = DeviceInfo(name="bench", type="cpu", threads=2, memory_bytes=1)


def rate(value: float = 20.0, noisy: bool = False) -> Rate:
    return Rate(value=value, unit="GB/s", low=value, high=value, median=value, count=10, noisy=noisy, how="test")


def roof(read: Rate | None = None, **changes: object) -> Ceilings:
    fields: dict[str, object] = {
        "device": "bench",
        "device_type": "cpu",
        "threads": 2,
        "torch_version": ceilings.torch_version(),
        "measured_utc": "2026-01-01T00:00:00+00:00",
        "seconds": 1.0,
        "read": read or rate(),
        "matmul": {"float32": rate(0.2), "bfloat16": rate(0.4)},
    }
    return Ceilings(**{**fields, **changes})


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOKEN_BY_TOKEN_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


# ------------------------------------------------------------------------------------------------- which rate counts
def test_the_best_window_counts_not_the_best_pass() -> None:
    found = ceilings._rate([10.0] * 20 + [99.0] + [10.0] * 20 + [30.0] * 10 + [10.0] * 20, "GB/s", "test")
    assert found.value == 30 and found.median == 10 and not found.noisy
    assert found.count == 71


def test_an_uneven_window_is_noisy() -> None:
    assert ceilings._rate([10.0, 12.0, 14.0] * 4, "GB/s", "test").noisy
    assert ceilings._rate([10.0, 10.0], "GB/s", "test").noisy  # too few to say


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=40))
def test_a_ceiling_lies_within_what_was_measured(rates: list[float]) -> None:
    found = ceilings._rate(rates, "GB/s", "test")
    assert min(rates) <= found.low <= found.value <= found.high <= max(rates)
    assert found.value >= found.median or len(rates) > ceilings.WINDOW


def test_quiet_beats_noisy_and_among_noisy_the_higher_counts() -> None:
    assert better_rate(rate(10), rate(30, noisy=True)).value == 10
    assert better_rate(rate(10, noisy=True), rate(30, noisy=True)).value == 30
    merged = roof(rate(10, noisy=True)).merge(roof(rate(9), matmul={"float32": rate(0.1), "float16": rate(0.3)}))
    assert merged.read_gbps == 9
    assert merged.matmul_tflops == {"float32": 0.2, "bfloat16": 0.4, "float16": 0.3}


def test_a_run_header_takes_the_rate_of_its_dtype() -> None:
    filled = roof().fill(INFO, "bfloat16")
    assert (filled.read_gbps, filled.matmul_tflops) == (20, 0.4)
    assert roof().fill(INFO, "float64").matmul_tflops is None


def test_a_busy_machine_is_called_disturbed() -> None:
    assert roof(others_share=0.5).disturbed and roof(steal_share=0.03).disturbed
    assert not roof(others_share=0.01, steal_share=0.0).disturbed


# ------------------------------------------------------------------------------------------------- the cache
def test_the_cache_remembers_by_device_threads_and_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_cached(INFO) is None
    save_cached(roof())
    save_cached(roof(rate(5), device="other"))
    assert load_cached(INFO) == roof()
    assert load_cached(INFO.model_copy(update={"name": "other"})).read_gbps == 5
    assert load_cached(INFO.model_copy(update={"threads": 1})) is None
    monkeypatch.setattr("engine.lab.roof.torch_version", lambda: "0.0")
    assert load_cached(INFO) is None


@pytest.mark.parametrize("content", ["", "[]", "{", "null", '"x"', "\x00", "[" * 100_000])
def test_a_damaged_cache_is_as_good_as_none(home: Path, content: str) -> None:
    home.mkdir()
    (home / "ceilings.json").write_text(content)
    assert load_cached(INFO) is None
    save_cached(roof())
    assert load_cached(INFO) == roof()


def test_an_entry_of_another_shape_is_measured_again(home: Path) -> None:
    save_cached(roof())
    path = home / "ceilings.json"
    entries = json.loads(path.read_text())
    path.write_text(json.dumps({key: {"read": 1} for key in entries}))
    assert load_cached(INFO) is None


def test_calibrate_measures_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(ceilings, "measure_ceilings", lambda info, progress: calls.append(info) or roof())
    assert ceilings.calibrate(INFO) == ceilings.calibrate(INFO) == roof()
    assert len(calls) == 1
    ceilings.calibrate(INFO, refresh=True)
    assert len(calls) == 2


def test_calibrate_tries_again_when_the_cached_roof_is_noisy_or_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    save_cached(roof(rate(8), others_share=0.9))
    monkeypatch.setattr(ceilings, "measure_ceilings", lambda info, progress: roof(rate(9)))
    assert ceilings.calibrate(INFO).read_gbps == 9  # both quiet, the machine was busy: the higher is nearer
    save_cached(roof(rate(10, noisy=True)))
    monkeypatch.setattr(ceilings, "measure_ceilings", lambda info, progress: roof(rate(12, noisy=True)))
    assert ceilings.calibrate(INFO).read_gbps == 12
    monkeypatch.setattr(ceilings, "measure_ceilings", lambda info, progress: roof(rate(11)))
    assert ceilings.calibrate(INFO).read_gbps == 11
    assert load_cached(INFO).read_gbps == 11


def test_a_cache_that_cannot_be_written_does_not_stop_the_lab(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.parent.mkdir(exist_ok=True)
    home.write_text("a file where the folder should be")
    monkeypatch.setattr(ceilings, "measure_ceilings", lambda info, progress: roof())
    assert ceilings.calibrate(INFO) == roof()
    with pytest.raises(OSError):
        save_cached(roof())


def test_cached_ceilings_are_read_without_torch() -> None:
    save_cached(roof())
    code = """
import sys
from engine.lab.ceilings import load_cached
from engine.lab.records import DeviceInfo
found = load_cached(DeviceInfo(name="bench", type="cpu", threads=2, memory_bytes=1))
sys.exit("torch" in sys.modules or found.read_gbps != 20)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ------------------------------------------------------------------------------------------------- measuring
def test_a_tiny_measurement_gives_every_rate_and_leaves_torch_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(ceilings, "READ_BYTES", {"cpu": 4 * 2**20})
    monkeypatch.setattr(ceilings, "LEAST_READ_BYTES", 2**20)
    monkeypatch.setattr(ceilings, "PIECE_BYTES", 2**20)
    monkeypatch.setattr(ceilings, "READ_SECONDS", 0.01)
    monkeypatch.setattr(ceilings, "MATMUL_SECONDS", 0.01)
    monkeypatch.setattr(ceilings, "MATMUL_SIZES", {"cpu": (32, 64)})
    own, told = torch.get_num_threads(), []
    found = ceilings.measure_ceilings(describe_device("cpu", threads=2), lambda share, what: told.append((share, what)))
    assert torch.get_num_threads() == own
    assert found.read_gbps > 0 and set(found.matmul_tflops) == {"float32", "bfloat16", "float16"}
    assert all(value > 0 for value in found.matmul_tflops.values())
    assert "4 MB" in found.read.how and found.read.count >= 3
    assert [what for _, what in told] == ["read", "float32", "bfloat16", "float16", "done"]
    assert told == sorted(told, key=lambda pair: pair[0])
    assert Ceilings.model_validate_json(found.model_dump_json()) == found


def test_a_reader_reads_every_piece_once_per_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(ceilings, "PIECE_BYTES", 64)
    summed = []

    class Piece:
        def __init__(self, number: int) -> None:
            self.number = number

        def sum(self) -> None:
            summed.append(self.number)

    class Buffer:
        def split(self, size: int) -> list[Piece]:
            assert size == 16
            return [Piece(i) for i in range(7)]

        def element_size(self) -> int:
            return 4

    with ceilings._reader(Buffer(), 3) as read_all:
        read_all()
        assert sorted(summed) == list(range(7))
        read_all()
    assert sorted(summed) == sorted([*range(7), *range(7)])
    assert torch.get_num_threads() >= 1


def test_a_size_that_would_take_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    sizes = []
    monkeypatch.setattr(torch, "matmul", lambda a, b, out: sizes.append(a.shape[0]))
    monkeypatch.setattr(ceilings, "MATMUL_SIZES", {"cpu": (8, 16, 32)})
    slow = {8: 0.01, 16: 0.2, 32: 9.0}

    def timed(once, seconds: float, sync) -> list[float]:
        once()
        return [slow[sizes[-1]]] * 12

    monkeypatch.setattr(ceilings, "_timed", timed)
    found = ceilings.measure_matmul(INFO, "float32")
    assert sizes == [8, 16]
    assert found.how.startswith("8 x 8") and found.value == pytest.approx(2 * 8**3 / 1e12 / 0.01)
