"""Which kernels run the model: Triton's on a GPU that can, torch everywhere else; or what the user asked for.

It decides once, before a model is loaded, and says in one sentence why. Triton is imported here at the earliest, and
only when it was chosen: a machine without it never notices. Its interpreter is for tests; a process in which it is
switched on does not take Triton for an engine, since it would be ten thousand times slower without a word.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from engine.lab.scenario import Limits
from engine.model.ops import Ops
from engine.runtime.executor import TorchExecutor

if TYPE_CHECKING:
    from engine.model.load import LoadedModel

Kernels = Literal["torch", "triton"]
KERNELS: tuple[Kernels, ...] = ("torch", "triton")
LEAST_CAPABILITY = (8, 0)  # Ampere: bfloat16 products and loads that run ahead


class KernelsError(ValueError):
    """Kernels that cannot be had here. The message is one sentence with a remedy."""


@dataclass(frozen=True)
class KernelChoice:
    """What runs, and why not the other, in one sentence for the device card ("" where it is as asked)."""

    name: Kernels
    why: str = ""


def choose_kernels(wanted: str | None, device: torch.device) -> KernelChoice:
    """``wanted``: torch, triton, or None for the best there is. Pure. Raises: KernelsError."""
    if wanted not in (None, *KERNELS):
        raise KernelsError(f"kernels is {wanted!r}; allowed: {', '.join(KERNELS)}, or leave it out")
    if wanted == "torch":
        return KernelChoice("torch")
    missing = why_no_triton(device)
    if not missing:
        return KernelChoice("triton")
    if wanted == "triton":
        raise KernelsError(f"kernels is 'triton', but {missing}; take torch or leave it out")
    return KernelChoice("torch", missing)


def why_no_triton(device: torch.device) -> str:
    """ "" or what is missing for Triton kernels on this device. Pure."""
    if device.type != "cuda":
        return "the Triton kernels need an NVIDIA GPU and there is none here"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed (pip install triton)"
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        return "TRITON_INTERPRET is set, which makes Triton kernels thousands of times slower (unset it)"
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        return f"this GPU has compute capability {capability[0]}.{capability[1]} and the Triton kernels need 8.0"
    return ""


def triton_ops(weights: str | None) -> Ops:
    """The decoder's operations with Triton kernels. Effect: imports Triton."""
    from engine.model.ops_triton import TritonOps

    return TritonOps(weights)


def make_executor(
    choice: KernelChoice, loaded: LoadedModel, limits: Limits, block_size: int, kv_dtype: str | None = None
) -> TorchExecutor:
    """An executor for the chosen kernels; Triton's records its decode steps as graphs.

    A quantized cache keeps the keys of a filling block elsewhere, which only the torch attention knows.
    Raises: ScenarioError for a KV dtype or a number of blocks that cannot be had here.
    """
    if choice.name == "torch" or kv_dtype not in (None, loaded.dtype):
        return TorchExecutor(loaded, limits, block_size, kv_dtype)
    from engine.runtime.graphs import CudaRecorder
    from engine.runtime.triton_executor import TritonExecutor

    return TritonExecutor(loaded, limits, block_size, recorder=CudaRecorder())
