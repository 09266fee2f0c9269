"""Shared by the kernel tests: the compiled CPU library, built once and kept where the lab keeps it."""

import pytest

from engine.settings import settings
from kernels.cpu import CpuLibrary, load_library
from kernels.cpu.build import BuildError, find_compiler


@pytest.fixture(scope="session")
def cpu_library() -> CpuLibrary:
    """Skips only where there is no compiler: a build or self-test that fails is a failure."""
    try:
        find_compiler()
    except BuildError as error:
        pytest.skip(str(error))
    library, why = load_library(settings().home / "kernels", num_threads=2)
    assert library is not None, why
    return library
