"""For every test: engines in a fresh home must not each compile the C++ kernels. Their own tests ask for them."""

import os

os.environ.setdefault("TOKEN_BY_TOKEN_KERNELS", "torch")
