"""Compile the C++ sources for this very machine, once, and find the result again later.

The file's name is a hash of everything that could change it: the sources, the compiler's version, its flags and the
CPU's feature list. So a cache folder that is shared or moved between machines never yields code for another CPU, and
an edited source is compiled anew. A build is written beside its final name and moved there, so that two processes that
build at once do not disturb each other.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE_DIR = Path(__file__).parent / "src"
ENTRY = "api.cpp"
COMPILE_TIMEOUT_S = 300
# Not the system's warnings about its own intrinsics headers (-w); unsafe math stays off, the results are compared.
FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-pthread", "-w")


class BuildError(RuntimeError):
    """The kernels cannot be compiled here. The message is one sentence."""


def build(cache_dir: Path, cpu_flag: str | None = None) -> Path:
    """Path of the compiled library. Effect: compiles on the first call (seconds). Raises: BuildError.

    ``cpu_flag``: the CPU to compile for; None is this one. Tests give it, to run the code that other CPUs get.
    """
    if sys.platform == "win32":
        raise BuildError("the C++ kernels are not built on Windows")
    compiler = find_compiler()
    cpu_flag = cpu_flag or _native_flag(compiler)
    target = cache_dir / f"tbt-{_fingerprint(compiler, cpu_flag)}.so"
    if target.is_file():
        return target
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_dir) as work_dir:
            made = Path(work_dir) / target.name
            _run([compiler, *FLAGS, cpu_flag, str(SOURCE_DIR / ENTRY), "-o", str(made)])
            made.replace(target)
    except OSError as error:
        raise BuildError(f"the C++ kernels cannot be written to {cache_dir} ({error.strerror or error})") from None
    return target


def find_compiler() -> str:
    """The C++ compiler: $CXX, else g++, clang++ or c++. Raises: BuildError."""
    for name in filter(None, (os.environ.get("CXX"), "g++", "clang++", "c++")):
        found = shutil.which(name)
        if found:
            return found
    raise BuildError("no C++ compiler was found; install g++ or clang++ for the fast CPU path")


def _native_flag(compiler: str) -> str:
    """Clang on Arm knows this machine by another flag than everyone else."""
    if platform.machine().lower() in ("arm64", "aarch64") and "clang" in _version(compiler).lower():
        return "-mcpu=native"
    return "-march=native"


def _fingerprint(compiler: str, cpu_flag: str) -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCE_DIR.iterdir()):
        if path.suffix in (".cpp", ".h"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    for text in (_version(compiler), *FLAGS, cpu_flag, platform.machine(), _cpu_features()):
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:16]


def _version(compiler: str) -> str:
    return _run([compiler, "--version"])


def _cpu_features() -> str:
    """What distinguishes one CPU's code from another's. Empty where the system does not tell."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return line
    except OSError:
        pass
    return platform.processor()


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"the C++ compiler {command[0]} cannot be run ({error})") from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()] or done.stderr.splitlines()
        raise BuildError(f"the C++ kernels do not compile here ({lines[0].strip() if lines else 'no message'})")
    return done.stdout
