"""The watch tells the last answer without waiting, follows a changing engine, and survives one that is gone."""

from __future__ import annotations

import threading
import time

import pytest

from engine.server.client import EngineUnavailable, Readiness
from pages._ui import engine_watch
from pages._ui.engine_watch import EngineState, EngineWatch, ask_device, ask_state


class Engine:
    """An engine whose answers a test sets; ``gate`` holds it up, as a hung one does."""

    def __init__(self) -> None:
        self.readiness: Readiness | None = None
        self.about: dict = {}
        self.gate = threading.Event()
        self.gate.set()

    def ready(self) -> Readiness:
        self.gate.wait(20)
        if self.readiness is None:
            raise EngineUnavailable("gone")
        return self.readiness

    def device(self) -> dict:
        if not self.about:
            raise EngineUnavailable("gone")
        return self.about


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POLL_S", "POLL_READY_S"):
        monkeypatch.setattr(engine_watch, name, 0.01)


def until(condition) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never came true")


def test_an_engine_that_is_gone_is_a_state_and_not_an_error() -> None:
    engine = Engine()
    assert ask_state(engine) == EngineState("down", message="gone")
    assert ask_device(engine) is None


def test_the_watch_follows_the_engine(quick) -> None:
    engine = Engine()
    watch = EngineWatch(lambda: engine)
    assert watch.last().state == "down"
    engine.readiness = Readiness(ready=False, state="loading", stage="load", fraction=0.5)
    until(lambda: watch.last() == EngineState("loading", "load", 0.5))
    engine.about = {"device": {"name": "x"}}
    engine.readiness = Readiness(ready=True, state="ready", stage="ready")
    until(lambda: watch.last().ready)
    assert watch.device == {"device": {"name": "x"}}
    engine.readiness = None
    until(lambda: watch.last().state == "down")
    assert watch.device is None


def test_a_hung_engine_holds_nobody_up(quick, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_watch, "FIRST_ANSWER_S", 0.01)
    engine = Engine()
    engine.gate.clear()
    watch = EngineWatch(lambda: engine)
    assert watch.last() == EngineState("starting")  # would hang here for 20 s if it asked itself
    engine.gate.set()
    until(lambda: watch.last().state == "down")


def test_a_new_address_is_used_at_once(quick) -> None:
    first, second = Engine(), Engine()
    second.readiness = Readiness(ready=True, state="ready")
    engines = [first]
    watch = EngineWatch(lambda: engines[-1])
    until(lambda: watch.last().state == "down")
    engines.append(second)
    until(lambda: watch.last().ready)
