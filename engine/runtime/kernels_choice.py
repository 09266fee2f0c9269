"""Which kernels run the model: Triton's on a GPU, the C++ ones on a CPU, torch where neither can be had; or as asked.

It decides before a model is loaded, and says in one sentence why. Triton is imported here at the earliest, and
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
from engine.model.ops_cpp import CppOps
from engine.runtime.cpp_executor import CppExecutor
from engine.runtime.executor import TorchExecutor
from kernels.cpu import CpuLibrary

if TYPE_CHECKING:
    from engine.model.load import LoadedModel

Kernels = Literal["torch", "triton", "cpp"]
KERNELS: tuple[Kernels, ...] = ("torch", "triton", "cpp")
NOT_BUILT = "the C++ kernels have not been built"
LEAST_CAPABILITY = (8, 0)  # Ampere: bfloat16 products and loads that run ahead


class KernelsError(ValueError):
    """Kernels that cannot be had here. The message is one sentence with a remedy."""


@dataclass(frozen=True)
class KernelChoice:
    """What runs, and why not the other, in one sentence for the device card ("" where it is as asked)."""

    name: Kernels
    why: str = ""


def wanted_kernels() -> str | None:
    """What the user asks for in TOKEN_BY_TOKEN_KERNELS, None for the best there is. Pure but for the environment."""
    return os.environ.get("TOKEN_BY_TOKEN_KERNELS") or None


def choose_kernels(wanted: str | None, device: torch.device, why_no_cpp: str | None = None) -> KernelChoice:
    """``wanted``: torch, triton, cpp, or None for the best there is. Pure. Raises: KernelsError.

    ``why_no_cpp``: "" when the C++ kernels are built, a sentence when not; None where nobody has tried to.
    """
    if wanted not in (None, *KERNELS):
        raise KernelsError(f"kernels is {wanted!r}; allowed: {', '.join(KERNELS)}, or leave it out")
    if wanted == "torch":
        return KernelChoice("torch")
    on_cpu = device.type == "cpu"
    best: Kernels = "cpp" if wanted == "cpp" or (wanted is None and on_cpu and why_no_cpp is not None) else "triton"
    if best == "triton":
        missing = why_no_triton(device)
    else:
        missing = (why_no_cpp if why_no_cpp is not None else NOT_BUILT) if on_cpu else "the C++ kernels are for a CPU"
    if not missing:
        return KernelChoice(best)
    if wanted is not None:
        raise KernelsError(f"kernels is {wanted!r}, but {missing}; take torch or leave it out")
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


def ops_of(choice: KernelChoice, weights: str | None, library: CpuLibrary | None = None) -> Ops | None:
    """The operations to load a model with; None for torch's. ``library``: for cpp. Effect: may import Triton."""
    if choice.name == "triton":
        from engine.model.ops_triton import TritonOps

        return TritonOps(weights)
    if choice.name == "cpp":
        assert library is not None, "the C++ kernels were chosen and there is no library of them"
        return CppOps(library, weights)
    return None


def kernels_of(loaded: LoadedModel) -> str:
    """The kernels a model was loaded for. Pure."""
    return loaded.decoder.ops.name.split()[0]


def settle(loaded: LoadedModel) -> None:
    """After loading: the C++ kernels take the weights into their own order. Effect: once per model, no copy is left."""
    if isinstance(loaded.decoder.ops, CppOps):
        loaded.decoder.ops.compiled(loaded.decoder)


def make_executor(loaded: LoadedModel, limits: Limits, block_size: int, kv_dtype: str | None = None) -> TorchExecutor:
    """An executor for the kernels the model was loaded for: Triton's records its decode steps as graphs, the C++ one
    makes a step one call.

    A quantized cache keeps the keys of a filling block elsewhere, which only the torch attention knows.
    Raises: ScenarioError for a KV dtype or a number of blocks that cannot be had here.
    """
    kernels, ops = kernels_of(loaded), loaded.decoder.ops
    if kv_dtype in (None, loaded.dtype):
        if isinstance(ops, CppOps) and ops.compiled(loaded.decoder) is not None:
            return CppExecutor(loaded, limits, block_size)
        if kernels == "triton":
            from engine.runtime.graphs import CudaRecorder
            from engine.runtime.triton_executor import TritonExecutor

            return TritonExecutor(loaded, limits, block_size, recorder=CudaRecorder())
    return TorchExecutor(loaded, limits, block_size, kv_dtype)
