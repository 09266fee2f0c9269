"""The C++ kernels arriving while the lab works: torch until then, swapped in between runs, or one sentence why not."""

from __future__ import annotations

import threading

import pytest
import torch

from engine.lab.scenario import Scenario
from engine.runtime import cpp_kernels as module
from engine.runtime import shelf
from engine.runtime.cpp_kernels import STILL_BUILDING, CppKernels
from engine.runtime.kernels_choice import KernelsError
from engine.runtime.lab import LabRuntime
from engine.settings import Settings
from tests.cpp_kit import built_library


@pytest.fixture(scope="module")
def library():
    return built_library()


@pytest.fixture
def arrival(library, monkeypatch):
    """A library that arrives when this event is set; nothing is compiled."""
    event = threading.Event()

    def load(cache_dir, num_threads):
        event.wait(60)
        return library, ""

    monkeypatch.setattr(module, "load_library", load)
    monkeypatch.setattr(module, "LOADING_S", 0.05)
    yield event
    event.set()


@pytest.fixture
def lab(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("the C++ kernels are for a CPU")
    place = Settings(tmp_path, f"sqlite:///{tmp_path}/lab.sqlite3", 8600, "tiny-random")
    return lambda kernels=None: LabRuntime(place, kernels=kernels)


def scenario(**changes) -> Scenario:
    request = {"prompt": "Once upon a time", "max_tokens": 6, "ignore_eos": True}
    return Scenario.parse({"model": "tiny-random", "requests": [request, request], **changes})


def run(runtime: LabRuntime, **changes):
    result = runtime.run(runtime.prepare(scenario(**changes)), "run-0123456789ab")
    return {step.backend for step in result.run.steps}, result.texts


def test_torch_runs_until_the_kernels_are_there(lab, arrival):
    runtime = lab()
    assert runtime.describe()["kernels"] == {"name": "torch", "why": STILL_BUILDING}
    before, texts = run(runtime)
    prepared = runtime.prepare(scenario())
    arrival.set()
    runtime._shelf._cpp._thread.join()
    assert runtime.describe()["kernels"] == {"name": "cpp", "why": ""}
    in_between = {step.backend for step in runtime.run(prepared, "run-0123456789ab").run.steps}
    after, same_texts = run(runtime)
    assert (before, in_between, after) == ({"eager"}, {"eager"}, {"compiled"})
    assert same_texts == texts


def test_serving_takes_them_too(lab, arrival):
    arrival.set()
    runtime = lab("cpp")
    engine = runtime.serving()._engine
    assert engine.executor.backend == "compiled"


@pytest.mark.parametrize("changes", [{"kv_dtype": "int8"}, {"dtype": "float16"}])
def test_what_they_cannot_do_runs_eagerly(lab, arrival, changes):
    arrival.set()
    backends, texts = run(lab(), **changes)
    assert backends == {"eager"} and all(texts.values())


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_quantized_weights_run_compiled(lab, arrival, weights):
    arrival.set()
    backends, texts = run(lab(), weights=weights)
    assert backends == {"compiled"} and all(texts.values())


def test_a_failure_is_a_sentence_and_torch_runs(lab, monkeypatch):
    monkeypatch.setattr(module, "load_library", lambda cache_dir, num_threads: (None, "no C++ compiler was found"))
    runtime = lab()
    assert runtime.describe()["kernels"] == {"name": "torch", "why": "no C++ compiler was found"}
    assert run(runtime)[0] == {"eager"}


def test_asked_for_and_not_to_be_had_is_an_error_once_that_is_known(lab, monkeypatch):
    monkeypatch.setattr(module, "load_library", lambda cache_dir, num_threads: (None, "no C++ compiler was found"))
    with pytest.raises(KernelsError, match="no C\\+\\+ compiler"):
        lab("cpp").prepare(scenario())


def test_whatever_goes_wrong_is_told(tmp_path, monkeypatch):
    def fail(cache_dir, num_threads):
        raise RuntimeError("disk on fire")

    monkeypatch.setattr(module, "load_library", fail)
    kernels = CppKernels(tmp_path, 2)
    assert kernels.is_decided() and kernels.library is None
    assert kernels.why == "the C++ kernels cannot be used (RuntimeError: disk on fire)"


def test_torch_asked_for_builds_nothing(lab, monkeypatch):
    monkeypatch.setattr(shelf, "CppKernels", lambda *arguments: pytest.fail("nobody asked for it"))
    assert run(lab("torch"))[0] == {"eager"}
    with pytest.raises(KernelsError, match="allowed: torch, triton, cpp"):
        lab("cuda")
