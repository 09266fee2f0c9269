"""Versions of what a Run depends on. They go into its header, so that two Runs can be told apart later."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence

ENGINE_VERSION = "0.1.0"


def versions(packages: Sequence[str] = ("torch", "triton", "tokenizers")) -> dict[str, str]:
    """The engine's version, Python's and those of some packages; ``absent`` for one that is not installed. Pure."""
    found = {"python": platform.python_version(), "engine": ENGINE_VERSION}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found
