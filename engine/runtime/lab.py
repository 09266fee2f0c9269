"""The lab's runtime: owns the loaded models and the device, turns a Scenario into a Run, and serves live requests.

It joins what the rest of ``engine`` keeps apart: model, executor, scheduler, records. It decides no order of jobs (the
server's queue does) and knows no HTTP. Its invariant: a run's clock starts after loading, allocation and warm-up, so a
Run never contains the cost of getting ready, and two runs never share the device (one thread makes all calls).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import torch

from engine.lab.ceilings import Ceilings, calibrate, load_cached
from engine.lab.device import cpu_sample, describe_device, disturbance
from engine.lab.records import Header, Run, StepRecord
from engine.lab.scenario import MAX_REQUESTS_PER_SCENARIO, MAX_TOKENS_PER_REQUEST, Limits, Scenario
from engine.model.load import LoadedModel, list_models
from engine.runtime.accuracy import probe_quantization
from engine.runtime.disaggregated import DisaggregatedRun
from engine.runtime.engine import Engine
from engine.runtime.executor import TorchExecutor
from engine.runtime.followers import Followers
from engine.runtime.kernels_choice import kernels_of
from engine.runtime.outside import Stopped, observe
from engine.runtime.prepared import (
    PreparedOutside,
    PreparedRun,
    RunCancelled,
    RunResult,
    require_available,
    tokenized,
)
from engine.runtime.ring import RingExecutor, RingStopped, clock_origin_s, require_ring_fits
from engine.runtime.serving import ServingEngine
from engine.runtime.shelf import ModelShelf, OnProgress
from engine.runtime.spoken import SpokenTexts
from engine.runtime.text import TextStream
from engine.runtime.training import probe_training_step
from engine.runtime.versions import versions
from engine.runtime.workers import WorkerModel
from engine.scheduling.policies import POLICIES
from engine.scheduling.requests import Request
from engine.settings import Settings

OnStep = Callable[[StepRecord | None, Mapping[str, str]], None]  # no record: a text from another server

SERVING_LIMITS = Limits(max_requests=16, max_batch_tokens=512, num_blocks=1024)
SERVING_BLOCK_SIZE = 16
SLEEP_S = 0.02  # how long a run waits for an arrival before it looks whether it should stop


class LabRuntime:
    """Owns the device. All calls come from one thread."""

    def __init__(
        self,
        settings: Settings,
        on_progress: OnProgress = lambda stage, fraction, message: None,
        kernels: str | None = "torch",
    ) -> None:
        """``kernels``: torch, triton, cpp, or None for the best there is. Raises: KernelsError.

        Effect: on a CPU None and cpp start building the C++ kernels in the background; torch runs until they are there.
        """
        self._settings = settings
        self._on_progress = on_progress
        self._device = describe_device("cuda" if torch.cuda.is_available() else "cpu")
        self._ceilings = load_cached(self._device)
        self._shelf = ModelShelf(settings, self._device, on_progress, kernels)
        torch.set_num_threads(self._device.threads)

    def load(self, model: str, dtype: str, weights: str | None = None, num_kv_heads: int | None = None) -> LoadedModel:
        """A model, from memory if it is still there. Raises: ModelError."""
        return self._shelf.load(model, dtype, weights, num_kv_heads)

    # ---- runs --------------------------------------------------------------------------------------------------

    def prepare(self, scenario: Scenario) -> PreparedRun | PreparedOutside:
        """Load, tokenize and check everything a run needs. Raises: ScenarioError, ModelError (one sentence each)."""
        if scenario.server is not None:
            return PreparedOutside(scenario)
        require_available(scenario)
        return tokenized(scenario, self.load(scenario.model, scenario.dtype, scenario.weights, scenario.num_kv_heads))

    def run(
        self,
        prepared: PreparedRun | PreparedOutside,
        run_id: str,
        on_step: OnStep = lambda record, deltas: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> RunResult:
        """Execute a scenario. ``on_step`` gets each record and the new text by request id, between two steps.

        Raises: ScenarioError for a request that can never be served, RunCancelled when ``should_stop`` says so.
        """
        if isinstance(prepared, PreparedOutside):
            return _observe(prepared.scenario, run_id, on_step, should_stop)
        scenario, loaded = prepared.scenario, prepared.loaded
        if scenario.disaggregated is not None:
            return self._run_disaggregated(prepared, run_id, on_step, should_stop)
        if scenario.ring is not None:
            require_ring_fits(scenario, prepared.requests())
            self._on_progress("load", None, f"starting {scenario.ring.num_workers} worker processes")
            model = replace(self._worker_model(loaded, scenario, scenario.ring.num_workers), kernels="torch")
            kv_size = float(loaded.decoder.dtype.itemsize)
            try:
                with RingExecutor(loaded, model, scenario.ring, kv_size, should_stop) as ring:
                    return self._run_on(ring, prepared, run_id, on_step, should_stop)
            except RingStopped:
                raise RunCancelled("the run was stopped") from None
        executor = self._shelf.executor(loaded, scenario.limits, scenario.block_size, scenario.kv_dtype)
        return self._run_on(executor, prepared, run_id, on_step, should_stop)

    def _run_on(
        self,
        executor: TorchExecutor | RingExecutor,
        prepared: PreparedRun,
        run_id: str,
        on_step: OnStep,
        should_stop: Callable[[], bool],
    ) -> RunResult:
        """One engine on this executor, from warm-up to Run. Raises: as ``run``."""
        scenario, loaded = prepared.scenario, prepared.loaded
        namespace = f"{loaded.info.name}, {scenario.kv_dtype or scenario.dtype}"
        engine = Engine(
            executor,
            scenario.policy,
            scenario.limits,
            scenario.block_size,
            namespace=namespace,
            speculation=scenario.speculation,
        )
        requests = prepared.requests()
        followers = Followers(scenario, requests)
        streams = {
            request.request_id: TextStream(loaded.tokenizer, spec.stop)
            for request, spec in zip(requests, scenario.requests, strict=True)
        }

        def add(arriving: Sequence[Request]) -> None:
            for request in arriving:
                engine.add(request, streams[request.request_id], loaded.eos_token_ids)

        def after_step(record: StepRecord) -> None:
            if isinstance(executor, RingExecutor):
                executor.tell(record, clock_origin_s(engine.now_s()))
            on_step(record, engine.text_deltas)
            add(followers.due(record))

        add(followers.first)
        executor.warm_up()
        created_utc = datetime.now(UTC).isoformat(timespec="seconds")
        before = cpu_sample()
        engine.start_clock()
        steps = self._drive(engine, after_step, should_stop)
        disturbed = disturbance(before)
        header = self._header(
            prepared, executor.weight_bytes_per_element, executor.kv_bytes_per_element, run_id, created_utc
        )
        if isinstance(executor, RingExecutor):
            header.workers = executor.workers
        elif self._device.type == "cpu":  # a GPU's steps hardly feel it, and several processes would hear each other
            header.disturbance = disturbed
        if scenario.probes:
            header.probes = self._probe(prepared, requests, should_stop)
        run = Run(header=header, steps=steps, requests=engine.request_records())
        pieces = {
            request.request_id: [loaded.tokenizer.piece(token_id) for token_id in request.output_token_ids]
            for request in requests
        }
        return RunResult(run, {name: stream.text for name, stream in streams.items()}, pieces)

    def _run_disaggregated(
        self, prepared: PreparedRun, run_id: str, on_step: OnStep, should_stop: Callable[[], bool]
    ) -> RunResult:
        """As ``run``, in two processes of half the threads each. Raises: WorkerDied besides."""
        scenario, loaded = prepared.scenario, prepared.loaded
        texts = SpokenTexts(loaded, scenario)
        job = DisaggregatedRun(scenario, self._worker_model(loaded, scenario, num_workers=2), prepared.requests)
        self._on_progress("load", None, "starting two engine processes")
        created_utc = datetime.now(UTC).isoformat(timespec="seconds")
        result = job.run(lambda record: on_step(record, texts.take(record)), should_stop)
        if result is None:
            raise RunCancelled("the run was stopped")
        header = self._header(prepared, loaded.weight_bytes_per_element, None, run_id, created_utc)
        header.workers = result.workers
        run = Run(header=header, steps=result.steps, requests=result.requests)
        return RunResult(run, texts.texts, texts.pieces(result.requests))

    def _worker_model(self, loaded: LoadedModel, scenario: Scenario, num_workers: int) -> WorkerModel:
        """How each of several processes loads the same model, with its part of the threads."""
        threads = max(1, self._device.threads // num_workers)
        home, kernels = self._settings.home, kernels_of(loaded)
        return WorkerModel(scenario.model, scenario.dtype, scenario.weights, home, kernels, threads)

    def _probe(
        self, prepared: PreparedRun, requests: Sequence[Request], should_stop: Callable[[], bool]
    ) -> dict[str, Any]:
        """What is measured beside the run, by the probe's name. Raises: RunCancelled, ModelError."""
        scenario, loaded = prepared.scenario, prepared.loaded
        (name,) = scenario.probes
        if name == "training_step":
            self._on_progress("train", None, "measuring a training step on the same text")
            found = probe_training_step(scenario, loaded, requests, self._settings.models_dir, should_stop)
        else:
            self._on_progress("compare", None, "comparing with the model that is not quantized")
            reference = self.load(scenario.model, scenario.dtype, num_kv_heads=scenario.num_kv_heads)
            found = probe_quantization(reference, loaded, requests[-1], scenario.kv_dtype, should_stop)
        if found is None:
            raise RunCancelled("the run was stopped")
        return {name: found.model_dump()}

    @staticmethod
    def _drive(
        engine: Engine, after_step: Callable[[StepRecord], None], should_stop: Callable[[], bool]
    ) -> list[StepRecord]:
        """Step until nothing is left, waiting for arrivals in real time. Raises: RunCancelled."""
        steps: list[StepRecord] = []
        while engine.has_work:
            if should_stop():
                raise RunCancelled("the run was stopped")
            record = engine.step()
            if record is not None:
                steps.append(record)
                after_step(record)
                continue
            arrival_s = engine.next_arrival_s
            assert arrival_s is not None, "work is left, nothing can run and nothing will arrive"
            time.sleep(max(0.0, min(arrival_s - engine.now_s(), SLEEP_S)))
        return steps

    def _header(
        self, prepared: PreparedRun, weight_size: float, kv_size: float | None, run_id: str, created_utc: str
    ) -> Header:
        """What the Run was made with. The sizes of quantized elements are stated, because scales belong to them."""
        scenario = prepared.scenario
        sizes = {}
        if scenario.weights is not None:
            sizes["weight_bytes_per_element"] = weight_size
        if scenario.kv_dtype is not None:
            sizes["kv_bytes_per_element"] = kv_size
        return Header(
            run_id=run_id,
            created_utc=created_utc,
            scenario=scenario.model_dump(mode="json"),
            device=self._ceilings.fill(self._device, scenario.dtype) if self._ceilings else self._device,
            model=prepared.loaded.info,
            dtype=scenario.dtype,
            kv_dtype=scenario.kv_dtype or scenario.dtype,
            block_size=scenario.block_size,
            num_blocks=scenario.limits.num_blocks,
            versions=versions(),
            **sizes,
        )

    # ---- live serving ------------------------------------------------------------------------------------------

    def serving(self) -> ServingEngine:
        """An engine for live requests with continuous batching over the default model. Raises: ModelError."""
        loaded = self.load(self._settings.default_model, "float32")
        executor = self._shelf.executor(loaded, SERVING_LIMITS, SERVING_BLOCK_SIZE)
        return ServingEngine(loaded, Engine(executor, "chunked", SERVING_LIMITS, SERVING_BLOCK_SIZE))

    # ---- the device --------------------------------------------------------------------------------------------

    def calibrate(self) -> Ceilings:
        """This device's ceilings, from the cache or measured now (under a minute). Effect: fills the cache.

        Ceilings that others' work disturbed are measured again: a busy neighbour must not become the roof for good.
        """
        self._ceilings = calibrate(
            self._device, progress=lambda fraction, message: self._on_progress("calibrate", fraction, message)
        )
        return self._ceilings

    def describe(self) -> dict[str, Any]:
        """What a page shows of this device: the device, its ceilings, models and limits. Pure."""
        default = self._shelf.default_model
        return {
            "device": (self._ceilings.fill(self._device, "float32") if self._ceilings else self._device).model_dump(),
            "default_model": default.model_dump() if default else None,
            "ceilings": self._ceilings.model_dump(mode="json") if self._ceilings else None,
            "models": list_models(self._settings.models_dir),
            "policies": list(POLICIES),
            "kernels": asdict(self._shelf.choice()),
            "limits": {
                "max_requests_per_scenario": MAX_REQUESTS_PER_SCENARIO,
                "max_tokens_per_request": MAX_TOKENS_PER_REQUEST,
                "max_positions": self._shelf.max_positions,
            },
            "versions": versions(),
        }


def _observe(scenario: Scenario, run_id: str, on_step: OnStep, should_stop: Callable[[], bool]) -> RunResult:
    """The device stays idle meanwhile, so that a server on the same machine is measured alone. Raises: RunCancelled."""
    try:
        seen = observe(scenario, run_id, lambda deltas: on_step(None, deltas), should_stop)
    except Stopped:
        raise RunCancelled("the run was stopped") from None
    return RunResult(seen.run, seen.texts, seen.pieces)
