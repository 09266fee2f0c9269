"""For every test: engines in a fresh home must not each compile the C++ kernels. Their own tests ask for them.

And threads of OpenMP that have nothing to do sleep instead of spinning: tests run beside each other on few cores.
"""

import os
import sys

import pytest

os.environ.setdefault("TOKEN_BY_TOKEN_KERNELS", "torch")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.fixture(autouse=True)
def own_main_module():
    """A page under test becomes ``__main__``, as Streamlit runs scripts, and stays it: a worker process that is started
    later would begin by running that page."""
    before = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = before
