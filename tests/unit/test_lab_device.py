"""The device is described from what the system says, each source missing in turn; noise is arithmetic on samples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from engine.lab import device
from engine.lab.device import (
    CpuSample,
    Noise,
    cpu_name,
    cpu_sample,
    describe_device,
    disturbance,
    noise,
    usable_cores,
)
from engine.lab.records import Disturbance

CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC   9354 32-Core Processor
"""


@pytest.fixture
def no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_lines", lambda path: [])


def files(monkeypatch: pytest.MonkeyPatch, **contents: str) -> None:
    """Let only these files exist, by name."""
    monkeypatch.setattr(device, "_lines", lambda path: contents.get(Path(path).name.replace(".", "_"), "").splitlines())


def test_the_cpu_at_hand_is_described() -> None:
    info = describe_device("cpu")
    assert info.type == "cpu" and info.name
    assert 1 <= info.threads <= psutil.cpu_count()
    assert 0 < info.memory_bytes <= psutil.virtual_memory().total
    assert info.read_gbps is None and info.matmul_tflops is None


def test_the_name_comes_from_cpuinfo(monkeypatch: pytest.MonkeyPatch) -> None:
    files(monkeypatch, cpuinfo=CPUINFO)
    assert cpu_name() == "AMD EPYC 9354 32-Core Processor"


@pytest.mark.usefixtures("no_files")
def test_without_cpuinfo_a_mac_is_asked_and_others_say_their_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(device, "_output", lambda *command: "Apple M4")
    assert cpu_name() == "Apple M4"
    monkeypatch.setattr(device, "_output", lambda *command: "")
    monkeypatch.setattr(device.platform, "processor", lambda: "")
    monkeypatch.setattr(device.platform, "machine", lambda: "arm64")
    assert cpu_name() == "arm64"
    monkeypatch.setattr(device.platform, "machine", lambda: "")
    assert cpu_name() == "unknown CPU"


@pytest.mark.parametrize(("quota", "cores"), [("150000 100000", 2), ("max 100000", 8), ("50000 100000", 1), ("", 8)])
def test_a_containers_quota_counts(monkeypatch: pytest.MonkeyPatch, quota: str, cores: int) -> None:
    files(monkeypatch, cpu_max=quota)
    monkeypatch.setattr(device.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert usable_cores() == cores


def test_a_containers_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    files(monkeypatch, memory_max="1000000")
    assert device.usable_memory_bytes() == 1_000_000
    files(monkeypatch, memory_max="max")
    assert device.usable_memory_bytes() == psutil.virtual_memory().total


def test_auto_takes_the_gpu_if_the_driver_shows_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "visible_gpus", lambda: [("NVIDIA L4", 24_000_000_000)])
    info = describe_device("auto")
    assert (info.name, info.type, info.memory_bytes) == ("NVIDIA L4", "cuda", 24_000_000_000)
    assert describe_device("cpu").type == "cpu"
    monkeypatch.setattr(device, "visible_gpus", list)
    assert describe_device("auto").type == "cpu"


def test_a_device_that_is_not_there_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "visible_gpus", list)
    with pytest.raises(ValueError, match="the driver shows no GPU; use cpu"):
        describe_device("cuda")
    with pytest.raises(ValueError, match="device is 'tpu'; allowed: auto, cpu, cuda"):
        describe_device("tpu")


@pytest.mark.parametrize(
    ("wanted", "names"),
    [(None, "abc"), ("", ""), ("1", "b"), ("2,0", "ca"), ("0,7,1", "a"), ("-1", ""), ("GPU-123", "abc")],
)
def test_visible_devices_are_those_cuda_would_see(wanted: str | None, names: str) -> None:
    gpus = [("a", 1), ("b", 2), ("c", 3)]
    assert "".join(name for name, _ in device._visible(gpus, wanted)) == names


def test_a_missing_driver_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert device.visible_gpus() == []


# ------------------------------------------------------------------------------------------------- noise
def measured(total: float, idle: float, steal: float, own: float) -> Noise:
    return noise(CpuSample(100, 50, 1, 10), CpuSample(100 + total, 50 + idle, 1 + steal, 10 + own))


def test_a_quiet_machine_is_quiet() -> None:
    quiet = measured(total=20, idle=10, steal=0, own=9.5)
    assert (quiet.steal_share, quiet.disturbed) == (0, False)
    assert quiet.others_share == pytest.approx(0.025)


def test_stolen_time_and_neighbours_disturb() -> None:
    assert measured(total=20, idle=9, steal=1, own=10).steal_share == pytest.approx(0.05)
    assert measured(total=20, idle=9, steal=1, own=10).disturbed
    busy = measured(total=20, idle=5, steal=0, own=10)
    assert busy.others_share == pytest.approx(0.25) and busy.disturbed


def test_a_run_keeps_what_disturbed_it() -> None:
    before = CpuSample(100, 50, 1, 10)
    busy = disturbance(before, CpuSample(120, 55, 1.1, 20))
    assert busy == Disturbance(steal_share=0.005, others_share=0.245, is_noisy=True)
    assert disturbance(before, CpuSample(120, 60, 1, 19.5)).is_noisy is False
    assert disturbance(before, CpuSample(100.4, 50.1, 1, 10)) is None, "too short to tell"


def test_no_time_between_samples_says_nothing() -> None:
    nothing = noise(CpuSample(1, 1, 0, 0), CpuSample(1, 1, 0, 0))
    assert nothing.steal_share is None and nothing.others_share is None and not nothing.disturbed


def test_rounding_of_clocks_never_gives_a_negative_share() -> None:
    assert measured(total=20, idle=10, steal=-0.01, own=10.5).others_share == 0


def test_samples_of_this_machine_only_grow() -> None:
    before = cpu_sample()
    sum(range(200_000))
    after = cpu_sample()
    assert after.total_s >= before.total_s and after.own_s >= before.own_s
    assert 0 <= after.idle_s <= after.total_s


def test_importing_device_leaves_torch_unloaded() -> None:
    code = "import sys, engine.lab.device as d; d.describe_device(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
