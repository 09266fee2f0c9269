"""The models at hand: loaded once, kept while there is room, each with the kernels that run now.

It decides what stays in memory (the last models, one executor with its KV cache) and which kernels the next model is
loaded for: the C++ ones are built in the background, and torch runs until they are there. It runs nothing.
Invariant: an executor is never kept longer than its model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from engine.lab.records import DeviceInfo, ModelInfo
from engine.lab.scenario import Limits
from engine.model.load import LoadedModel, load_model
from engine.runtime.cpp_kernels import CppKernels
from engine.runtime.executor import TorchExecutor
from engine.runtime.kernels_choice import KernelChoice, choose_kernels, kernels_of, make_executor, ops_of, settle
from engine.settings import Settings

OnProgress = Callable[[str, float | None, str], None]
NUM_MODELS_KEPT = 2


@dataclass
class _Kept:
    """Loaded models, most recently used last."""

    # by name, dtype, weights, number of KV heads
    models: dict[tuple[str, str, str | None, int | None], LoadedModel] = field(default_factory=dict)
    executor: TorchExecutor | None = None
    executor_key: tuple[object, ...] = ()


class ModelShelf:
    """Models and the executor of the last run. All calls come from one thread."""

    def __init__(self, settings: Settings, device: DeviceInfo, on_progress: OnProgress, kernels: str | None) -> None:
        """``kernels``: torch, triton, cpp, or None for the best there is. Raises: KernelsError.

        Effect: on a CPU None and cpp start building the C++ kernels in the background.
        """
        self._settings = settings
        self._device = device
        self._on_progress = on_progress
        self._kept = _Kept()
        self._default_model: ModelInfo | None = None
        self._kernels = kernels
        self._cpp: CppKernels | None = None
        if kernels in (None, "cpp") and device.type == "cpu":
            self._cpp = CppKernels(settings.home / "kernels", device.threads)
        else:
            self.choice()  # refuses now what it would refuse later

    def choice(self) -> KernelChoice:
        """What runs the next model. Raises: KernelsError."""
        device = torch.device(self._device.type)
        if self._cpp is None:
            return choose_kernels(self._kernels, device)
        wanted = self._kernels if self._cpp.is_decided() else None
        return choose_kernels(wanted, device, self._cpp.why)

    def load(self, model: str, dtype: str, weights: str | None = None, num_kv_heads: int | None = None) -> LoadedModel:
        """A model, from memory if it was loaded before for the kernels that run now. Raises: ModelError."""
        choice, key = self.choice(), (model, dtype, weights, num_kv_heads)
        loaded = self._kept.models.pop(key, None)
        if loaded is not None and kernels_of(loaded) != choice.name:
            loaded = None  # the C++ kernels have come since
            self._forget_executor()
        if loaded is None:
            while len(self._kept.models) >= NUM_MODELS_KEPT:
                self._kept.models.pop(next(iter(self._kept.models)))
                self._forget_executor()
            ops = ops_of(choice, weights, self._cpp.library if self._cpp else None)
            models_dir = self._settings.models_dir
            loaded = load_model(
                model,
                dtype,
                self._on_progress,
                weights=weights,
                num_kv_heads=num_kv_heads,
                models_dir=models_dir,
                ops=ops,
            )
            settle(loaded)
        self._kept.models[key] = loaded
        if self._default_model is None and key == (self._settings.default_model, dtype, None, None):
            self._default_model = loaded.info
        return loaded

    def executor(
        self, loaded: LoadedModel, limits: Limits, block_size: int, kv_dtype: str | None = None
    ) -> TorchExecutor:
        """An executor with a KV cache of the right size; the last one is kept, for allocation is slow."""
        key = (id(loaded), limits.num_blocks, limits.max_requests, block_size, kv_dtype)
        if self._kept.executor is None or self._kept.executor_key != key:
            self._forget_executor()
            self._kept.executor = make_executor(loaded, limits, block_size, kv_dtype)
            self._kept.executor_key = key
        return self._kept.executor

    def _forget_executor(self) -> None:
        self._kept.executor, self._kept.executor_key = None, ()

    @property
    def default_model(self) -> ModelInfo | None:
        """The model that scenarios take when they name none, as loaded first; None before that.

        What a run loads of it later, with smaller weights or other KV heads, does not change what a page shows.
        """
        return self._default_model

    @property
    def max_positions(self) -> int | None:
        """Of the model used last."""
        return next((m.max_positions for m in reversed(self._kept.models.values())), None)
