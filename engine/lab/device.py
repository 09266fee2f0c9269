"""Which machine this is, and how much else it was busy with: the facts beside every measured number.

It decides nothing and measures no speed (``engine.lab.ceilings`` does); it reads what the operating system and, where
there is one, the NVIDIA driver say. It never imports torch, and never fails for want of a fact: an unknown is a plain
word or None. Invariant: describing a device changes nothing on it.
"""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from engine.lab.records import DeviceInfo, Disturbance

STEAL_LIMIT = 0.02  # share of time the hypervisor may take before timings are called disturbed
OTHERS_LIMIT = 0.10  # share of the machine other processes may use
SHORTEST_SPAN_S = 0.5  # core-seconds; the system counts in hundredths, so a shorter span tells nothing


# ------------------------------------------------------------------------------------------------- what it is
def describe_device(device: str = "auto", threads: int | None = None) -> DeviceInfo:
    """The device by name: ``cpu``, ``cuda`` (the first visible GPU) or ``auto`` (a GPU if the driver shows one).

    ``threads`` is what the engine will use, by default every usable core. Raises: ValueError if there is no such
    device.
    """
    kind = device.split(":")[0]
    if kind not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is {device!r}; allowed: auto, cpu, cuda")
    if kind != "cpu":
        gpus = visible_gpus()
        if gpus:
            name, memory_bytes = gpus[0]
            cores = threads or usable_cores()
            return DeviceInfo(name=name, type="cuda", threads=cores, memory_bytes=memory_bytes)
        if kind == "cuda":
            raise ValueError("device is 'cuda', but the driver shows no GPU; use cpu, or auto to take what there is")
    return DeviceInfo(
        name=cpu_name(), type="cpu", threads=threads or usable_cores(), memory_bytes=usable_memory_bytes()
    )


def cpu_name() -> str:
    """The processor's name as it calls itself, such as ``AMD EPYC 9354``; the architecture where it has none."""
    for line in _lines(Path("/proc/cpuinfo")):
        key, _, value = line.partition(":")
        if key.strip().lower() in ("model name", "hardware", "cpu model") and value.strip():
            return " ".join(value.split())
    if platform.system() == "Darwin":
        named = _output("sysctl", "-n", "machdep.cpu.brand_string")
        if named:
            return named
    return platform.processor() or platform.machine() or "unknown CPU"


def usable_cores() -> int:
    """Cores this process may run on: the scheduler's affinity, and a container's CPU quota, if any."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        cores = os.cpu_count() or 1
    quota = _cgroup_cpu_quota()
    return max(1, min(cores, round(quota)) if quota else cores)


def usable_memory_bytes() -> int:
    """Main memory, or what a container may have of it."""
    total = psutil.virtual_memory().total
    limit = next(iter(_lines(Path("/sys/fs/cgroup/memory.max"))), "max").strip()
    return min(total, int(limit)) if limit.isascii() and limit.isdigit() else total


def visible_gpus() -> list[tuple[str, int]]:
    """(name, memory in bytes) of each NVIDIA GPU this process may use. Empty without one, or without its driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no driver, a driver of another version: there is no GPU to speak of
        return []
    try:
        gpus = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            name = pynvml.nvmlDeviceGetName(handle)
            name = name.decode() if isinstance(name, bytes) else name
            gpus.append((name, int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)))
        return _visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _visible(gpus: list[tuple[str, int]], wanted: str | None) -> list[tuple[str, int]]:
    """Apply CUDA_VISIBLE_DEVICES: order and selection by index, nothing after the first that does not exist. Pure."""
    if wanted is None:
        return gpus
    chosen = []
    for part in wanted.split(","):
        index = part.strip()
        if index.startswith(("GPU-", "MIG-")):
            return gpus  # named by UUID: which of them cannot be told from here
        if not index.isascii() or not index.isdigit() or int(index) >= len(gpus):
            break
        chosen.append(gpus[int(index)])
    return chosen


def _cgroup_cpu_quota() -> float | None:
    """Cores' worth of time a container may use, or None."""
    words = next(iter(_lines(Path("/sys/fs/cgroup/cpu.max"))), "").split()
    if len(words) == 2 and all(w.isascii() and w.isdigit() for w in words) and int(words[1]) > 0:
        return int(words[0]) / int(words[1])
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


# ------------------------------------------------------------------------------------------------- what else it did
@dataclass(frozen=True)
class CpuSample:
    """CPU time since boot, in core-seconds: of the whole machine, and of this process."""

    total_s: float
    idle_s: float
    steal_s: float
    own_s: float


@dataclass(frozen=True)
class Noise:
    """What disturbed a measurement, as shares of all core time between two samples. None where it cannot be known.

    ``steal_share`` is time the hypervisor gave to other guests, ``others_share`` time of other processes here.
    """

    steal_share: float | None
    others_share: float | None
    load_1m: float | None
    governor: str | None
    disturbed: bool


def cpu_sample() -> CpuSample:
    """CPU times now, to be handed to ``noise`` later."""
    times = psutil.cpu_times()
    own = psutil.Process().cpu_times()
    # guest time is already part of user time: counting it again would invent idle cores
    parts = {k: v for k, v in times._asdict().items() if k not in ("guest", "guest_nice")}
    idle = times.idle + getattr(times, "iowait", 0.0)
    return CpuSample(sum(parts.values()), idle, getattr(times, "steal", 0.0), own.user + own.system)


def noise(before: CpuSample, after: CpuSample | None = None) -> Noise:
    """What happened on the machine since ``before`` that was not this process. Pure if ``after`` is given."""
    after = after or cpu_sample()
    span = after.total_s - before.total_s
    steal = others = None
    if span > 0:
        steal = min(max((after.steal_s - before.steal_s) / span, 0.0), 1.0)
        busy = span - (after.idle_s - before.idle_s) - (after.steal_s - before.steal_s)
        others = min(max((busy - (after.own_s - before.own_s)) / span, 0.0), 1.0)
    disturbed = (steal or 0) > STEAL_LIMIT or (others or 0) > OTHERS_LIMIT
    return Noise(steal, others, _load(), cpu_governor(), disturbed)


def disturbance(before: CpuSample, after: CpuSample | None = None) -> Disturbance | None:
    """``noise`` as a Run keeps it; None for a span too short to tell. Pure if ``after`` is given."""
    after = after or cpu_sample()
    if after.total_s - before.total_s < SHORTEST_SPAN_S:
        return None
    heard = noise(before, after)
    shares = [None if share is None else round(share, 4) for share in (heard.steal_share, heard.others_share)]
    return Disturbance(steal_share=shares[0], others_share=shares[1], is_noisy=heard.disturbed)


def cpu_governor() -> str | None:
    """The frequency governor (``performance``, ``powersave`` ...), or None where it is not told, as in most VMs."""
    lines = _lines(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"))
    return lines[0].strip() if lines else None


def _load() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None
