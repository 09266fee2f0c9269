"""The C++ kernels getting ready behind the engine's back: compiled once per machine, then loaded within a second.

Work starts at once on torch; whoever loads a model asks here whether the kernels are there, and takes them from then
on. So they are swapped in between two runs, never within one. It compiles nothing itself (``kernels.cpu.build``) and a
failure is a sentence, not an exception.
"""

from __future__ import annotations

import threading
from pathlib import Path

from kernels.cpu import CpuLibrary, load_library

LOADING_S = 3.0  # finding and testing a library that was built before takes less, compiling one takes longer
STILL_BUILDING = "the C++ kernels are being compiled; runs that start later will use them"


class CppKernels:
    """A library on its way. ``why`` is "" once it is there."""

    def __init__(self, cache_dir: Path, num_threads: int) -> None:
        """Effect: starts a thread that builds or finds the library."""
        self.library: CpuLibrary | None = None
        self.why = STILL_BUILDING
        self._cache_dir, self._num_threads = cache_dir, num_threads
        self._patience_s = LOADING_S
        self._thread = threading.Thread(target=self._prepare, name="cpp-kernels", daemon=True)
        self._thread.start()

    def is_decided(self) -> bool:
        """Whether it is known if there is a library. Effect: the first call waits a little, for one already built."""
        self._thread.join(self._patience_s)
        self._patience_s = 0.0
        return not self._thread.is_alive()

    def _prepare(self) -> None:
        try:
            library, why = load_library(self._cache_dir, self._num_threads)
        except Exception as error:  # whatever it is, torch can do the work
            library, why = None, f"the C++ kernels cannot be used ({type(error).__name__}: {error})"
        self.library = library
        self.why = why
