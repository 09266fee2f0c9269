"""Every Triton kernel compiled for each target without a GPU: what the interpreter cannot see.

The compilations run in processes of their own, one per target (``python -m kernels report``): they put a stand-in in
the place of Triton's driver, and this process may belong to a machine that has a real one.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernels.__main__ import cli
from kernels.aot import SHARED_LIMIT_BYTES, AotError, require_compiler, widest_load_bytes
from kernels.report import as_markdown

ROOT = Path(__file__).parents[2]
TARGETS = ("80", "90", "120")
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed here")
pytestmark = pytest.mark.timeout(1800)


def environment(**changes: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return {**clean, "OMP_NUM_THREADS": "1", **changes}


def run(*command: str, **changes: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment(**changes), capture_output=True, text=True
    )


@pytest.fixture(scope="session")
def report() -> list[dict]:
    """A row per compiled kernel, of all targets."""
    command = [sys.executable, "-m", "kernels", "report", "--json", "--target"]
    started = [
        subprocess.Popen(
            [*command, target], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for target in TARGETS
    ]
    rows = []
    for process in started:
        out, errors = process.communicate()
        assert process.returncode in (0, 1), errors
        rows += json.loads(out)
    return rows


@needs_triton
@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_compiles_without_spills_within_the_chips_limits(report, target):
    rows = [row for row in report if row["arch"] == int(target)]
    assert {row["kernel"] for row in rows} == every_kernel()
    assert [problem for row in rows for problem in row["problems"]] == []
    for row in rows:
        assert row["registers"] > 0 and row["spill_bytes"] == 0
        assert row["shared_bytes"] <= SHARED_LIMIT_BYTES[int(target)]


def every_kernel() -> set[str]:
    """Names of the functions that launchers launch, read from the sources."""
    found = set()
    for path in (ROOT / "kernels" / "triton").glob("*.py"):
        text = path.read_text()
        found |= set(re.findall(r"^    _(\w+)\[\(", text, re.M)) | set(re.findall(r"^        _(\w+)\[\(", text, re.M))
    assert len(found) >= 15
    return found


@needs_triton
def test_streams_of_16_bit_numbers_are_read_16_bytes_at_a_time(report):
    narrow = {row["case"] for row in report if row["kernel"] != "merge_parts" and row["widest_load_bytes"] < 16}
    assert narrow <= {"store K/V int8", "sampling"}, "a head of 64 fills a warp at 4 bytes a thread; a merge is short"


@needs_triton
def test_rounding_to_int8_survives_the_compiler():
    """(x + 1.5 * 2^23) - 1.5 * 2^23 rounds; a compiler that simplified it to x would leave a cut."""
    script = """
import torch
from kernels import aot, triton as kernels
found = []
with aot.launches_compile(90, found):
    empty = lambda *shape, dtype=torch.float32: torch.empty(shape, dtype=dtype, device="meta")
    cache, slots = empty(64, 2, 2, 64, dtype=torch.int8), empty(4, dtype=torch.int64)
    kernels.store_kv_int8(cache, empty(64, 2, 2), empty(4, 2, 2, 64), slots)
print(found[0][1].asm["ptx"].count("0f4B400000"), found[0][1].asm["ptx"].count("0fCB400000"))
"""
    done = run("-c", script)
    assert done.returncode == 0, done.stderr
    assert sum(map(int, done.stdout.split())) >= 2, f"the rounding constant is gone: {done.stdout}"


@needs_triton
def test_a_kernel_that_spills_and_does_not_fit_is_seen():
    """The report can fail: a product of 256 x 256 by 4 warps has too few registers, and 99 KiB are too little."""
    script = """
import torch
from kernels import aot
from kernels.triton import probes
a, b = (torch.empty((4096, 4096), dtype=torch.bfloat16, device="meta") for _ in range(2))
def call():
    probes._matmul[(256,)](a, b, a, 4096, 4096, 4096, 4096, 4096, BLOCK_M=256, BLOCK_N=256, BLOCK_K=64, ROWS=8,
                           num_warps=4, num_stages=4, enable_fp_fusion=True)
[kernel] = aot.compile_calls(120, call)
print(kernel.spill_bytes, kernel.fits)
"""
    done = run("-c", script)
    assert done.returncode == 0, done.stderr
    spill_bytes, fits = done.stdout.split()
    assert int(spill_bytes) > 0 and fits == "False"


def test_width_of_loads():
    assert widest_load_bytes("ld.global.v4.b32 { %r1 }, [ %rd1 + 0 ];") == 16
    assert widest_load_bytes("@%p1 ld.global.L1::evict_last.v2.b32 { %r1 }, [x];\n ld.global.b16 %h1, [y];") == 8
    assert widest_load_bytes("cp.async.cg.shared.global [ %r243 + 0 ], [ %rd15 + 0 ], 0x10, %r58;") == 16
    assert widest_load_bytes("ld.global.b16 { %rs1 }, [ %rd1 + 0 ];") == 2
    assert widest_load_bytes("st.global.v4.b32 [x], {};") == 0


@needs_triton
def test_a_process_that_interprets_says_that_it_cannot_compile(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(AotError, match="unset it"):
        require_compiler()


@needs_triton
def test_an_unknown_target_is_one_sentence():
    done = CliRunner().invoke(cli, ["report", "--target", "75"])
    assert done.exit_code == 2
    assert done.stderr.strip() == "kernels: target is 75; allowed: 80, 90, 120"


@needs_triton
def test_the_table_in_the_documents_is_the_one_that_is_made_today(report):
    """With the Triton it was made with; another compiler may take a register more."""
    import importlib.metadata

    text = (ROOT / "kernels" / "README.md").read_text()
    version = re.search(r"triton (\d+\.\d+\.\d+)", text)
    assert version, "the table says which Triton made it"
    if importlib.metadata.version("triton") != version[1]:
        pytest.skip(f"the table was made with triton {version[1]}")
    assert as_markdown(report) in text, "run `python -m kernels report` and put its table into kernels/README.md"
