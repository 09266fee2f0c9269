"""Recording: play a lesson's standard experiment on the real engine and keep its Runs beside the lesson.

It talks to an engine server over its HTTP API, as any client could, and writes what that served, unchanged, once every
part is done and passes the check. It never edits a Run. Invariant: a lesson's recorded Runs are of one experiment, on
one device, with that device's ceilings in their headers.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from engine.lab.check import check_run
from engine.lab.records import Run
from engine.lab.scenario import Scenario
from lessons.catalog import LESSONS_DIR
from lessons.later import later_scenario
from lessons.parts import Part, default_parts
from lessons.recorded import FOLDER, TEXTS_SUFFIX

READY_WITHIN_S = 240.0
PART_WITHIN_S = 240.0
LOOK_EVERY_S = 0.5
MAX_PLAIN_BYTES = 300_000  # of a lesson's Run files; beyond it they are packed
REST_S = 1.0  # between two parts, so that writing one does not show in the next


class RecordError(RuntimeError):
    """Why nothing was recorded, in one sentence."""


@contextlib.contextmanager
def own_engine() -> Iterator[str]:
    """A server of this recording alone, on a free port. Yields its address. Effect: stopped at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "engine", "serve", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(timeout=20)
        server.kill()


def record(lesson_id: str, engine_url: str, say: Callable[[str], None], root: Path = LESSONS_DIR) -> list[Path]:
    """Run the standard experiment and write its files. Raises: RecordError, CheckError; then nothing is written."""
    with httpx.Client(base_url=engine_url, timeout=30.0, trust_env=False) as http:
        _wait_until_measured(http, say)
        found: dict[str, tuple[Run, str, dict[str, Any]]] = {}
        for part in default_parts(lesson_id):
            say(f"{lesson_id}: {part.label}")
            found[part.label] = _play(http, lesson_id, part, {label: run for label, (run, _, _) in found.items()})
            time.sleep(REST_S)
    folder = root / lesson_id / FOLDER
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    packed = sum(len(lines) for _, lines, _ in found.values()) > MAX_PLAIN_BYTES
    written = []
    for label, (_, lines, spoken) in found.items():
        path = folder / f"{label}.jsonl{'.gz' if packed else ''}"
        content = lines.encode("utf-8")
        path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
        spoken_text = json.dumps(spoken, ensure_ascii=False, separators=(",", ":"))
        (folder / f"{label}{TEXTS_SUFFIX}").write_text(spoken_text + "\n", encoding="utf-8")
        written.append(path)
    return written


def _wait_until_measured(http: httpx.Client, say: Callable[[str], None]) -> None:
    """The engine is ready and has measured its device, without which nothing can be modelled beside the Runs."""
    end_s = time.monotonic() + READY_WITHIN_S
    said = ""
    while time.monotonic() < end_s:
        with contextlib.suppress(httpx.HTTPError):
            state = http.get("/readyz").json()
            if state["state"] == "failed":
                raise RecordError(f"the engine failed: {state['message']}")
            if state["ready"] and http.get("/lab/device").json().get("ceilings"):
                return
            stage = state["stage"] or state["state"]
            if stage != said:
                say(f"engine: {stage}")
                said = stage
        time.sleep(LOOK_EVERY_S)
    raise RecordError(f"the engine was not ready and measured within {READY_WITHIN_S:g} s; is something else running?")


def _play(http: httpx.Client, lesson_id: str, part: Part, before: dict[str, Run]) -> tuple[Run, str, dict[str, Any]]:
    """One part: its Run, the Run file as served, and its texts. Raises: RecordError, CheckError."""
    scenario: Scenario = part.scenario or later_scenario(lesson_id, part.label, dict(part.asked or {}), before)
    body = {"scenario": scenario.model_dump(mode="json"), "client_id": "record"}
    answer = http.post("/lab/runs", json=body)
    if answer.status_code != 202:
        raise RecordError(f"{lesson_id}, {part.label}: the engine refused: {answer.json()['error']['message']}")
    run_id = answer.json()["run_id"]
    end_s = time.monotonic() + PART_WITHIN_S
    while time.monotonic() < end_s:
        state = http.get(f"/lab/runs/{run_id}", params={"since": 2**20}).json()
        if state["state"] == "done":
            break
        if state["state"] in ("failed", "cancelled"):
            raise RecordError(f"{lesson_id}, {part.label}: {state['error']}")
        time.sleep(LOOK_EVERY_S)
    else:
        raise RecordError(f"{lesson_id}, {part.label}: not done within {PART_WITHIN_S:g} s")
    lines = http.get(f"/lab/runs/{run_id}/run").text
    run = Run.from_jsonl(lines)
    check_run(run)
    return run, lines, http.get(f"/lab/runs/{run_id}/texts").json()
