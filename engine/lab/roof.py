"""Measured ceilings as data: the roof of one device, and the file that remembers it between starts.

It decides what a measured rate says about itself and which of two measurements to believe; it measures nothing and
never imports torch, so that pages can draw a roof without the engine (``engine.lab.ceilings`` measures). Invariant: of
two rates that are merged, a quiet one is never given up for a noisy one.
"""

from __future__ import annotations

import json
import os
from importlib import metadata
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError, computed_field

from engine.lab.device import OTHERS_LIMIT, STEAL_LIMIT, describe_device
from engine.lab.records import DeviceInfo
from engine.settings import settings


class Rate(BaseModel):
    """A measured rate: the best window's median, with that window's p10 and p90 and the median of all passes."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    value: float
    unit: str
    low: float
    high: float
    median: float
    count: int
    noisy: bool
    how: str

    @property
    def spread(self) -> float:
        """(p90 − p10)/median of the best window."""
        return (self.high - self.low) / self.value if self.value else 0.0


class Ceilings(BaseModel):
    """The measured roof of one device with one number of threads and one torch."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    device: str
    device_type: str
    threads: int
    torch_version: str
    measured_utc: str
    seconds: float
    read: Rate
    matmul: dict[str, Rate]
    steal_share: float | None = None
    others_share: float | None = None

    @computed_field
    @property
    def read_gbps(self) -> float:
        """Sustained memory read rate in GB/s (decimal)."""
        return self.read.value

    @computed_field
    @property
    def matmul_tflops(self) -> dict[str, float]:
        """Achieved matmul rate in TFLOP/s by dtype."""
        return {dtype: rate.value for dtype, rate in self.matmul.items()}

    @computed_field
    @property
    def noisy(self) -> bool:
        """Whether any of the rates is too uneven to be drawn as a line."""
        return self.read.noisy or any(rate.noisy for rate in self.matmul.values())

    @computed_field
    @property
    def disturbed(self) -> bool:
        """Whether the machine was busy with something else while they were measured."""
        return (self.steal_share or 0) > STEAL_LIMIT or (self.others_share or 0) > OTHERS_LIMIT

    def fill(self, info: DeviceInfo, dtype: str) -> DeviceInfo:
        """The device with its measured rates for a run in ``dtype``. Pure."""
        tflops = self.matmul_tflops.get(dtype)
        return info.model_copy(update={"read_gbps": self.read_gbps, "matmul_tflops": tflops})

    def merge(self, other: Ceilings) -> Ceilings:
        """The more believable of each pair of rates: quiet before noisy, then the higher. Pure.

        Disturbance only ever lowers a rate, so of two noisy ones the higher is nearer to the roof.
        """
        matmul = dict(self.matmul)
        for dtype, rate in other.matmul.items():
            matmul[dtype] = better_rate(matmul[dtype], rate) if dtype in matmul else rate
        return self.model_copy(update={"read": better_rate(self.read, other.read), "matmul": matmul})


def better_rate(a: Rate, b: Rate) -> Rate:
    """Quiet before noisy, then the higher. Pure."""
    return max(a, b, key=lambda rate: (not rate.noisy, rate.value))


def load_cached(info: DeviceInfo | None = None) -> Ceilings | None:
    """Ceilings measured earlier on this device, with as many threads and this torch, or None. Imports no torch."""
    info = info or describe_device()
    entry = _read_cache().get(_key(info.name, info.type, info.threads, torch_version()))
    try:
        return None if entry is None else Ceilings.model_validate(entry)
    except ValidationError:
        return None  # written by another version: measure again


def save_cached(ceilings: Ceilings) -> None:
    """Effect: the cache holds these ceilings, and those of other devices as before. Raises: OSError."""
    path = _cache_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    key = _key(ceilings.device, ceilings.device_type, ceilings.threads, ceilings.torch_version)
    entries = _read_cache() | {key: ceilings.model_dump(mode="json")}
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(json.dumps(entries, indent=1), encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def torch_version() -> str:
    """The installed torch's version without importing it; ``none`` if there is no torch."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "none"


def _cache_path() -> Path:
    return settings().home / "ceilings.json"


def _key(device: str, device_type: str, threads: int, version: str) -> str:
    return f"{device} | {device_type} | {threads} threads | torch {version}"


def _read_cache() -> dict[str, object]:
    try:
        entries = json.loads(_cache_path().read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}
