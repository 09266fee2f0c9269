"""Building, finding and refusing the compiled library; its threads between calls, after a fork and at the end."""

import os
import platform
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from kernels.cpu import CpuLibrary, load_library
from kernels.cpu import build as build_module
from kernels.cpu import library as library_module
from kernels.cpu.build import BuildError, build
from kernels.cpu.pack import pack
from kernels.reference import linear

QUIET = {"PATH": "", "CXX": ""}


def _fake_compiler(folder: Path, script: str) -> Path:
    path = folder / "c++"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def fake_compiler(tmp_path, monkeypatch):
    """Puts a script in the place of the C++ compiler and counts its runs."""

    def install(compile_script: str):
        log = tmp_path / "runs"
        path = _fake_compiler(
            tmp_path, f'case "$1" in --version) echo fake 1;; *) echo x >> {log}; {compile_script};; esac'
        )
        monkeypatch.setenv("CXX", str(path))
        return lambda: log.read_text().count("x") if log.exists() else 0

    return install


WRITE_OUTPUT = 'for last; do :; done; echo code > "$last"'


def test_it_compiles_once_and_again_when_something_changed(tmp_path, fake_compiler, monkeypatch):
    runs = fake_compiler(WRITE_OUTPUT)
    first = build(tmp_path / "cache")
    assert first.read_text() == "code\n" and build(tmp_path / "cache") == first and runs() == 1
    monkeypatch.setattr(build_module, "_cpu_features", lambda: "another CPU")
    second = build(tmp_path / "cache")
    monkeypatch.setattr(build_module, "FLAGS", (*build_module.FLAGS, "-g"))
    third = build(tmp_path / "cache")
    assert len({first, second, third}) == 3 and runs() == 3
    assert sorted(p.name for p in (tmp_path / "cache").iterdir()) == sorted(p.name for p in (first, second, third))


def test_an_edited_source_is_compiled_anew(tmp_path, fake_compiler, monkeypatch):
    runs = fake_compiler(WRITE_OUTPUT)
    sources = tmp_path / "src"
    sources.mkdir()
    for name in ("api.cpp", "a.h"):
        (sources / name).write_text("one")
    monkeypatch.setattr(build_module, "SOURCE_DIR", sources)
    first = build(tmp_path / "cache")
    (sources / "a.h").write_text("two")
    assert build(tmp_path / "cache") != first and runs() == 2


def test_no_compiler_is_one_sentence(tmp_path, monkeypatch):
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    assert load_library(tmp_path, 1) == (
        None,
        "no C++ compiler was found; install g++ or clang++ for the fast CPU path",
    )


def test_a_failing_build_is_one_sentence(tmp_path, fake_compiler):
    fake_compiler('echo "api.cpp:1: error: no such instruction" >&2; exit 1')
    library, why = load_library(tmp_path / "cache", 1)
    assert library is None
    assert why == "the C++ kernels do not compile here (api.cpp:1: error: no such instruction)"
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_folder_that_cannot_be_written(tmp_path, fake_compiler):
    fake_compiler(WRITE_OUTPUT)
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="cannot be written to"):
        build(tmp_path / "file" / "cache")


def test_something_that_is_no_library_is_refused(tmp_path, fake_compiler):
    fake_compiler(WRITE_OUTPUT)
    library, why = load_library(tmp_path / "cache", 1)
    assert library is None and why


def test_wrong_results_keep_the_library_from_being_used(cpu_library, tmp_path, monkeypatch):
    right = library_module.reference_linear
    monkeypatch.setattr(library_module, "reference_linear", lambda x, w: right(x, w) * 1.5)
    library, why = load_library(cpu_library.path.parent, 1)
    assert library is None and why.startswith("the C++ kernels give wrong results on this CPU (float32 product")


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names x86 CPUs")
@pytest.mark.parametrize(
    ("cpu_flag", "needs"),
    [("-march=x86-64-v2", "sse4_2"), ("-march=x86-64-v3", "avx2"), ("-march=x86-64-v4", "avx512vl")],
)
def test_the_code_for_older_cpus_gives_the_same_results(cpu_library, cpu_flag, needs):
    if needs not in build_module._cpu_features().split():
        pytest.skip(f"this CPU has no {needs}")
    library = CpuLibrary(build(cpu_library.path.parent, cpu_flag), 2)
    assert not library.has_bf16_dot
    assert library_module.self_test(library) == ""
    library.close()


@pytest.mark.parametrize("num_threads", [1, 2, 3, 7])
def test_any_number_of_threads_gives_the_same_bits(cpu_library, num_threads):
    library, why = load_library(cpu_library.path.parent, num_threads)
    assert library is not None, why
    weight, x = torch.randn(256, 64), torch.randn(5, 64)
    packed = pack(weight)
    for _ in range(200):  # the threads meet in another order each time
        assert torch.equal(library.linear(x, packed), cpu_library.linear(x, packed))
    library.close()


def test_idle_threads_use_no_processor_time(cpu_library):
    weight, x = pack(torch.randn(256, 64)), torch.randn(1, 64)
    cpu_library.linear(x, weight)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1


def test_calls_from_several_threads_wait_for_each_other(cpu_library):
    weight, x = torch.randn(512, 64), torch.randn(9, 64)
    packed, wanted, wrong = pack(weight), linear(x, weight), []

    def work():
        for _ in range(50):
            if not torch.allclose(cpu_library.linear(x, packed), wanted, atol=1e-4):
                wrong.append(threading.get_ident())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_child_has_its_own_threads_and_a_process_ends_cleanly(cpu_library):
    """In a process of its own: forking pytest with torch's threads in it would test torch."""
    code = f"""
import os, torch
torch.set_num_threads(1)
from pathlib import Path
from kernels.cpu import load_library
from kernels.cpu.pack import pack
library, why = load_library(Path({str(cpu_library.path.parent)!r}), 3)
weight, x = torch.randn(256, 64), torch.randn(2, 64)
packed = pack(weight)
wanted = library.linear(x, packed)
child = os.fork()
same = torch.equal(library.linear(x, packed), wanted)
if child == 0:
    os._exit(0 if same else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print("parent", same, "child", status)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=os.environ)
    assert (done.returncode, done.stdout) == (0, "parent True child 0\n"), done.stderr
