"""Chunked prefill with the shortest job first: the worked example of how a policy is added.

Against ``chunked.py`` only the order of admission differs: fewest tokens in all, the prompt's and ``max_tokens``, for
nobody knows when a request will stop. It brings the mean latency down, and a steady stream of short requests keeps a
long one waiting for ever: there is no age bound here, so that it can be seen. Follows shortest job first, the textbook
rule. To add a policy: this file, and its name in ``engine.lab.scenario.PolicyName``.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.scheduling.policies.chunked import Chunked
from engine.scheduling.requests import Request


class ShortestFirst(Chunked):
    """Chunked, fewest tokens first."""

    name = "shortest_first"
    first_come_first_served = False

    def candidates(self) -> Sequence[Request]:
        return sorted(super().candidates(), key=lambda request: request.max_total_tokens)
