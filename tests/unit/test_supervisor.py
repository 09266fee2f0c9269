"""The supervisor with real child processes: start, kill, restart, taken ports, and no orphans."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap

import psutil
import pytest

from engine.lab.scenario import Scenario
from engine.server import supervisor as module
from engine.server.client import ENGINE_URL_VARIABLE, EngineClient, EngineUnavailable
from engine.server.supervisor import EngineSupervisor, child_environment, free_port
from tests.live_server import eventually, scenario

FAKE = (sys.executable, "-m", "tests.fake_runtime", "--exit-with-parent")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


@pytest.fixture
def port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def supervised(port: int, body, command=FAKE) -> None:
    """Run ``body(supervisor)`` beside a supervisor, always stopping it."""

    async def main() -> None:
        supervisor = EngineSupervisor(command, port)
        await supervisor.start()
        try:
            await body(supervisor)
        finally:
            await supervisor.stop()

    asyncio.run(asyncio.wait_for(main(), 60))


async def ready(supervisor: EngineSupervisor) -> str:
    """Wait for a ready engine; its instance."""

    def ask() -> str | None:
        with EngineClient.default() as client:
            try:
                readiness = client.ready()
            except EngineUnavailable:
                return None
            return readiness.instance if readiness.ready else None

    for _ in range(400):
        instance = await asyncio.to_thread(ask)
        if instance is not None:
            return instance
        await asyncio.sleep(0.05)
    raise AssertionError("the engine never became ready")


def test_it_starts_and_leaves_nothing_behind(port):
    pids = []

    async def body(supervisor):
        assert os.environ[ENGINE_URL_VARIABLE] == supervisor.url == f"http://127.0.0.1:{port}"
        await ready(supervisor)
        pids.append(supervisor.pid)
        await supervisor.start()  # a second start changes nothing
        assert supervisor.pid == pids[0]

    supervised(port, body)
    assert not psutil.pid_exists(pids[0])
    assert ENGINE_URL_VARIABLE not in os.environ


def test_a_killed_engine_comes_back_as_a_new_instance_and_runs_are_said_to_be_gone(port):
    async def body(supervisor):
        first = await ready(supervisor)
        with EngineClient.default() as client:
            slow = Scenario.parse(scenario(max_tokens=8000))
            run_id = client.submit(slow, "me").run_id
            os.kill(supervisor.pid, signal.SIGKILL)
            for _ in range(400):
                if supervisor.num_restarts == 1:
                    break
                await asyncio.sleep(0.02)
            second = await ready(supervisor)
            assert second != first
            assert supervisor.last_exit == "the engine ended by signal SIGKILL and was started again"
            with pytest.raises(EngineUnavailable) as caught:
                client.follow(run_id)
            assert caught.value.restarted
            assert client.submit(Scenario.parse(scenario()), "me").state == "queued"

    supervised(port, body)


def test_an_engine_that_lost_its_device_makes_way_for_a_new_one(port):
    async def body(supervisor):
        first = await ready(supervisor)
        with EngineClient.default() as client:
            client.submit(Scenario.parse({"requests": [{"prompt": "lose the device"}]}), "me")
            while supervisor.num_restarts < 1:
                await asyncio.sleep(0.02)
            assert await ready(supervisor) != first
            assert supervisor.last_exit == "the engine ended with exit code 1 and was started again"

    supervised(port, body)


def test_a_taken_port_leads_to_the_next_one(port):
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()

        async def body(supervisor):
            assert supervisor.url != f"http://127.0.0.1:{port}"
            await ready(supervisor)

        supervised(port, body)
    assert free_port(port) == port


def test_no_free_port_is_one_sentence(port, monkeypatch):
    monkeypatch.setattr(module, "NUM_PORTS_TRIED", 1)
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        with pytest.raises(OSError, match="no free port from"):
            free_port(port)


def test_restarts_back_off(port, monkeypatch):
    delays = []

    async def no_sleep(seconds):
        delays.append(seconds)
        await original(0)

    original = asyncio.sleep
    monkeypatch.setattr(module, "POLL_S", 0.01)
    monkeypatch.setattr(module, "FIRST_DELAYS_S", (0.0, 0.011, 0.022, 0.044))
    monkeypatch.setattr(module.asyncio, "sleep", no_sleep)

    async def body(supervisor):
        while supervisor.num_restarts < 5:
            await original(0.01)
        assert supervisor.last_exit == "the engine ended with exit code 5 and was started again"

    supervised(port, body, (sys.executable, "-c", "raise SystemExit(5)"))
    waits = [delay for delay in delays if delay in module.FIRST_DELAYS_S]
    assert waits[:5] == [0.0, 0.011, 0.022, 0.044, 0.044]


def test_a_long_life_resets_the_back_off(port, monkeypatch):
    monkeypatch.setattr(module, "HEALTHY_AFTER_S", 0.0)
    monkeypatch.setattr(module, "POLL_S", 0.01)
    monkeypatch.setattr(module, "FIRST_DELAYS_S", (0.0, 1000.0))

    async def body(supervisor):
        while supervisor.num_restarts < 3:
            await asyncio.sleep(0.01)

    supervised(port, body, (sys.executable, "-c", "raise SystemExit(5)"))


def test_an_engine_that_hangs_is_replaced(port, monkeypatch):
    monkeypatch.setattr(module, "HEALTH_EVERY_S", 0.1)
    monkeypatch.setattr(module, "HUNG_AFTER_S", 0.5)

    async def body(supervisor):
        while supervisor.num_restarts < 1:
            await asyncio.sleep(0.05)
        assert "SIGKILL" in supervisor.last_exit

    supervised(port, body, (sys.executable, "-c", "import time; time.sleep(1000)"))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_engine_dies_with_its_parent(port, how):
    parent_code = f"""
        import asyncio
        from engine.server.supervisor import EngineSupervisor
        async def main():
            supervisor = EngineSupervisor({FAKE!r}, {port})
            await supervisor.start()
            print(supervisor.pid, flush=True)
            await asyncio.sleep(1000)
        asyncio.run(main())
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(parent_code)], stdout=subprocess.PIPE, env=child_environment(), text=True
    )
    child = psutil.Process(int(parent.stdout.readline()))
    with EngineClient(f"http://127.0.0.1:{port}") as client:
        eventually(client.health)
    parent.send_signal(how)
    parent.wait(20)
    eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    parent.stdout.close()


def test_stdin_alone_is_enough_to_notice_the_end_of_the_parent(port):
    child = subprocess.Popen([*FAKE, "--port", str(port)], stdin=subprocess.PIPE, env=child_environment())
    with EngineClient(f"http://127.0.0.1:{port}") as client:
        eventually(client.health)
        child.stdin.close()
        assert child.wait(20) == 0


def test_the_child_does_not_inherit_tritons_interpreter(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    environment = child_environment()
    assert "TRITON_INTERPRET" not in environment
    assert environment["PYTHONPATH"].endswith(os.pathsep + "/elsewhere")


def test_the_default_command_is_the_engine():
    command = EngineSupervisor(port=1)._command
    assert command[:4] == (sys.executable, "-m", "engine", "serve")
