"""One process of a ring: it computes its part of the positions, and parts of keys and values come by.

In every layer it sends on the part at hand while it computes with it (torch.distributed, gloo), so a transfer costs
time only where it takes longer than the arithmetic. For a decoded token all workers compute the same layers, each looks
into its own part, and the answers are merged. It decides nothing. Follows ring attention (Liu et al. 2023).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from types import MappingProxyType

import torch
import torch.distributed as dist

from engine.lab.records import RingSpan
from engine.lab.ring import decode_sent_bytes, owner, parts
from engine.model.decoder import Attend
from engine.model.load import LoadedModel
from engine.runtime.ring_attention import Gathering, Partial, merge, partial_attention
from engine.runtime.workers import STOP, WorkerModel

TIMEOUT = timedelta(seconds=120)
_LOOPBACK: Mapping[str, str] = MappingProxyType({"linux": "lo", "darwin": "lo0"})  # all workers are on this machine


@dataclass(frozen=True)
class Prompt:
    """Compute a prompt, forgetting whatever was before."""

    token_ids: list[int]


@dataclass(frozen=True)
class Token:
    """Compute one more position of the same request."""

    token_id: int
    position: int


@dataclass(frozen=True)
class Loaded:
    """The model is loaded and the ring is closed."""


@dataclass
class Answer:
    """What a worker did in a step. ``logits`` [V] from who has the last position. Times: raw clock readings."""

    logits: torch.Tensor | None = None
    positions: int = 0
    kv_bytes: int = 0
    buffer_bytes: int = 0
    sent_bytes: int = 0
    pairs: int = 0
    spans: list[RingSpan] = field(default_factory=list)


def ring_main(pipe: Connection, model: WorkerModel, rank: int, num_workers: int, layout: str, meeting: str) -> None:
    """The whole life of worker ``rank``. ``meeting``: a file where the workers find each other."""
    loaded = model.load()
    if sys.platform in _LOOPBACK:  # elsewhere gloo finds its way by itself
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK[sys.platform])
    if num_workers > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=rank, world_size=num_workers, timeout=TIMEOUT
        )
    worker = _Worker(loaded, rank, num_workers, layout)
    pipe.send(Loaded())
    while (message := pipe.recv()) != STOP:
        pipe.send(worker.prompt(message.token_ids) if isinstance(message, Prompt) else worker.token(message))


class _Worker:
    """The part of one worker. ``_kv[layer]``: [positions, 2, Hk, D], the prompt's in the order of its ranges."""

    def __init__(self, loaded: LoadedModel, rank: int, num_workers: int, layout: str) -> None:
        self._decoder = loaded.decoder
        self._info = loaded.info
        self._rank, self._n, self._layout = rank, num_workers, layout
        self._owned: list[list[range]] = []
        self._kv: list[torch.Tensor] = []
        self._num_prompt_tokens = self._position = 0
        self._answer = Answer()
        self._courier = ThreadPoolExecutor(1, thread_name_prefix="courier")

    def prompt(self, token_ids: Sequence[int]) -> Answer:
        """Compute this worker's part of a prompt. Effect: its keys and values are kept."""
        self._num_prompt_tokens = len(token_ids)
        self._owned = parts(len(token_ids), self._n, self._layout)
        self._kv = []
        own = [position for r in self._owned[self._rank] for position in r]
        last = [own.index(len(token_ids) - 1)] if len(token_ids) - 1 in own else []
        return self._forward([token_ids[position] for position in own], own, last, self._attend_ring)

    def token(self, message: Token) -> Answer:
        """Compute one more position, as every worker does. Effect: the one whose turn it is keeps it."""
        self._position = message.position
        answer = self._forward([message.token_id], [message.position], [0], self._attend_merged)
        answer.sent_bytes = decode_sent_bytes(self._info, self._n)
        return answer

    def _forward(self, token_ids: list[int], positions: list[int], logit_rows: list[int], attend: Attend) -> Answer:
        self._answer = Answer()
        numbers = (token_ids, positions, logit_rows)
        tensors = [torch.tensor(values, dtype=torch.int64, device=self._decoder.device) for values in numbers]
        logits = self._decoder.forward(*tensors, attend)
        self._answer.logits = logits[0].cpu() if logit_rows else None
        self._answer.positions = self._kv[0].shape[0]
        self._answer.kv_bytes = sum(kv.nbytes for kv in self._kv)
        return self._answer

    # ---- the prompt: parts go round ---------------------------------------------------------------------------
    def _attend_ring(self, layer: int, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """q: [T, Hq, D]; kv: [T, 2, Hk, D] of this worker's part -> [T, Hq * D]."""
        self._kv.append(kv.clone())
        gathering = Gathering(q, self._owned[self._rank])
        at_hand, source = self._kv[layer].cpu(), self._rank
        for round_ in range(self._n):
            coming = None
            if round_ < self._n - 1:
                coming = self._exchange(layer, at_hand, source)
            begin_s = time.perf_counter()
            pairs = gathering.add(at_hand.to(q.device), self._owned[source])
            if pairs:
                self._tell(layer, source, "compute", begin_s, time.perf_counter())
            self._answer.pairs += pairs
            if coming is not None:
                at_hand, source = coming.result(), (source - 1) % self._n
        return gathering.out().to(q.dtype).flatten(1)

    def _exchange(self, layer: int, at_hand: torch.Tensor, source: int) -> Future[torch.Tensor]:
        """Begin to send the part at hand to the next worker and to take one from the worker before."""
        before = (source - 1) % self._n
        num_rows = sum(len(r) for r in self._owned[before])
        buffer = torch.empty((num_rows, *at_hand.shape[1:]), dtype=at_hand.dtype)
        passing_on = 0 if source == self._rank else at_hand.nbytes
        self._answer.buffer_bytes = max(self._answer.buffer_bytes, passing_on + buffer.nbytes)
        begin_s = time.perf_counter()
        jobs = [
            dist.isend(at_hand, (self._rank + 1) % self._n),
            dist.irecv(buffer, (self._rank - 1) % self._n),
        ]

        def wait() -> torch.Tensor:
            for job in jobs:
                job.wait()
            self._tell(layer, source, "send", begin_s, time.perf_counter(), at_hand.nbytes)
            return buffer

        self._answer.sent_bytes += at_hand.nbytes
        return self._courier.submit(wait)

    def _tell(self, layer: int, source: int, op: str, begin_s: float, end_s: float, num_bytes: int = 0) -> None:
        self._answer.spans.append(
            RingSpan(
                worker=self._rank,
                layer=layer,
                source=source,
                op=op,
                t_begin_s=begin_s,
                t_end_s=end_s,
                num_bytes=num_bytes,
            )
        )

    # ---- a token: answers are merged --------------------------------------------------------------------------
    def _attend_merged(self, layer: int, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """q: [1, Hq, D]; kv: [1, 2, Hk, D] of the token -> [1, Hq * D], the same on every worker."""
        if owner(self._position, self._num_prompt_tokens, self._n) == self._rank:
            self._kv[layer] = torch.cat([self._kv[layer], kv])
        answers = self._all_gather(partial_attention(q, self._kv[layer], causal=False))
        self._answer.pairs += self._kv[layer].shape[0]
        found = answers[0]
        for answer in answers[1:]:
            found = merge(found, answer)
        return found[0].to(q.dtype).flatten(1)

    def _all_gather(self, mine: Partial) -> list[Partial]:
        """The partial answers of all workers, in order of rank, so that all merge them alike."""
        if self._n == 1:
            return [mine]
        packed = torch.cat([mine[0], mine[1][..., None]], dim=-1).cpu()  # [1, Hq, D + 1]
        found = [torch.empty_like(packed) for _ in range(self._n)]
        dist.all_gather(found, packed)
        return [(part[..., :-1].to(mine[0].device), part[..., -1].to(mine[0].device)) for part in found]
