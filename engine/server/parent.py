"""How a started engine notices that the process that started it is gone, so that no orphan keeps the device.

Two ways, because neither is enough alone: the pipe on stdin reaches its end when the parent dies for any reason, on
every system; on Linux the kernel also sends a signal, which works even if another process inherited the pipe.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

GRACE_S = 8.0
_PR_SET_PDEATHSIG = 1


def watch_parent(stop: Callable[[], None]) -> None:
    """Effect: ``stop`` is called when stdin ends; if the process is still there GRACE_S later, it is ended hard."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    threading.Thread(target=_wait_for_end, args=(sys.stdin.fileno(), stop), name="parent", daemon=True).start()


def _wait_for_end(stdin: int, stop: Callable[[], None]) -> None:
    try:
        while os.read(stdin, 4096):
            pass
    except OSError:
        pass  # a pipe that cannot be read is as good as ended
    stop()
    time.sleep(GRACE_S)
    os._exit(1)
