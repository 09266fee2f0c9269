"""Several engine processes for one run: started together, watched together, ended together.

It decides nothing about what they compute. A process that ends unasked ends the whole run with one sentence, and no
worker outlives the process that started it: each watches for its parent's end. Invariant: after ``Crew.close`` none of
its processes is left.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from engine.model.load import LoadedModel, load_model
from engine.runtime.kernels_choice import KernelChoice, Kernels, ops_of, settle
from kernels.cpu import load_library

PATIENCE_S = 2.0  # how long a worker that was asked to end may take


class WorkerDied(ValueError):
    """A worker process ended while it was needed. The message is one sentence with what to do."""


@dataclass(frozen=True)
class WorkerModel:
    """What a worker needs to load the model by itself."""

    name: str
    dtype: str
    weights: str | None
    home: Path
    kernels: Kernels
    num_threads: int

    def load(self) -> LoadedModel:
        """Effect: this process computes with ``num_threads`` threads from now on. Raises: ModelError."""
        torch.set_num_threads(self.num_threads)
        library = load_library(self.home / "kernels", self.num_threads)[0] if self.kernels == "cpp" else None
        kernels = "torch" if self.kernels == "cpp" and library is None else self.kernels
        ops = ops_of(KernelChoice(kernels), self.weights, library)
        loaded = load_model(self.name, self.dtype, weights=self.weights, models_dir=self.home / "models", ops=ops)
        settle(loaded)
        return loaded


def context() -> Any:
    """How processes are started: from a clean server that has torch in memory where the system can, else afresh."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["engine.runtime.workers"])
    return made


class Crew:
    """The worker processes of one run, by name. Use it in a ``with``: whatever happens, they end."""

    def __init__(self, ctx: Any, targets: Mapping[str, tuple[Callable[..., None], Sequence[Any]]]) -> None:
        """Each target is called in its process with its end of a pipe and its arguments. Effect: starts them."""
        self._processes: dict[str, Any] = {}
        self._pipes: dict[str, Connection] = {}
        try:
            for name, (target, arguments) in targets.items():
                ours, theirs = ctx.Pipe()
                process = ctx.Process(target=_main, args=(target, theirs, *arguments), name=name, daemon=True)
                process.start()
                theirs.close()
                self._processes[name], self._pipes[name] = process, ours
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._processes.items()}

    def send(self, name: str, message: object) -> None:
        """Raises: WorkerDied."""
        try:
            self._pipes[name].send(message)
        except OSError:
            self._mourn(name)

    def receive(self, timeout_s: float) -> list[tuple[str, Any]]:
        """What workers have said, waiting for it up to ``timeout_s``. Raises: WorkerDied; whatever a worker raised."""
        by_pipe = {pipe: name for name, pipe in self._pipes.items()}
        by_sentinel = {process.sentinel: name for name, process in self._processes.items()}
        ready = wait([*by_pipe, *by_sentinel], timeout_s)
        messages: list[tuple[str, Any]] = []
        for pipe in [p for p in ready if p in by_pipe]:
            messages += self._read(by_pipe[pipe])
        for sentinel in [s for s in ready if s in by_sentinel]:
            messages += self._read(by_sentinel[sentinel])  # its last words: why it ends
            self._mourn(by_sentinel[sentinel])
        return messages

    def _read(self, name: str) -> list[tuple[str, Any]]:
        found = []
        with contextlib.suppress(EOFError, OSError):
            while self._pipes[name].poll():
                message = self._pipes[name].recv()
                if isinstance(message, Failed):
                    self._mourn_the_killed()
                    raise message.error
                found.append((name, message))
        return found

    def _mourn_the_killed(self) -> None:
        """A worker that fails may do so because its neighbour was killed: then that is what there is to say."""
        for name, process in self._processes.items():
            process.join(0.1)
            if (process.exitcode or 0) < 0:
                self._mourn(name)

    def _mourn(self, name: str) -> None:
        process = self._processes[name]
        process.join(PATIENCE_S)
        others = len(self._processes) - 1
        raise WorkerDied(
            f"the {name} worker (process {process.pid}) ended in the middle of the run{_how(process.exitcode)}; the "
            f"run was stopped and {'the other worker was' if others == 1 else 'the other workers were'} ended too, "
            "so start the run again"
        )

    def close(self) -> None:
        """Effect: every worker is asked to end, then made to; returns when none is left. Safe to repeat."""
        for pipe in self._pipes.values():
            with contextlib.suppress(OSError):
                pipe.send(STOP)
        end_s = time.monotonic() + PATIENCE_S
        for process in self._processes.values():
            process.join(max(0.0, end_s - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in self._pipes.values():
            pipe.close()
        for process in self._processes.values():
            process.close()
        self._processes, self._pipes = {}, {}


STOP = "stop"


@dataclass(frozen=True)
class Failed:
    """A worker's last message: what it died of."""

    error: Exception


def _how(exitcode: int | None) -> str:
    if exitcode is None:
        return ""
    if exitcode < 0:
        return f" (ended by {signal.Signals(-exitcode).name})"
    return f" (exit code {exitcode})"


def _main(target: Callable[..., None], pipe: Connection, *arguments: Any) -> None:
    """A worker's whole life. Effect: what it raises is sent, not printed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        target(pipe, *arguments)
    except (EOFError, BrokenPipeError):
        pass  # the parent is gone
    except Exception as error:
        with contextlib.suppress(Exception):
            pipe.send(Failed(error))
        sys.exit(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker is started by somebody"
    parent.join()
    os._exit(1)
