"""Which kernels run, and that neither Triton nor its interpreter gets where they were not asked for."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.lab.records import Run
from engine.runtime import kernels_choice
from engine.runtime.kernels_choice import KernelChoice, KernelsError, choose_kernels
from engine.server.sentences import is_for_the_user
from engine.server.supervisor import child_environment

ROOT = Path(__file__).parents[2]
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def a_gpu(monkeypatch):
    """As on a machine with an Ampere card, as far as the choice looks."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    monkeypatch.setattr(kernels_choice.importlib.util, "find_spec", lambda name: object())


def test_torch_without_a_gpu_and_the_reason():
    choice = choose_kernels(None, CPU)
    assert choice.name == "torch" and "NVIDIA" in choice.why
    assert choose_kernels("torch", CPU) == KernelChoice("torch")


def test_triton_on_a_gpu_unless_torch_is_asked_for(a_gpu):
    assert choose_kernels(None, CUDA) == choose_kernels("triton", CUDA) == KernelChoice("triton")
    assert choose_kernels("torch", CUDA) == KernelChoice("torch")


def test_triton_that_cannot_be_had_is_one_sentence():
    with pytest.raises(KernelsError, match="NVIDIA GPU") as caught:
        choose_kernels("triton", CPU)
    assert is_for_the_user(caught.value)
    with pytest.raises(KernelsError, match="'cuda'; allowed: torch, triton"):
        choose_kernels("cuda", CPU)


def test_cpp_on_a_cpu_where_it_is_built_and_why_not_elsewhere(a_gpu):
    assert choose_kernels(None, CPU, why_no_cpp="") == choose_kernels("cpp", CPU, why_no_cpp="") == KernelChoice("cpp")
    assert choose_kernels(None, CPU, why_no_cpp="no compiler") == KernelChoice("torch", "no compiler")
    assert choose_kernels("torch", CPU, why_no_cpp="") == KernelChoice("torch")
    assert choose_kernels(None, CUDA, why_no_cpp="") == KernelChoice("triton")
    for device, missing in ((CPU, "no compiler"), (CUDA, "are for a CPU")):
        with pytest.raises(KernelsError, match=missing) as caught:
            choose_kernels("cpp", device, why_no_cpp="no compiler")
        assert is_for_the_user(caught.value)


def test_old_cards_and_a_missing_package_fall_back(a_gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert "7.5" in choose_kernels(None, CUDA).why
    monkeypatch.setattr(kernels_choice.importlib.util, "find_spec", lambda name: None)
    assert "not installed" in choose_kernels(None, CUDA).why


def test_an_engine_never_runs_on_the_interpreter(a_gpu, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert choose_kernels(None, CUDA).name == "torch"
    with pytest.raises(KernelsError, match="TRITON_INTERPRET"):
        choose_kernels("triton", CUDA)
    assert "TRITON_INTERPRET" not in child_environment(), "the supervisor does not hand it to the engine"


def test_only_tests_switch_the_interpreter_on():
    """Outside the tests the variable is read or removed, never set."""
    places = [path for folder in ("engine", "kernels", "pages", "lessons") for path in (ROOT / folder).rglob("*")]
    places += [ROOT / name for name in ("app.py", "Makefile", "pyproject.toml", "tests/conftest.py")]
    sets = re.compile(r"TRITON_INTERPRET[\"']?\]?\s*[=:]|setenv\([\"']TRITON|setdefault\([\"']TRITON")
    for path in places:
        if path.is_file() and path.suffix in (".py", ".sh", ".toml", ".yaml", "") and path.suffix != ".pyc":
            assert not sets.search(path.read_text(errors="ignore")), path


def test_the_lab_runs_where_triton_does_not_exist(tmp_path):
    """As on macOS and Windows: importing triton fails. The server and the pages' clients import, a run by the command
    line (the same runtime as the app's) goes through and passes its check, and the report says what is missing."""
    scenario, run = tmp_path / "scenario.json", tmp_path / "run.jsonl"
    scenario.write_text('{"model": "tiny-random", "requests": [{"prompt": "hello", "max_tokens": 4}]}')
    script = f"""
import sys

class NoTriton:
    def find_spec(self, name, path=None, target=None):
        if name == "triton" or name.startswith("triton."):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, NoTriton())
import kernels.twins, kernels.packing, kernels.costs, kernels.aot
import engine.server.app, engine.server.client, engine.server.supervisor
from engine.__main__ import cli
try:
    kernels.aot.require_compiler()
except kernels.aot.AotError as error:
    print(error)
for command in (["run", {str(scenario)!r}, "--out", {str(run)!r}], ["check", {str(run)!r}]):
    cli(command, standalone_mode=False)
assert not any(name.startswith("triton") for name in sys.modules)
"""
    clean = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "triton is not installed" in done.stdout
    assert len(Run.load(run).requests[0].output_token_ids) == 4


def test_a_cpu_run_imports_no_triton_kernels():
    script = """
import sys
import engine.runtime.lab, engine.runtime.kernels_choice
assert not [name for name in sys.modules if name.startswith(("kernels.triton", "engine.model.ops_triton"))]
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_the_command_line_says_why_it_cannot_take_triton(tmp_path):
    scenario = tmp_path / "scenario.json"
    scenario.write_text('{"model": "tiny-random", "requests": [{"prompt": "hello", "max_tokens": 2}]}')
    command = [sys.executable, "-m", "engine", "run", str(scenario), "--out", str(tmp_path / "run.jsonl")]
    done = subprocess.run([*command, "--kernels", "triton"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and not (tmp_path / "run.jsonl").exists()
    assert done.stderr.strip() == (
        "engine: kernels is 'triton', but the Triton kernels need an NVIDIA GPU and there is none here; "
        "take torch or leave it out"
    )
