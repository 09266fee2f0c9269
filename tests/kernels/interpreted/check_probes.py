"""The roofline probes compute what they claim to: a probe that skipped work would raise the roof."""

import torch

from kernels import twins
from kernels.triton import probes


def assert_probes(probes):
    x = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(probes.stream_read(x, 3), twins.stream_read(x, 3), atol=1e-3, rtol=1e-4)
    assert torch.equal(probes.stream_copy(x), x)
    x = torch.randn(2048, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(probes.fma_chain(x, 5), twins.fma_chain(x, 5), atol=1e-6, rtol=1e-6)
    noise = torch.Generator().manual_seed(1)
    a = torch.randn((300, 70), generator=noise).half()
    b = torch.randn((70, 140), generator=noise).half()
    torch.testing.assert_close(probes.matmul(a, b), twins.matmul(a, b), atol=2e-2, rtol=2e-3)


def test_probes():
    assert_probes(probes)
