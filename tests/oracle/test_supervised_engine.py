"""The real engine under its supervisor: killed in the middle of a run it comes back, and the next run works."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys

import pytest

from engine.lab.check import check_run
from engine.lab.scenario import Scenario
from engine.server.client import EngineClient, EngineUnavailable
from engine.server.supervisor import EngineSupervisor
from tests.live_server import eventually

pytestmark = [pytest.mark.oracle, pytest.mark.skipif(sys.platform == "win32", reason="signals")]

LONG = Scenario.parse({"requests": [{"prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True}]})
SHORT = Scenario.parse({"requests": [{"prompt": "Once upon a time", "max_tokens": 5, "ignore_eos": True}]})


def is_ready(client: EngineClient) -> bool:
    try:
        return client.ready().ready
    except EngineUnavailable:
        return False


def killed_in_mid_run(pid: int) -> None:
    """Everything a page would do, from a thread, while the event loop watches the engine."""
    with EngineClient.default() as client:
        eventually(lambda: is_ready(client), 240)
        first = client.ready().instance
        lost = client.submit(LONG, "me").run_id
        eventually(lambda: client.follow(lost).num_steps > 2, 120)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineUnavailable):
            client.follow(lost)
        eventually(lambda: is_ready(client) and client.ready().instance != first, 240)
        with pytest.raises(EngineUnavailable) as caught:
            client.follow(lost)
        assert caught.value.restarted
        run_id = client.submit(SHORT, "me").run_id
        eventually(lambda: client.follow(run_id).state == "done", 120)
        run = client.fetch_run(run_id)
        check_run(run)
        assert run.requests[0].num_output_tokens == 5


def test_a_killed_engine_is_back_and_the_next_run_works():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]

    async def main() -> None:
        supervisor = EngineSupervisor(port=port)
        await supervisor.start()
        try:
            await asyncio.to_thread(killed_in_mid_run, supervisor.pid)
            assert supervisor.num_restarts == 1
        finally:
            await supervisor.stop()
            assert supervisor.pid is None

    asyncio.run(main())
