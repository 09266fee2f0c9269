"""A session on a GPU, phase after phase, each written to JSON as soon as it is over. Started by ``run.sh``.

``session.json`` is what the lab can show as "recorded on <device>": when, where, with which versions, and every
number with its raw percentiles; ``run.jsonl`` is a Run of a whole scenario by the command line. A phase that fails is
recorded with its error and the next one runs; a phase that no longer fits in time says so. Exit code 1 if anything
was wrong, not if a target was missed: a missed target is a measurement.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from tests.gpu.stage import Stage

ROOT = Path(__file__).parents[2]
SCHEMA = 1
PHASES = ("correctness", "roofs", "bandwidth", "engine", "scenario")
SCENARIO = {
    "name": "GPU session",
    "policy": "chunked",
    "limits": {"max_requests": 16, "max_batch_tokens": 512, "num_blocks": 1024},
    "requests": [
        {
            "arrival_s": 0.05 * i,
            "prompt": f"Explain in one paragraph what batching does, example {i}.",
            "max_tokens": 96,
        }
        for i in range(24)
    ],
}


class Session:
    """The results so far, and the file they are in."""

    def __init__(self, stage: Stage, out: Path) -> None:
        self.stage, self.out = stage, out
        self.results: dict[str, Any] = {
            "kind": "gpu_session",
            "schema": SCHEMA,
            "recorded_utc": datetime.now(UTC).isoformat(timespec="seconds"),
            "is_dry_run": stage.is_dry_run,
            "device": describe(stage),
            "versions": versions(),
            "phases": {},
        }

    def phase(self, name: str, work: Callable[[], dict[str, Any]]) -> None:
        """Run a phase and write what it found, or what went wrong."""
        begin = self.stage.elapsed_s
        print(f"{name} ...", flush=True)
        if self.stage.time_left() < 20:
            found: dict[str, Any] = {"skipped": "out of time"}
        else:
            try:
                found = work()
            except Exception as error:
                found = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
                print(found["traceback"], file=sys.stderr, flush=True)
        found["seconds"] = round(self.stage.elapsed_s - begin, 1)
        self.results["phases"][name] = found
        self.results["seconds"] = round(self.stage.elapsed_s, 1)
        self.save()

    def save(self) -> None:
        """Effect: the file holds all results so far, at any moment whole."""
        partial = self.out / "session.json.partial"
        partial.write_text(json.dumps(self.results, indent=1), encoding="utf-8")
        partial.replace(self.out / "session.json")

    def copy_gbps(self) -> float:
        """The measured copy, the better of ours and torch's; measured now if that phase did not run."""
        from tests.gpu import bandwidth

        if "roofs" not in self.results["phases"].get("roofs", {}):
            self.phase("roofs", lambda: {"roofs": bandwidth.roofs(self.stage)})
        roofs = self.results["phases"]["roofs"]["roofs"]
        return max(roofs["copy"]["gbps"], roofs["copy (torch)"]["gbps"])


def describe(stage: Stage) -> dict[str, Any]:
    """The device, and what the driver says of its state."""
    if stage.is_dry_run:
        return {"name": f"rehearsal on {platform.machine()}", "type": "cpu"}
    properties = torch.cuda.get_device_properties(stage.device)
    found = {
        "name": properties.name,
        "type": "cuda",
        "capability": list(torch.cuda.get_device_capability(stage.device)),
        "memory_bytes": properties.total_memory,
        "processors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
    }
    query = "driver_version,clocks.sm,clocks.mem,power.limit,temperature.gpu"
    try:
        said = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True, timeout=10
        )
        found["nvidia_smi"] = dict(zip(query.split(","), said.stdout.strip().split(", "), strict=False))
    except (OSError, subprocess.TimeoutExpired):
        found["nvidia_smi"] = None
    return found


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("torch", "triton", "transformers", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def engine_phase(session: Session) -> dict[str, Any]:
    """Graphs against eager, rates, and transformers on the same weights."""
    from tests.gpu import throughput

    stage, copy_gbps = session.stage, session.copy_gbps()
    theirs, loaded = throughput.both_models(stage)
    found = {
        "model": loaded.info.model_dump(),
        "logits": throughput.logits_agree(stage, loaded, theirs),
        "graphs": throughput.graphs_against_eager(stage, loaded),
        "decode": throughput.decode_rates(stage, loaded, copy_gbps),
        "prefill": throughput.prefill_rates(stage, loaded, theirs),
        "transformers_decode": throughput.transformers_decode(stage, theirs, loaded),
    }
    first = found["decode"][0]
    if "graphs" in first:
        share = first["graphs"]["share_of_copy"]
        met = None if stage.is_dry_run else share >= throughput.WHOLE_STEP_TARGET
        found["whole_step"] = {"share_of_copy": share, "target": throughput.WHOLE_STEP_TARGET, "met": met}
    return found


def scenario_phase(session: Session) -> dict[str, Any]:
    """A whole scenario by the command line, in a process of its own, and its Run checked."""
    scenario = dict(SCENARIO)
    if session.stage.is_dry_run:
        scenario |= {"model": "tiny-random", "requests": [{"prompt": "hello", "max_tokens": 4}]}
    else:
        scenario |= {"dtype": "bfloat16"}
    path, run = session.out / "scenario.json", session.out / "run.jsonl"
    path.write_text(json.dumps(scenario, indent=1), encoding="utf-8")
    kernels = "torch" if session.stage.is_dry_run else "triton"
    made = _engine("run", str(path), "--out", str(run), "--kernels", kernels)
    checked = _engine("check", str(run))
    return {"summary": json.loads(made.strip().splitlines()[-1]), "check": checked.strip()}


def _engine(*arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "engine", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
    )
    if done.returncode:
        raise RuntimeError(f"engine {arguments[0]} ended with {done.returncode}: {done.stderr.strip()[-1000:]}")
    return done.stdout


def wrong(results: dict[str, Any]) -> list[str]:
    """What a person has to look at, one line each. Missed targets are not among them."""
    phases = results["phases"]
    found = [f"{name}: {phase['error']}" for name, phase in phases.items() if "error" in phase]
    found += [f"{case['check']}: {case['error']}" for case in phases.get("correctness", {}).get("failed", [])]
    engine = phases.get("engine", {})
    if engine.get("graphs", {}).get("same_tokens") is False:
        found.append("graphs and eager steps give different tokens")
    if engine.get("graphs", {}).get("padding_writes_nowhere") is False:
        found.append("a padding row wrote into the cache")
    if engine.get("logits", {}).get("agree") is False:
        found.append(f"logits differ from transformers' by {engine['logits']['relative_error']:.3f}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/gpu/run.sh")
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "gpu" / "results")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--only", default="", help=f"some of: {', '.join(PHASES)}")
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",") if arguments.only else PHASES
    if unknown := set(wanted) - set(PHASES):
        parser.error(f"--only has {sorted(unknown)[0]!r}; allowed: {', '.join(PHASES)}")
    if not arguments.dry_run and not torch.cuda.is_available():
        print("tests/gpu: there is no GPU here; --dry-run rehearses without one", file=sys.stderr)
        return 2
    from tests.gpu import bandwidth, correctness  # after the arguments: a typing mistake should not wait for them

    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.dry_run:
        from tests.kernels.interpreted import bf16

        torch.set_num_threads(1)
        bf16.install()
    session = Session(Stage(arguments.dry_run, arguments.minutes * 60), arguments.out)
    stage = session.stage
    work = {
        "correctness": lambda: correctness.check_all(stage),
        "roofs": lambda: {"roofs": bandwidth.roofs(stage)},
        "bandwidth": lambda: {"kernels": bandwidth.shares(stage, session.copy_gbps())},
        "engine": lambda: engine_phase(session),
        "scenario": lambda: scenario_phase(session),
    }
    for name in PHASES:
        if name in wanted:
            session.phase(name, work[name])
    problems = wrong(session.results)
    for problem in problems:
        print(f"WRONG {problem}", file=sys.stderr)
    print(f"{'FAILED' if problems else 'ok'} in {stage.elapsed_s:.0f} s: {arguments.out / 'session.json'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
