"""The policies that can be chosen by name. A new policy is one file here, and its name in ``scenario.PolicyName``.

The name leads to the file: ``chunked`` is the class with that ``name`` in ``chunked.py``. In the order of
``PolicyName`` each mends what the one before costs.
"""

from __future__ import annotations

from importlib import import_module
from typing import get_args

from engine.lab.scenario import PolicyName
from engine.scheduling.policies.base import Policy


def _policy(name: str) -> type[Policy]:
    module = import_module(f"{__name__}.{name}")
    return next(value for value in vars(module).values() if getattr(value, "name", None) == name)


POLICIES: dict[str, type[Policy]] = {name: _policy(name) for name in get_args(PolicyName)}

__all__ = ["POLICIES", "Policy"]
