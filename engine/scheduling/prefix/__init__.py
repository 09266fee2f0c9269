"""Prefix caches by the name a Scenario gives them in ``limits.prefix_cache``."""

from __future__ import annotations

from engine.scheduling.prefix.base import NoPrefixCache, PrefixCache
from engine.scheduling.prefix.hash_chain import HashChain
from engine.scheduling.prefix.radix import Radix

PREFIX_CACHES: dict[str, type[PrefixCache]] = {"none": NoPrefixCache, "hash": HashChain, "radix": Radix}

__all__ = ["PREFIX_CACHES", "HashChain", "NoPrefixCache", "PrefixCache", "Radix"]
