"""The wire between two engine processes: keys and values of whole requests, sent and received beside the engines.

It decides neither who is sent nor when a request may decode; it moves bytes and says when they left and when the last
one was there. Sender and receiver are threads of their own, so that a transfer does not hold up a pass. Bytes are
counted where they arrive. Invariant: a sender reports a request as taken only when its blocks have been read.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from engine.lab.records import Transfer
from engine.runtime.engine import Engine
from engine.runtime.executor import TorchExecutor

PIECE_BYTES = 256 * 1024  # sent at once: small enough for the pace to be even


@dataclass(frozen=True)
class Parcel:
    """A request whose prompt is computed, on its way. ``block_ids``: where its keys and values are, or were."""

    request_id: str
    first_token_id: int
    ready_s: float
    num_tokens: int
    block_ids: tuple[int, ...]
    t_begin_s: float = 0.0
    t_end_s: float = 0.0
    kv: Any = None  # [L, n * B, 2, Hk, D], once received


def transfer_of(parcel: Parcel) -> Transfer:
    """The record of a parcel that has arrived. Pure."""
    return Transfer(
        request_id=parcel.request_id,
        num_tokens=parcel.num_tokens,
        num_blocks=len(parcel.block_ids),
        num_bytes=parcel.kv.nbytes,
        ready_s=parcel.ready_s,
        t_begin_s=parcel.t_begin_s,
        t_end_s=parcel.t_end_s,
    )


class Sender:
    """Sends parcels in order, beside the engine. The link is paced if it is to be slower than this machine."""

    def __init__(self, link: Connection, executor: TorchExecutor, engine: Engine, mb_per_s: float | None) -> None:
        self._link, self._cache, self._engine = link, executor.cache, engine
        self._bytes_per_s = None if mb_per_s is None else mb_per_s * 1e6
        self._todo: queue.SimpleQueue[Parcel] = queue.SimpleQueue()
        self._taken: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._main, name="sender", daemon=True).start()

    def send(self, parcel: Parcel) -> None:
        """Returns at once. Effect: the blocks are read some time later; ``taken`` says when they have been."""
        self._todo.put(parcel)

    def taken(self) -> list[str]:
        """Requests whose blocks have been sent since the last call."""
        return _drain(self._taken)

    def _main(self) -> None:
        while True:
            parcel = self._todo.get()
            begin_s = self._engine.now_s()
            try:
                self._send(parcel, begin_s)
            except OSError:
                return  # the receiver is gone: the parent notices its end
            self._taken.put(parcel.request_id)

    def _send(self, parcel: Parcel, begin_s: float) -> None:
        kv = self._cache.export_blocks(parcel.block_ids).contiguous().view(torch.uint8).flatten().numpy()
        begun = time.perf_counter()
        self._link.send((parcel, begin_s, kv.nbytes))
        for start in range(0, kv.nbytes, PIECE_BYTES):
            piece = kv[start : start + PIECE_BYTES]
            if self._bytes_per_s is not None:  # it is there when a wire of this rate would have brought it
                due = begun + (start + piece.nbytes) / self._bytes_per_s
                time.sleep(max(0.0, due - time.perf_counter()))
            self._link.send_bytes(memoryview(piece))


class Receiver:
    """Takes parcels off the link, beside the engine, and counts their bytes."""

    def __init__(self, link: Connection, engine: Engine, slots: torch.Tensor) -> None:
        self._link, self._engine = link, engine
        self._shape = (slots.shape[0], -1, *slots.shape[2:])
        self._dtype = slots.dtype
        self._arrived: queue.SimpleQueue[Parcel] = queue.SimpleQueue()
        threading.Thread(target=self._main, name="receiver", daemon=True).start()

    def arrived(self, timeout_s: float) -> list[Parcel]:
        """What has come in whole since the last call, waiting up to ``timeout_s`` for the first."""
        found = []
        if timeout_s:
            try:
                found.append(self._arrived.get(timeout=timeout_s))
            except queue.Empty:
                return []
        return found + _drain(self._arrived)

    def _main(self) -> None:
        while True:
            try:
                parcel, begin_s, num_bytes = self._link.recv()
                buffer = np.empty(num_bytes, dtype=np.uint8)
                count = 0
                while count < num_bytes:
                    count += self._link.recv_bytes_into(buffer, count)
            except (EOFError, OSError):
                return
            self._arrived.put(
                replace(
                    parcel,
                    t_begin_s=begin_s,
                    t_end_s=self._engine.now_s(),
                    kv=torch.from_numpy(buffer).view(self._dtype).view(self._shape),
                )
            )


def _drain(source: queue.SimpleQueue[Any]) -> list[Any]:
    found = []
    while not source.empty():
        found.append(source.get())
    return found
