"""The source of a policy as it runs here, and what differs from another: read from the files, never typed again.

Compared is the class, without the module's introduction; comments and docstrings stay, they say why. A class that
builds on the other one differs by all that stands in it.
"""

from __future__ import annotations

import ast
import difflib
from functools import lru_cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "engine" / "scheduling" / "policies"


@lru_cache(maxsize=32)
def source(policy: str) -> str:
    """The whole file of a policy. Raises: OSError for a name that has none."""
    return (FOLDER / f"{policy}.py").read_text(encoding="utf-8")


@lru_cache(maxsize=32)
def difference(policy: str, below: str) -> str:
    """The class of ``policy`` against that of ``below``, as a unified diff with all lines for context. Pure."""
    new, old = _class(policy), _class(below)
    if old.name in {getattr(base, "id", None) for base in new.bases}:
        return "\n".join(f"+{line}" for line in _text(policy, new))
    lines = difflib.unified_diff(_text(below, old), _text(policy, new), f"{below}.py", f"{policy}.py", "", "", 3, "")
    return "\n".join(lines)


def extends(policy: str, below: str) -> bool:
    """Whether the class of ``policy`` builds on that of ``below`` and says only what differs. Pure."""
    return _class(below).name in {getattr(base, "id", None) for base in _class(policy).bases}


def _class(policy: str) -> ast.ClassDef:
    nodes = ast.parse(source(policy)).body
    return next(node for node in nodes if isinstance(node, ast.ClassDef))


def _text(policy: str, node: ast.ClassDef) -> list[str]:
    return source(policy).splitlines()[node.lineno - 1 : node.end_lineno]
