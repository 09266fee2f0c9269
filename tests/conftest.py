"""For every test: engines in a fresh home must not each compile the C++ kernels. Their own tests ask for them.

And threads of OpenMP that have nothing to do sleep instead of spinning: tests run beside each other on few cores.
"""

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("TOKEN_BY_TOKEN_KERNELS", "torch")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Files of a quarter of a minute and more, first: with the longest at the end one process works and the others wait.
# Browsers, which mostly wait, stand beside what computes; two of them at once would make each other late.
LONG_FILES = (
    "e2e/test_lab.py",
    "oracle/test_greedy_tokens.py",
    "kernels/test_triton_interpreter.py",
    "e2e/test_player.py",
    "unit/test_invariants_stress.py",
    "oracle/test_openai_client.py",
    "unit/test_lesson_cases.py",
    "gpu/test_rehearsal.py",
    "oracle/test_default_model.py",
    "e2e/test_report.py",
    "unit/test_server_lab.py",
    "pages/test_metrics.py",
    "oracle/test_any_schedule.py",
    "e2e/test_present.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent
    places = {folder / name: place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(autouse=True)
def own_main_module():
    """A page under test becomes ``__main__``, as Streamlit runs scripts, and stays it: a worker process that is started
    later would begin by running that page."""
    before = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = before
