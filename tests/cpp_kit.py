"""The C++ kernels for tests: built once, kept where the lab keeps them."""

from __future__ import annotations

import pytest

from engine.settings import settings
from kernels.cpu import CpuLibrary, load_library
from kernels.cpu.build import BuildError, find_compiler


def has_compiler() -> bool:
    try:
        find_compiler()
    except BuildError:
        return False
    return True


def built_library() -> CpuLibrary:
    """Skips only where there is no compiler: a build or self-test that fails is a failure."""
    try:
        find_compiler()
    except BuildError as error:
        pytest.skip(str(error))
    library, why = load_library(settings().home / "kernels", num_threads=2)
    assert library is not None, why
    return library
