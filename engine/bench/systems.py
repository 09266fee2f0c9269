"""Who is measured: ours and the peers, how each is started, and why one cannot be.

A peer lives in a virtual environment of its own, ``<home>/bench/<peer>`` (``tests/bench/README.md``), or wherever
``TOKEN_BY_TOKEN_BENCH_<PEER>`` points; transformers is also taken from our own environment. A peer that is not there
is skipped with its reason, never silently.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MODULES = {"hf": "transformers", "llamacpp": "llama_cpp", "vllm": "vllm"}
PROBE_S = 30.0


@dataclass(frozen=True)
class System:
    """How to start one. ``why_not`` is "" where it can be started."""

    name: str
    command: tuple[str, ...] = ()
    why_not: str = ""


def ours(module: str = "engine.bench.ours") -> System:
    return System("ours", (sys.executable, "-m", module))


def ours_environment(num_threads: int) -> dict[str, str]:
    """As the command line sets it for every run: torch's waiting threads sleep."""
    return {**environment(num_threads), "OMP_WAIT_POLICY": "PASSIVE"}


def peer(name: str, home: Path) -> System:
    """Find a peer's interpreter and see whether it has the peer's package. Effect: starts it once."""
    python = _interpreter(name, home)
    if python is None:
        return System(name, why_not=f"no environment in {_shown(home / 'bench' / name)}; see tests/bench/README.md")
    why_not = "" if _has_module(python, MODULES[name]) else f"{MODULES[name]} is not installed in {_shown(python)}"
    return System(name, (str(python), str(HERE / "peers" / f"run_{name}.py")), why_not)


def environment(num_threads: int) -> dict[str, str]:
    """For every measured process alike: as many threads as the device has, nothing fetched from anywhere."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OMP_NUM_THREADS")}
    limits = dict.fromkeys(("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(num_threads))
    return {**kept, **limits, "OMP_NUM_THREADS": str(num_threads), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def _interpreter(name: str, home: Path) -> Path | None:
    named = os.environ.get(f"TOKEN_BY_TOKEN_BENCH_{name.upper()}")
    candidates = [Path(named).expanduser()] if named else [home / "bench" / name / "bin" / "python"]
    if name == "hf" and not named:
        candidates.append(Path(sys.executable))  # transformers is among our own requirements
    return next((path for path in candidates if path.is_file()), None)


def _has_module(python: Path, module: str) -> bool:
    """Found, not imported: what is there but broken fails when it is measured, and that is told too."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    try:
        done = subprocess.run([str(python), "-c", code], timeout=PROBE_S, check=False, env=environment(1), cwd=HERE)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _shown(path: Path) -> str:
    """With ``~`` for the user's home, so that no result names a machine's folders."""
    try:
        return f"~/{path.relative_to(Path.home())}"
    except ValueError:
        return str(path)
