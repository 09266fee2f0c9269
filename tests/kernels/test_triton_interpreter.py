"""Every Triton kernel against its twin, in Triton's interpreter: arithmetic, masks and indices, without a GPU.

The interpreter is switched on by an environment variable that is read while a kernel's module is imported, and a
process that interprets cannot compile. So the checks (``interpreted/check_*.py``) run in a process of their own,
once, and a test here reports what the checks of one file found. ``TBT_FULL_GRID=1`` tries every combination instead
of every pair.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

FOLDER = Path(__file__).parent / "interpreted"
ROOT = FOLDER.parents[2]
FILES = sorted(path.stem for path in FOLDER.glob("check_*.py"))

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed here"),
    pytest.mark.timeout(3600),
]


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory) -> dict[str, list[tuple[str, str]]]:
    """By file: (check, what went wrong or "")."""
    path = tmp_path_factory.mktemp("interpreted") / "outcomes.xml"
    command = [sys.executable, "-m", "pytest", str(FOLDER), "-o", "python_files=check_*.py", "-p", "no:cacheprovider"]
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run([*command, "-q", f"--junitxml={path}"], cwd=ROOT, env=env, capture_output=True, text=True)
    assert path.is_file(), f"the checks did not come to an end ({done.returncode}):\n{done.stdout}\n{done.stderr}"
    found: dict[str, list[tuple[str, str]]] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        wrong = [
            part.get("message", "") + (part.text or "") for part in case if part.tag in ("failure", "error", "skipped")
        ]
        found.setdefault(case.get("classname", "").rsplit(".", 1)[-1], []).append(
            (case.get("name", ""), "".join(wrong))
        )
    return found


@pytest.mark.parametrize("file", FILES)
def test_checks_pass(outcomes, file):
    assert outcomes.get(file), f"no check of {file} ran"
    wrong = [f"{name}: {what}" for name, what in outcomes[file] if what]
    assert not wrong, "\n\n".join(wrong)


def test_the_variable_stays_in_that_process(outcomes):
    assert "TRITON_INTERPRET" not in os.environ
