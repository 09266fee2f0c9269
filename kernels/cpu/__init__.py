"""CPU kernels in C++: one call per forward pass, compiled for this machine at first use and kept on disk.

They are an option, never a requirement: where no compiler is found, the build fails or the self-test disagrees with the
torch twins of ``kernels.reference``, ``load_library`` gives None and one sentence saying why, and torch does the work.
"""

from kernels.cpu.decoder import CpuDecoder, DecoderShape, LayerWeights
from kernels.cpu.library import CpuLibrary, load_library
from kernels.cpu.pack import PackedWeight, WeightArena

__all__ = ["CpuDecoder", "CpuLibrary", "DecoderShape", "LayerWeights", "PackedWeight", "WeightArena", "load_library"]
