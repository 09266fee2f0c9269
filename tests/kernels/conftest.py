"""Shared by the kernel tests: the compiled CPU library."""

import pytest

from kernels.cpu import CpuLibrary
from tests.cpp_kit import built_library


@pytest.fixture(scope="session")
def cpu_library() -> CpuLibrary:
    return built_library()
