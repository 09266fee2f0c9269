"""Devices and models that are not here: datasheet numbers with their sources, and public model shapes.

It decides nothing and measures nothing: it reads ``devices.yaml`` and ``models.yaml`` beside it, and turns them into
rooflines and ``ModelInfo`` for the calculators. A rate nobody states is None, never a guess, and every number carries
its status (spec, secondary, derived, measured), so that a page can put the right badge beside it. Rates are dense and
matrix rates accumulate in float32.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from engine.lab.records import DeviceInfo, ModelInfo
from engine.lab.roof import Ceilings
from engine.lab.work import bytes_per_element

Status = Literal["spec", "secondary", "derived", "measured"]
Unit = Literal["matrix", "vector"]
Entry = TypeVar("Entry", "Device", "Model")


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Fact(_Entry):
    """One number with where it comes from."""

    value: float = Field(gt=0)
    status: Status
    source: str = Field(min_length=1)
    note: str = ""


class Device(_Entry):
    """A device's roof. ``vector`` and ``matrix``: TFLOP/s by dtype on the two kinds of unit; missing: not stated."""

    id: str
    name: str
    kind: Literal["gpu", "cpu", "soc"]
    memory_gb: Fact | None = None
    bandwidth_gbps: Fact | None = None
    vector: dict[str, Fact] = {}
    matrix: dict[str, Fact] = {}
    achieved_matmul_tflops: Fact | None = None

    def rate(self, dtype: str, unit: Unit = "matrix") -> Fact | None:
        """TFLOP/s of a dtype on one kind of unit, or None if not stated. Pure."""
        return (self.matrix if unit == "matrix" else self.vector).get(dtype)

    def ridge(self, dtype: str, unit: Unit = "matrix") -> float | None:
        """FLOP per byte above which this dtype is compute-bound on this unit; None if a number is missing. Pure."""
        rate = self.rate(dtype, unit)
        return rate.value * 1e3 / self.bandwidth_gbps.value if rate and self.bandwidth_gbps else None


class Model(_Entry):
    """A published decoder shape. ``num_parameters`` counts tied embeddings once."""

    id: str
    name: str
    hub_id: str
    num_layers: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    num_heads: int = Field(ge=1)
    num_kv_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    num_parameters: int = Field(ge=1)
    tie_word_embeddings: bool
    attention_bias: bool = False
    qk_norm: bool = False
    context: int = Field(ge=1)

    @property
    def source(self) -> str:
        return f"config.json of {self.hub_id}"

    def info(self, dtype: str = "bfloat16") -> ModelInfo:
        """The model as a run header would describe it in ``dtype``. Pure. Raises: ValueError for an unknown dtype."""
        table = 0 if self.tie_word_embeddings else self.vocab_size * self.hidden_size
        return ModelInfo(
            name=self.name,
            source=self.source,
            architecture="llama",
            num_layers=self.num_layers,
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            vocab_size=self.vocab_size,
            num_parameters=self.num_parameters,
            weight_bytes=round((self.num_parameters - table) * bytes_per_element(dtype)),
            tie_word_embeddings=self.tie_word_embeddings,
        )


@lru_cache(maxsize=1)
def devices() -> tuple[Device, ...]:
    """All catalogue devices, in the file's order. Pure."""
    return tuple(TypeAdapter(list[Device]).validate_python(_read("devices.yaml")))


@lru_cache(maxsize=1)
def models() -> tuple[Model, ...]:
    """All catalogue models, smallest first. Pure."""
    return tuple(TypeAdapter(list[Model]).validate_python(_read("models.yaml")))


def device(device_id: str) -> Device:
    """A catalogue device by id. Raises: KeyError."""
    return _find(devices(), device_id)


def model(model_id: str) -> Model:
    """A catalogue model by id. Raises: KeyError."""
    return _find(models(), model_id)


def device_at_hand(info: DeviceInfo, ceilings: Ceilings | None) -> Device:
    """This machine as an entry beside the catalogue's: rates measured here, none where nothing was measured. Pure."""
    memory = Fact(value=info.memory_bytes / 1e9, status="measured", source="operating system")
    if ceilings is None:
        return Device(id="here", name=info.name, kind="gpu" if info.type == "cuda" else "cpu", memory_gb=memory)
    return Device(
        id="here",
        name=info.name,
        kind="gpu" if info.type == "cuda" else "cpu",
        memory_gb=memory,
        bandwidth_gbps=_measured(ceilings.read_gbps, ceilings.read.how, ceilings.read.noisy),
        matrix={dtype: _measured(rate.value, rate.how, rate.noisy) for dtype, rate in ceilings.matmul.items()},
    )


def _measured(value: float, how: str, noisy: bool) -> Fact:
    return Fact(value=value, status="measured", source=how, note="noisy" if noisy else "")


def _find(entries: tuple[Entry, ...], entry_id: str) -> Entry:
    for entry in entries:
        if entry.id == entry_id:
            return entry
    raise KeyError(entry_id)


def _read(name: str) -> object:
    return yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))
