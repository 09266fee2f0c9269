"""The session on a GPU, rehearsed from end to end: the interpreter in the GPU's place, tiny shapes, the same code.

So that, the moment there is a GPU, nothing but speed is unknown: the script starts, every phase comes to its end and is
written, numbers stand where the lab will look for them, and what can go wrong is seen and named.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.lab.check import check_run
from engine.lab.records import Run
from tests.gpu.session import PHASES, Session, wrong
from tests.gpu.stage import Stage

FOLDER = Path(__file__).parent
PERCENTILES = {"p20_ms", "p50_ms", "p80_ms", "num_replays", "num_calls"}

pytestmark = pytest.mark.timeout(600)
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed here")


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    """``run.sh`` as a person calls it, from a shell that knows nothing of the interpreter."""
    clean = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    clean["PYTHON"] = sys.executable
    return subprocess.run(["bash", str(FOLDER / "run.sh"), *arguments], env=clean, capture_output=True, text=True)


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("gpu") / "results"


@pytest.fixture(scope="module")
def session(out) -> dict:
    """What the rehearsal wrote. It fails here if anything was wrong."""
    done = run_script("--dry-run", "--out", str(out))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert re.search(r"^ok in \d+ s: ", done.stdout, re.M), done.stdout
    assert not (out / "session.json.partial").exists()
    return json.loads((out / "session.json").read_text(encoding="utf-8"))


@needs_triton
def test_every_phase_runs_to_its_end_and_the_file_says_what_it_is(session):
    assert list(session["phases"]) == list(PHASES)
    for name, phase in session["phases"].items():
        assert not {"error", "skipped"} & set(phase), (name, phase)
        assert phase["seconds"] >= 0
    assert (session["kind"], session["schema"], session["is_dry_run"]) == ("gpu_session", 1, True)
    assert session["device"]["type"] == "cpu" and "rehearsal" in session["device"]["name"], "nobody takes it for a GPU"
    assert set(session["versions"]) == {"python", "torch", "triton", "transformers", "numpy"}


@needs_triton
def test_every_kernel_is_compared_with_its_twin(session):
    found = session["phases"]["correctness"]
    assert found["failed"] == [] and found["num_skipped_for_time"] == 0
    assert found["num_passed"] == 13  # one case of each grid of the interpreter's checks, and the three without one


@needs_triton
def test_roofs_and_shares_are_where_the_lab_looks_for_them(session):
    roofs = session["phases"]["roofs"]["roofs"]
    assert set(roofs) == {"read", "copy", "copy (torch)", "matmul bf16", "matmul bf16 (torch)", "fma float32"}
    for row in roofs.values():
        assert set(row) >= PERCENTILES | {"gbps", "tflops"} and 0 < row["p20_ms"] <= row["p50_ms"] <= row["p80_ms"]
    copy = max(roofs["copy"]["gbps"], roofs["copy (torch)"]["gbps"])
    for row in session["phases"]["bandwidth"]["kernels"]:
        assert set(row) >= PERCENTILES | {"kernel", "shape", "bytes", "flops", "gbps", "share_of_copy", "target", "met"}
        assert row["gbps"] == pytest.approx(row["bytes"] / row["p50_ms"] / 1e6, rel=1e-3)
        assert row["share_of_copy"] == pytest.approx(row["gbps"] / copy)
        assert row["met"] is None, "a rehearsal meets and misses nothing"


@needs_triton
def test_the_targets_are_those_of_the_document(session):
    """Each share the document promises is asked of the kernel it promises it for."""
    asked: dict[str, set] = {}
    for row in session["phases"]["bandwidth"]["kernels"]:
        asked.setdefault(row["kernel"], set()).add(row["target"])
    assert asked == {
        "add + RMSNorm": {0.8},
        "SwiGLU": {0.8},
        "RoPE": {None},
        "store K/V": {None},
        "sampling": {None},
        "paged decode": {0.7},
        "paged decode, int8 cache": {None},
        "matvec bf16": {0.8},
        "linear int8": {0.7, None},  # one row, and more
        "linear int4": {0.55, None},
    }
    assert session["phases"]["engine"]["whole_step"]["target"] == 0.6
    text = " ".join((FOLDER / "README.md").read_text(encoding="utf-8").split())
    for promise in (
        "norm and SwiGLU 80 %",
        "paged decode at 64 thousand KV tokens 70 %",
        "bfloat16 matrix-vector 80 %, int8 70 %, int4 55 %",
        "decode step of the 1B model 60 %",
    ):
        assert promise in text


@needs_triton
def test_the_engine_phase_compares_and_counts(session):
    engine = session["phases"]["engine"]
    assert engine["logits"]["agree"] and engine["logits"]["same_argmax"]
    assert engine["graphs"]["same_tokens"] and engine["graphs"]["padding_writes_nowhere"]
    assert engine["graphs"]["backends"]["eager"] == ["eager"] and "graph" in engine["graphs"]["backends"]["graphs"]
    for row in engine["decode"]:
        assert row["graphs"]["backends"] == ["graph"] and row["eager"]["backends"] == ["eager"]
        assert row["graphs"]["tokens_per_s"] == pytest.approx(1e3 * row["batch"] / row["graphs"]["step_ms"])
    for row in engine["prefill"]:
        assert row["ours_tokens_per_s"] == pytest.approx(1e3 * row["num_tokens"] / row["ours_ms"])
        assert row["transformers_tokens_per_s"] > 0
    assert [row["batch"] for row in engine["transformers_decode"]] == [1, 3]
    assert engine["model"]["name"] == "random-llama-1b" and engine["model"]["num_parameters"] > 0


@needs_triton
def test_the_run_of_the_scenario_is_a_run(session, out):
    run = Run.load(out / "run.jsonl")
    check_run(run)
    assert session["phases"]["scenario"]["summary"]["run_id"] == run.run_id
    assert json.loads((out / "scenario.json").read_text(encoding="utf-8"))["name"] == "GPU session"


# ---- what can go wrong ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so_at_once(out):
    done = run_script("--out", str(out / "none"))
    assert done.returncode == 2 and "there is no GPU here; --dry-run rehearses without one" in done.stderr
    assert not (out / "none").exists()


def test_an_unknown_phase_is_named():
    done = run_script("--dry-run", "--only", "roofs,speed")
    assert done.returncode == 2 and "--only has 'speed'; allowed: correctness, roofs" in done.stderr


def broken(phase: str, **found: object) -> dict:
    return {"phases": {phase: found}}


@pytest.mark.parametrize(
    ("results", "line"),
    [
        (broken("roofs", error="RuntimeError: out of memory"), "roofs: RuntimeError: out of memory"),
        (broken("correctness", failed=[{"check": "norm {}", "error": "off"}]), "norm {}: off"),
        (broken("engine", graphs={"same_tokens": False}), "graphs and eager steps give different tokens"),
        (broken("engine", graphs={"padding_writes_nowhere": False}), "a padding row wrote into the cache"),
        (
            broken("engine", logits={"agree": False, "relative_error": 0.25}),
            "logits differ from transformers' by 0.250",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_line(results, line):
    assert wrong(results) == [line]


def test_a_missed_target_and_a_phase_left_out_are_not_wrong():
    missed = {"kernels": [{"kernel": "SwiGLU", "share_of_copy": 0.1, "target": 0.8, "met": False}]}
    assert wrong({"phases": {"bandwidth": missed, "engine": {"skipped": "out of time"}}}) == []


def test_a_phase_that_fails_is_written_and_the_next_one_runs(tmp_path, capsys):
    session = Session(Stage(True, 100), tmp_path)
    session.phase("roofs", lambda: 1 / 0)
    session.phase("scenario", lambda: {"check": "ok"})
    phases = json.loads((tmp_path / "session.json").read_text(encoding="utf-8"))["phases"]
    assert phases["roofs"]["error"].startswith("ZeroDivisionError") and "test_rehearsal" in phases["roofs"]["traceback"]
    assert phases["scenario"]["check"] == "ok" and "error" not in phases["scenario"]
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_phase_that_no_longer_fits_is_left_out_and_says_so(tmp_path):
    session = Session(Stage(True, 5), tmp_path)
    session.phase("roofs", lambda: pytest.fail("there are five seconds left, and it needs more"))
    assert session.results["phases"]["roofs"]["skipped"] == "out of time"
