"""For every test: engines in a fresh home must not each compile the C++ kernels. Their own tests ask for them.

And threads of OpenMP that have nothing to do sleep instead of spinning: tests run beside each other on few cores.
"""

import os

os.environ.setdefault("TOKEN_BY_TOKEN_KERNELS", "torch")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
