"""What the pages know of the engine, without ever waiting for it.

One thread of this process asks the engine how it is and keeps the last answer; a page reads that answer at once,
however busy or hung the engine may be, and sixty learners cost one question. It draws nothing and calls no Streamlit:
only plain values leave the thread. Invariant: ``last`` waits for nothing but, a moment long, the very first answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from engine.server.client import EngineRefused, EngineUnavailable, Readiness

POLL_S = 1.0
POLL_READY_S = 2.0
DEVICE_EVERY_S = 20.0
FIRST_ANSWER_S = 0.5


class Client(Protocol):
    """The two questions asked of the engine."""

    def ready(self) -> Readiness: ...
    def device(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class EngineState:
    """``state``: down | starting | loading | ready | failed. The rest is as the engine says it."""

    state: str
    stage: str = ""
    fraction: float | None = None
    message: str = ""

    @property
    def ready(self) -> bool:
        return self.state == "ready"


def ask_state(client: Client) -> EngineState:
    """Is the engine there, and how far? Never raises."""
    try:
        answer = client.ready()
    except (EngineUnavailable, EngineRefused) as error:
        return EngineState("down", message=str(error))
    return EngineState("ready" if answer.ready else answer.state, answer.stage, answer.fraction, answer.message)


def ask_device(client: Client) -> dict[str, Any] | None:
    """Device, default model and ceilings; None while the engine cannot say. Never raises."""
    try:
        return client.device() or None
    except (EngineUnavailable, EngineRefused):
        return None


class EngineWatch:
    """Starts its thread when made; ``last`` and ``device`` may be read from any thread."""

    def __init__(self, make_client: Callable[[], Client]) -> None:
        """``make_client`` is called before every question: the engine's address changes when it is restarted."""
        self._make_client = make_client
        self._state = EngineState("starting")
        self._device: dict[str, Any] | None = None
        self._answered = threading.Event()
        threading.Thread(target=self._run, name="engine watch", daemon=True).start()

    def last(self) -> EngineState:
        """The last answer. Waits a moment for the very first one only."""
        self._answered.wait(FIRST_ANSWER_S)
        return self._state

    @property
    def device(self) -> dict[str, Any] | None:
        """What the engine said of its device while it was ready; None while it is not."""
        return self._device if self._state.ready else None

    def _run(self) -> None:
        asked_s, stage = -DEVICE_EVERY_S, ""
        while True:
            client = self._make_client()
            state = ask_state(client)
            # Before the state is told: whoever sees the engine ready can then also see on what it runs.
            if state.ready and (state.stage != stage or time.monotonic() - asked_s >= DEVICE_EVERY_S):
                self._device, asked_s, stage = ask_device(client), time.monotonic(), state.stage
            self._state = state
            self._answered.set()
            time.sleep(POLL_READY_S if state.ready else POLL_S)
