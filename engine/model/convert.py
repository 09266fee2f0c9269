"""Writing a model folder: config, tokenizer and safetensors together, whole or not at all.

A GGUF file is read and dequantized once; later starts map the safetensors and need neither gguf nor transformers. The
folder is built beside its place and renamed into it, so a reader never sees half a model, whatever interrupts us.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from engine.model.spec import ModelError

Progress = Callable[[str, float | None, str], None]  # (stage, fraction or None, message)

CONVERSION_VERSION = 1  # raise it when the folder's content changes: older folders are then made anew
MARKER = "conversion.json"
WEIGHTS = "model.safetensors"
_EXTRA_BYTES = 32 * 1024 * 1024  # tokenizer, configs and room to breathe


def converted_marker(folder: Path) -> dict[str, Any] | None:
    """The marker of a folder that was converted by this version and is whole; None otherwise. Pure.

    The weights' size is part of it: a file cut short by a crash of the machine is made anew, not complained about.
    """
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        num_bytes = (folder / WEIGHTS).stat().st_size
    except (OSError, ValueError):
        return None
    is_current = isinstance(marker, dict) and marker.get("version") == CONVERSION_VERSION
    return marker if is_current and marker.get("weights_bytes") == num_bytes else None


def convert_gguf(gguf_path: Path, folder: Path, source: str, progress: Progress) -> None:
    """Make ``folder`` from a GGUF file. Effect: it appears whole or not at all. Raises: ModelError."""
    from engine.model.load_gguf import GgufFile

    progress("convert", 0.0, f"reading {gguf_path.name}")
    opened = GgufFile(gguf_path)
    num_bytes = sum(4 * math.prod(shape) for shape in opened.shapes().values())
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder)
        _require_space(folder.parent, num_bytes + _EXTRA_BYTES)
        partial.mkdir()
        _write_folder(opened, partial, source, progress)
        _move_into_place(partial, folder)
    except OSError as error:
        raise ModelError(
            f"cannot write the converted model to {folder}: {error.strerror or error}; free {_gb(num_bytes)} there, "
            "or set TOKEN_BY_TOKEN_HOME to a folder that can be written"
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    progress("convert", 1.0, f"{folder.name} is ready")


def _write_folder(opened: Any, partial: Path, source: str, progress: Progress) -> None:
    """Everything a Hugging Face loader needs, and our marker last. Raises: OSError, ModelError."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    from engine.model.gguf_tokenizer import to_json, tokenizer_from_gguf
    from engine.model.spec import spec_from_config
    from engine.model.weights import check_tensors

    check_tensors(spec_from_config(opened.config), opened.shapes())
    names, tensors = list(opened.shapes()), {}
    for index, name in enumerate(names):
        tensors[name] = opened.read(name)
        progress("convert", 0.8 * (index + 1) / len(names), f"dequantizing {opened.quantization} weights")
    progress("convert", 0.8, "writing float32 weights")
    try:
        save_file(tensors, partial / WEIGHTS, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from None
    tokenizer, tokenizer_config = tokenizer_from_gguf(opened.fields)
    end_ids = sorted(opened.eos_token_ids())
    files = {
        "config.json": {**opened.config, "dtype": "float32"},
        "generation_config.json": {"bos_token_id": opened.config["bos_token_id"], "eos_token_id": end_ids},
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": tokenizer_config,
        MARKER: {
            "version": CONVERSION_VERSION,
            "source": source,
            "gguf_bytes": opened.path.stat().st_size,
            "weights_bytes": (partial / WEIGHTS).stat().st_size,
        },
    }
    for name, content in files.items():
        (partial / name).write_text(to_json(content), encoding="utf-8")


def _move_into_place(partial: Path, folder: Path) -> None:
    """Effect: replaces an older folder. If another process was first with the same version, its folder stays."""
    if converted_marker(folder) is not None:
        return
    shutil.rmtree(folder, ignore_errors=True)
    try:
        partial.rename(folder)
    except OSError:
        if converted_marker(folder) is None:
            raise


def _remove_abandoned(folder: Path) -> None:
    """Effect: removes half-built folders of processes that are gone."""
    for path in folder.parent.glob(f".{folder.name}.*.partial"):
        with contextlib.suppress(ValueError):
            if not psutil.pid_exists(int(path.suffixes[-2].lstrip("."))):
                shutil.rmtree(path, ignore_errors=True)


def _require_space(folder: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise OSError(f"only {_gb(free)} free, {_gb(num_bytes)} needed")


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB"
