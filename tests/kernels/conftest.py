"""Shared by the kernel tests: the compiled CPU library, built once and kept where the lab keeps it."""

import pytest

from engine.settings import settings
from kernels.cpu import CpuLibrary, load_library


@pytest.fixture(scope="session")
def cpu_library() -> CpuLibrary:
    library, why = load_library(settings().home / "kernels", num_threads=2)
    if library is None:
        pytest.skip(why)
    return library
