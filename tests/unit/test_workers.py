"""Worker processes end: when their work is over, when one of them dies, and when whoever started them is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from engine.lab.scenario import ScenarioError
from engine.runtime.workers import STOP, Crew, WorkerDied, context
from tests.unit.split_runs import is_gone

ROOT = Path(__file__).resolve().parents[2]


def echo(pipe: Connection, word: str) -> None:
    while (message := pipe.recv()) != STOP:
        pipe.send((word, message))


def refuse(pipe: Connection) -> None:
    raise ScenarioError("the value is 7; allowed: less", "value")


def deaf(pipe: Connection) -> None:
    while True:
        time.sleep(1)


def test_workers_answer_and_are_gone_afterwards():
    with Crew(context(), {"one": (echo, ("a",)), "two": (echo, ("b",)), "three": (deaf, ())}) as crew:
        pids = list(crew.pids.values())
        crew.send("one", 1)
        crew.send("two", 2)
        found = []
        while len(found) < 2:
            found += crew.receive(1.0)
    assert sorted(found) == [("one", ("a", 1)), ("two", ("b", 2))]
    assert all(is_gone(pid) for pid in pids), "the deaf one too"


def test_what_a_worker_raises_is_raised_where_it_was_started():
    with Crew(context(), {"one": (refuse, ()), "two": (echo, ("b",))}) as crew, pytest.raises(ScenarioError) as told:
        while True:
            crew.receive(1.0)
    assert str(told.value) == "the value is 7; allowed: less"


def test_a_worker_that_is_killed_is_named_with_what_ended_it():
    with Crew(context(), {"one": (echo, ("a",)), "two": (echo, ("b",))}) as crew:
        os.kill(crew.pids["two"], signal.SIGKILL)
        with pytest.raises(WorkerDied, match=r"the two worker .*ended by SIGKILL.*the other worker was ended too"):
            while True:
                crew.receive(1.0)


STARTER = """
import time
from engine.runtime.workers import Crew, context
from tests.unit.test_workers import deaf
if __name__ == "__main__":
    crew = Crew(context(), {"one": (deaf, ()), "two": (deaf, ())})
    print(*crew.pids.values(), flush=True)
    time.sleep(60)
"""


def test_no_worker_outlives_the_process_that_started_it(tmp_path: Path):
    script = tmp_path / "starter.py"
    script.write_text(STARTER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    starter = subprocess.Popen(
        [sys.executable, str(script)], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    pids = [int(word) for word in starter.stdout.readline().split()]
    assert len(pids) == 2
    starter.kill()
    starter.wait()
    starter.stdout.close()
    end_s = time.monotonic() + 20
    while not all(_is_over(pid) for pid in pids):
        assert time.monotonic() < end_s, "a worker is an orphan"
        time.sleep(0.05)


def _is_over(pid: int) -> bool:
    """Gone, or dead and not yet collected by whoever inherited it."""
    if is_gone(pid):
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
