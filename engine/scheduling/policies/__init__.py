"""The policies that can be chosen by name. A new policy is one file, and one line here."""

from __future__ import annotations

from engine.scheduling.policies.base import Policy
from engine.scheduling.policies.chunked import Chunked
from engine.scheduling.policies.static import Static

POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (Static, Chunked)}

__all__ = ["POLICIES", "Chunked", "Policy", "Static"]
