"""Scheduling of the two sides of a disaggregated engine: one only computes prompts, the other only decodes.

The prefill side is the chunked policy but for one thing: a request that has its first token leaves the running ones and
keeps its blocks, because they are still to be sent. They come back when the sender is done with them and not before,
an abort included: a block that is being read must not be given to somebody who writes it. The decode side is the
chunked policy as it is; its requests arrive with their prompt computed, so that there is no prompt to stand in a
decoder's way. It reads no clock and sends nothing. Follows DistServe (Zhong et al. 2024).
"""

from __future__ import annotations

from engine.lab.scenario import Limits
from engine.scheduling.blocks import BlockPool
from engine.scheduling.policies.chunked import Chunked
from engine.scheduling.prefix import PrefixCache
from engine.scheduling.requests import Request


class PrefillSide(Chunked):
    """Chunked prefill that ends with the first token. ``leaving`` holds requests whose blocks are still to be sent.

    Every request here has ``max_tokens`` 1; ``complete`` names those that wanted no more and so go nowhere.
    """

    def __init__(self, limits: Limits, pool: BlockPool, prefix: PrefixCache) -> None:
        super().__init__(limits, pool, prefix)
        self.leaving: dict[str, Request] = {}
        self.complete: frozenset[str] = frozenset()

    @property
    def expects_blocks(self) -> bool:
        return bool(self.leaving)

    def end(self, request: Request) -> None:
        """It has its first token. Effect: it leaves; its blocks stay until ``sent``, unless the answer is over."""
        if request.finish_reason == "stop" or request.request_id in self.complete:
            super().end(request)
            return
        self.running.remove(request)
        self.leaving[request.request_id] = request

    def drop(self, request: Request) -> None:
        """As always, but blocks that are being sent are left alone until they have been."""
        if request.request_id not in self.leaving:
            super().drop(request)

    def sent(self, request_id: str) -> None:
        """The sender has read the blocks. Effect: they are free."""
        self.release(self.leaving.pop(request_id))


def arrive_computed(request: Request, first_token_id: int, now_s: float, first_token_s: float) -> Request:
    """A request as the decode side gets it: with its first token, its prompt computed elsewhere. Effect: on it."""
    request.token_ids.append(first_token_id)
    request.num_computed_tokens = request.num_prompt_tokens
    request.arrival_s = now_s
    request.first_token_s = first_token_s
    return request


def split_blocks(num_blocks: int) -> tuple[int, int]:
    """How many blocks the prefill and the decode side get: half each, an odd one goes to the decode side. Pure."""
    return num_blocks // 2, num_blocks - num_blocks // 2


def positions_needed(num_prompt_tokens: int, max_tokens: int) -> tuple[int, int]:
    """The most positions a request takes on the prefill and on the decode side. Pure."""
    return num_prompt_tokens + 1, num_prompt_tokens + max_tokens
