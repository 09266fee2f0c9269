"""Imports point one way, and nothing the pages need loads torch. Each import runs in a process of its own."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("engine", "kernels", "lessons", "pages")
ALLOWED = {
    "kernels": {"kernels"},
    "engine": {"engine", "kernels"},
    "lessons": {"lessons", "engine"},
    "pages": {"pages", "lessons", "engine"},
}
# What a package may take from the engine: nothing that runs it.
ENGINE_PARTS = {
    "lessons": ("engine.lab", "engine.settings"),
    "pages": ("engine.lab", "engine.settings", "engine.server.client"),
}
TORCH_FREE_PACKAGES = ("engine/scheduling", "engine/lab", "lessons", "pages")
TORCH_ALLOWED = {"engine/lab/ceilings.py"}


def modules(folder: str) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in sorted((ROOT / folder).rglob("*.py"))]


def imported(path: str) -> set[str]:
    """Absolute names of all imports in a file, also those inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.update({node.module, *(f"{node.module}.{alias.name}" for alias in node.names)})
    return names


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def _may_import(package: str, name: str) -> bool:
    top = name.split(".")[0]
    if top not in ALLOWED[package]:
        return False
    if top != "engine" or package not in ENGINE_PARTS or name in ("engine", "engine.server"):
        return True
    return any(name == part or name.startswith(f"{part}.") for part in ENGINE_PARTS[package])


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_what_lies_below_them(package: str) -> None:
    wrong = [
        (path, name)
        for path in modules(package)
        for name in imported(path)
        if name.split(".")[0] in PACKAGES and not _may_import(package, name)
    ]
    assert wrong == []


@pytest.mark.parametrize("package", ["engine", "kernels", "lessons"])
def test_only_pages_know_streamlit(package: str) -> None:
    assert [path for path in modules(package) if any(n.split(".")[0] == "streamlit" for n in imported(path))] == []


def test_torch_free_packages_do_not_name_torch() -> None:
    heavy = {"torch", "transformers"}
    wrong = [
        path
        for folder in TORCH_FREE_PACKAGES
        for path in modules(folder)
        if path not in TORCH_ALLOWED and any(n.split(".")[0] in heavy for n in imported(path))
    ]
    assert wrong == []


def test_importing_everything_the_pages_use_leaves_torch_unloaded() -> None:
    code = """
import importlib, pathlib, pkgutil, sys
import engine.scheduling, engine.lab, lessons, pages._ui
import engine.server.client, engine.server.supervisor, engine.settings, app
for package in (engine.scheduling, engine.lab, lessons, pages._ui):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if found.name != "engine.lab.ceilings":
            importlib.import_module(found.name)
heavy = sorted({name.split(".")[0] for name in sys.modules} & {"torch", "transformers", "triton"})
print(heavy)
"""
    assert run_python(code) == "[]"


def test_running_every_page_leaves_torch_unloaded(tmp_path: Path) -> None:
    code = f"""
import os, pathlib, sys
os.environ["TOKEN_BY_TOKEN_HOME"] = {str(tmp_path)!r}
os.environ["TOKEN_BY_TOKEN_ENGINE_URL"] = "http://127.0.0.1:9"
from streamlit.testing.v1 import AppTest
at = AppTest.from_file("pages/_main.py", default_timeout=60).run()
pages = sorted(p.name for p in pathlib.Path("pages").glob("p_*.py"))
assert pages and not at.exception, at.exception
for page in pages:
    at.switch_page(page).run()
    assert not at.exception, (page, at.exception)
print(sorted({{name.split(".")[0] for name in sys.modules}} & {{"torch", "transformers", "triton"}}))
"""
    assert run_python(code) == "[]"


def test_no_page_file_shadows_a_package() -> None:
    top = {path.name for path in ROOT.iterdir() if path.is_dir()} | {path.stem for path in ROOT.glob("*.py")}
    stems = {path.stem for path in (ROOT / "pages").glob("*.py")} - {"__init__"}
    assert stems & (top | set(sys.stdlib_module_names)) == set()
    assert all(stem == "_main" or stem.startswith("p_") for stem in stems)
