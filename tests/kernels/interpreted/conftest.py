"""Checks that run under Triton's interpreter, in a process of their own (``test_triton_interpreter`` starts it).

Their files are named ``check_*``, so a plain pytest run passes them by: in its process kernels are compiled, not
interpreted.
"""

import os

if os.environ.get("TRITON_INTERPRET") == "1":
    import torch

    from tests.kernels.interpreted import bf16

    torch.set_num_threads(1)
    # Whatever torch.empty gives is NaN (or the largest integer): what a kernel forgets to write shows.
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    bf16.install()
