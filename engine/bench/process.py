"""One measured process: start it fresh, give it its job, take what it says, see what else the machine did meanwhile.

It never raises for a process that fails: the reason, in one line, is a result like any other. Invariant: when
``run_job`` returns, the process and everything it started are gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.bench.peers.common import MARK
from engine.lab.device import OTHERS_LIMIT, STEAL_LIMIT, CpuSample, cpu_sample, noise

TIMEOUT_S = 400.0


@dataclass
class Answer:
    """What a process said. ``why_failed`` is "" when it came to its end."""

    said: list[dict[str, Any]] = field(default_factory=list)
    why_failed: str = ""
    disturbed: str = ""  # "" or what else took the machine's time
    seconds: float = 0.0

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.said if line["kind"] == kind]


def run_job(
    command: Sequence[str], job: dict[str, Any], env: dict[str, str], cwd: Path, timeout_s: float = TIMEOUT_S
) -> Answer:
    """Start ``command``, hand it the job on stdin, wait for its end."""
    before, children_s, begin_s = cpu_sample(), _children_s(), time.perf_counter()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=cwd,
            env=env,
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(json.dumps({**job, "spawned_at": time.time()}), timeout=timeout_s)
            why = "" if process.returncode == 0 else _last_line(errors) or f"exit code {process.returncode}"
        except subprocess.TimeoutExpired as expired:
            out, why = _as_text(expired.stdout), f"not done after {timeout_s:.0f} s"
        finally:
            _end(process)
    after = cpu_sample()
    own_s = after.own_s + _children_s() - children_s  # what our children did is not others' work
    found = noise(before, CpuSample(after.total_s, after.idle_s, after.steal_s, own_s))
    return Answer(_said(out or ""), why, _company(found), time.perf_counter() - begin_s)


def _said(out: str) -> list[dict[str, Any]]:
    """The marked lines; whatever else a library prints is passed over. Pure."""
    return [json.loads(line[len(MARK) :]) for line in out.splitlines() if line.startswith(MARK)]


def _company(found) -> str:
    if (found.steal_share or 0) > STEAL_LIMIT:
        return f"the hypervisor took {100 * found.steal_share:.0f} % of the time"
    if (found.others_share or 0) > OTHERS_LIMIT:
        return f"other processes took {100 * found.others_share:.0f} % of the time"
    return ""


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _last_line(errors) -> str:
    errors.seek(0)
    lines = [line.strip() for line in errors.read()[-20_000:].splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _as_text(out: str | bytes | None) -> str:
    return out.decode(errors="replace") if isinstance(out, bytes) else out or ""


def _end(process: subprocess.Popen) -> None:
    """The whole group: a peer may have workers of its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
