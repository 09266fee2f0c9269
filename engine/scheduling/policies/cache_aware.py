"""Chunked prefill for those first whose prompt is cached longest: what is there is used before it is evicted.

Against ``chunked.py`` only the order of admission differs. In order of arrival, requests of different prefixes evict
each other's blocks; taken by cached prefix, those that share one run together and compute it once. They could keep
overtaking somebody for ever, so who has waited ``PATIENCE`` steps goes first, in order of arrival. Without a prefix
cache nothing is ever cached and the order is that of arrival. Follows the longest-prefix-match policy of SGLang (Zheng
et al. 2024), which has no such bound.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.scheduling.policies.chunked import Chunked
from engine.scheduling.requests import Request

PATIENCE = 64  # steps
NUM_LOOKED_UP = 64  # finding a prefix costs time too: who stands behind so many others keeps the order of arrival


class CacheAware(Chunked):
    """Chunked, longest cached prefix first."""

    name = "cache_aware"
    first_come_first_served = False

    def candidates(self) -> Sequence[Request]:
        waiting = super().candidates()
        if len(self.running) >= self.limits.max_requests:
            return waiting  # nobody will be admitted, so no order is worth its price
        return sorted(waiting[:NUM_LOOKED_UP], key=self._rank) + waiting[NUM_LOOKED_UP:]

    def _rank(self, request: Request) -> tuple[bool, int]:
        patient = request.num_refusals < PATIENCE
        return patient, -len(self.find_cached(request)) if patient else 0
