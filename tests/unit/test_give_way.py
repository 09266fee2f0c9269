"""A page's script comes after the engine where both want a core."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from pages._ui.session import SCRIPT_NICENESS, give_way

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux knows the niceness of a thread")


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_a_script_thread_gives_way_and_the_threads_beside_it_do_not() -> None:
    found: list[int] = []

    def script() -> None:
        give_way()
        found.append(niceness())

    before = niceness()
    thread = threading.Thread(target=script)
    thread.start()
    thread.join()
    assert found == [max(SCRIPT_NICENESS, before)]
    give_way()  # the main thread serves the websockets and starts the engine, which would inherit it
    assert niceness() == before
