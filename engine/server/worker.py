"""The one thread that owns the device: it loads the model, then takes one job after another from the queue.

A lab run has the device to itself from its first step to its last. Neighbouring OpenAI requests are served as one group
by one serving engine (continuous batching), and newcomers join until a lab run stands before them. When the line is
empty it measures the device's ceilings once. The thread decides no order (``engine.server.jobs`` does) and survives
every job: one that fails leaves one sentence. torch is imported in this thread only, so that the port answers at once.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from engine.lab.scenario import ScenarioError
from engine.server.jobs import SHUTTING_DOWN, Delta, Failure, GenerationJob, JobQueue
from engine.server.metrics import Metrics
from engine.server.protocols import GenerationEvent, LoadedModel, OnProgress, Runtime, RuntimeFactory, ServingEngine
from engine.server.runs import LabRun
from engine.server.sentences import device_is_lost, is_for_the_user, sentence

log = logging.getLogger("engine.server")

IDLE_BEFORE_CALIBRATION_S = (5.0, 60.0, 300.0, 1800.0)  # the first measurement, and again while it was disturbed
RETRY_LOAD_S = 30.0
POLL_S = 0.5
SERVING_DTYPE = "float32"

State = Literal["starting", "loading", "ready", "failed"]


def lab_runtime(model: str, kernels: str | None = None) -> RuntimeFactory:
    """A factory of the real runtime with ``model`` as its default. It imports torch when it is called, not before.

    ``kernels``: torch, triton or cpp; None is what the environment asks for, or the best there is.
    """

    def make(on_progress: OnProgress) -> Runtime:
        from engine.runtime.kernels_choice import wanted_kernels
        from engine.runtime.lab import LabRuntime
        from engine.settings import settings

        return LabRuntime(
            replace(settings(), default_model=model), on_progress, str(kernels) if kernels else wanted_kernels()
        )

    return make


@dataclass(frozen=True)
class Readiness:
    state: State
    stage: str
    fraction: float | None
    message: str


class DeviceWorker:
    """Start it, ask ``readiness``, stop it. Everything else goes through the queue."""

    def __init__(
        self,
        queue: JobQueue,
        metrics: Metrics,
        runtime_factory: RuntimeFactory,
        model: str,
        on_fatal: Callable[[], None] = lambda: None,
    ) -> None:
        self.readiness = Readiness("starting", "start", None, "the engine is starting")
        self.loaded: LoadedModel | None = None
        self.device_report: dict[str, Any] = {}
        self._queue = queue
        self._metrics = metrics
        self._factory = runtime_factory
        self.model = model
        self._on_fatal = on_fatal
        self._current: LabRun | None = None
        self._num_calibrations = 0
        self._needs_calibration = True
        self._thread = threading.Thread(target=self._main, name="device", daemon=True)

    def start(self) -> None:
        """Effect: start the thread. Returns at once."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Effect: end every job, then the thread. False when it is still inside a step after ``timeout_s``."""
        self._queue.close()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # -- the thread ---------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._load()
            idle_since_s = time.monotonic()
            while not self._queue.is_closed:
                job = self._queue.take(POLL_S)
                if isinstance(job, LabRun):
                    self._run(job)
                elif job is not None:
                    self._serve(job)
                elif not self._is_time_to_calibrate(time.monotonic() - idle_since_s):
                    continue
                else:
                    self._calibrate()
                idle_since_s = time.monotonic()
        except BaseException as error:
            log.exception("the device thread ended")
            self._fail(f"the engine's device thread ended: {sentence(error)}")
            self._queue.close()
            self._on_fatal()

    def _load(self) -> None:
        """Load the default model; on failure say why, keep the process up and try again now and then."""
        self.readiness = Readiness("loading", "import", None, "loading the engine's libraries")
        try:
            self._runtime = self._factory(self._on_progress)
        except Exception as error:  # torch that cannot be imported, a device that cannot be opened
            log.exception("the runtime could not start")
            self._fail(f"the engine cannot start: {sentence(error)}")
            self._wait_failed(None)
            return
        while not self._queue.is_closed:
            try:
                self.loaded = self._runtime.load(self.model, SERVING_DTYPE)
                break
            except Exception as error:
                log.warning("model %s could not be loaded: %s", self.model, error)
                self._fail(sentence(error))
                self._wait_failed(RETRY_LOAD_S)
        if self.loaded is not None:
            self._refresh_report()
            # What was loaded stays for good: keep it out of the garbage collector's way, whose pauses a Run would show.
            gc.collect()
            gc.freeze()
            self.readiness = Readiness("ready", "ready", 1.0, f"{self.loaded.info.name} is ready")

    def _run(self, run: LabRun) -> None:
        self._current = run
        try:
            prepared = self._runtime.prepare(run.scenario)
            with _no_garbage_collection():
                result = self._runtime.run(prepared, run.run_id, run.on_step, run.should_stop)
            run.complete(result)
        except Exception as error:
            if run.end("failed", sentence(error)) and not is_for_the_user(error):
                log.exception("run %s failed", run.run_id)
            if device_is_lost(error):
                raise
        finally:
            self._current = None
            run.pack()
            self._queue.retire(run)
            self._metrics.run_ended(run.state)
        self._refresh_report()

    def _serve(self, first: GenerationJob) -> None:
        """Serve a group of requests until none is left that may run now."""
        group: dict[str, GenerationJob] = {}
        newcomers = [first]
        serving: ServingEngine | None = None
        try:
            serving = self._runtime.serving()
            while newcomers or group:
                self._admit(serving, group, newcomers)
                self._drop_cancelled(serving, group)
                if group and not serving.has_work:
                    raise RuntimeError("the serving engine lost a request")
                if group:
                    self._deliver(group, serving.step())
                self._metrics.kv_blocks(serving.total_blocks - serving.free_blocks, serving.total_blocks)
                newcomers = self._queue.join()
        except Exception as error:
            log.exception("serving failed")
            self._abandon(serving, group, newcomers, Failure(500, f"the engine failed: {sentence(error)}"))
            if device_is_lost(error):
                raise

    def _admit(self, serving: ServingEngine, group: dict[str, GenerationJob], jobs: list[GenerationJob]) -> None:
        while jobs:
            job = jobs[0]
            if not job.cancelled:
                try:
                    group[serving.add(job.spec)] = job
                    jobs.pop(0)
                    continue
                except ScenarioError as error:
                    # Its values were checked before it queued: what is left is a length the KV cache can never hold.
                    job.send(Failure(400, str(error), error.field or None, "context_length_exceeded"))
                    self._metrics.request_ended("refused")
            jobs.pop(0)
            self._queue.retire(job)

    def _drop_cancelled(self, serving: ServingEngine, group: dict[str, GenerationJob]) -> None:
        for request_id in [request_id for request_id, job in group.items() if job.cancelled]:
            serving.abort(request_id)
            self._queue.retire(group.pop(request_id))
            self._metrics.request_ended("abort")

    def _deliver(self, group: dict[str, GenerationJob], events: Sequence[GenerationEvent]) -> None:
        now_s = time.perf_counter()
        for event in events:
            job = group.get(event.request_id)
            if job is None:
                continue
            self._metrics.tokens_made(job, event, now_s)
            if event.finish_reason == "abort":
                job.send(Failure(503, SHUTTING_DOWN))
            else:
                job.send(Delta(event.text, event.finish_reason, event.num_prompt_tokens, event.num_output_tokens))
            if event.finish_reason is not None:
                self._queue.retire(group.pop(event.request_id))
                self._metrics.request_ended(event.finish_reason)

    def _abandon(
        self,
        serving: ServingEngine | None,
        group: dict[str, GenerationJob],
        newcomers: list[GenerationJob],
        failure: Failure,
    ) -> None:
        for request_id, job in group.items():
            try:
                if serving is not None:
                    serving.abort(request_id)
            except Exception:
                log.exception("request %s could not be aborted", request_id)
            job.send(failure)
            self._queue.retire(job)
            self._metrics.request_ended("error")
        for job in newcomers:
            job.send(failure)
            self._queue.retire(job)
            self._metrics.request_ended("error")

    def _is_time_to_calibrate(self, idle_s: float) -> bool:
        times = IDLE_BEFORE_CALIBRATION_S
        return self._needs_calibration and idle_s > times[min(self._num_calibrations, len(times) - 1)]

    def _calibrate(self) -> None:
        """Measure the device's ceilings, or read them from the cache. A disturbed measurement is repeated later."""
        before = self.readiness
        self._num_calibrations += 1
        try:
            self._needs_calibration = self._runtime.calibrate().disturbed
        except Exception as error:
            self._needs_calibration = False
            log.exception("the device could not be measured")
            if device_is_lost(error):
                raise
        self.readiness = before
        self._refresh_report()

    def _refresh_report(self) -> None:
        try:
            self.device_report = self._runtime.describe()
        except Exception:
            log.exception("the device could not be described")

    def _on_progress(self, stage: str, fraction: float | None, message: str) -> None:
        if self._current is not None:
            self._current.set_stage(message)
        elif self.readiness.state == "ready":  # calibrating: a run that comes now waits for it and may say why
            self.readiness = Readiness("ready", stage, fraction, message)
        elif self.readiness.state != "failed":
            self.readiness = Readiness("loading", stage, fraction, message)

    def _wait_failed(self, seconds: float | None) -> None:
        """Wait while there is no engine, telling whoever slipped into the queue meanwhile. None: until the end."""
        end_s = None if seconds is None else time.monotonic() + seconds
        while not self._queue.wait_closed(POLL_S) and (end_s is None or time.monotonic() < end_s):
            self._queue.fail_waiting(self.readiness.message)

    def _fail(self, message: str) -> None:
        self.readiness = replace(self.readiness, state="failed", fraction=None, message=message)
        self._queue.fail_waiting(message)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Python's collector would stop a timing run for tens of milliseconds, the longer the more records it has made."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()
