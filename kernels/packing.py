"""The layout in which a GPU reads int4 weights: two to a byte, group-major. Torch only, so that any machine can pack.

The two weights of a byte are half a group apart, so the low nibbles of a group meet an unbroken run of inputs and the
high nibbles the next one; outputs of one group lie side by side, so a tile of outputs is one unbroken read. Why that
matters is told in ``kernels.triton.matmul_int4``. int8 weights need no packing: ``Int8Weight`` is used as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.reference import Int4Weight


@dataclass(frozen=True)
class PackedInt4:
    """weight[n, k] = q * scale + minimum of its group of g inputs."""

    packed: torch.Tensor  # [K / g, N, g / 2] uint8
    scale: torch.Tensor  # [K / g, N] float16
    minimum: torch.Tensor  # [K / g, N] float16

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return 2 * self.packed.shape[2]

    @property
    def num_bytes(self) -> int:
        """What one product reads of the weight."""
        return self.packed.numel() + 2 * (self.scale.numel() + self.minimum.numel())

    def dequantize(self) -> torch.Tensor:
        """[N, K] float32. Pure."""
        q = torch.cat((self.packed & 15, self.packed >> 4), dim=2).float()  # [K / g, N, g]
        weight = q * self.scale.float()[..., None] + self.minimum.float()[..., None]
        return weight.permute(1, 0, 2).flatten(1)


def pack_int4(weight: Int4Weight) -> PackedInt4:
    """Values 0..15, one a byte, to two a byte. Pure. The group must be a power of two, 32 or more."""
    (num_outputs, num_inputs), num_groups = weight.q.shape, weight.scale.shape[1]
    group = num_inputs // num_groups
    assert group * num_groups == num_inputs, f"{num_inputs} inputs are no whole number of {num_groups} groups"
    assert group >= 32 and group & (group - 1) == 0, f"a group is 32, 64, 128 ... inputs, not {group}"
    halves = weight.q.reshape(num_outputs, num_groups, 2, group // 2).permute(1, 0, 2, 3)  # [K / g, N, 2, g / 2]
    packed = halves[:, :, 0] | (halves[:, :, 1] << 4)
    return PackedInt4(packed.contiguous(), weight.scale.T.contiguous(), weight.minimum.T.contiguous())
