"""Where the time of a step goes on this CPU: ``python -m tests.bench.profile [--case NAME ...]``.

For each case (one stream, 16 streams, a prompt; each weight format) it serves the default model with the real engine
and prints the median step: its laps in Python, its phases in C++ with what each one moves or computes, and both against
ceilings that are measured in turn with the cases, for a shared machine changes its speed from second to second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from engine.lab.device import cpu_sample, noise
from engine.lab.scenario import Limits
from engine.model.load import load_model
from engine.runtime.cpp_executor import CppExecutor
from engine.runtime.engine import Engine
from engine.runtime.kernels_choice import KernelChoice, ops_of, settle
from engine.scheduling.requests import Request
from engine.settings import settings
from kernels.cpu import CpuLibrary, load_library
from kernels.cpu.pack import WeightArena, pack

MODEL = "smollm2-135m"
LAYER_PHASES = ("norm", "qkv", "attention", "o", "norm", "gate_up", "down")
LAYER_PHASES_INT4 = ("norm", "qkv", "attention", "sums", "o", "norm", "gate_up", "sums", "down")


@dataclass(frozen=True)
class Case:
    """``streams`` requests with prompts of ``context`` tokens; the steps looked at are ``phase`` steps."""

    weights: str | None
    streams: int
    context: int
    phase: str = "decode"

    @property
    def name(self) -> str:
        return f"{self.phase}-{self.weights or 'bf16'}-{self.streams}x{self.context}"


CASES = (
    Case(None, 1, 64),
    Case("int8", 1, 64),
    Case("int4", 1, 64),
    Case(None, 1, 1024),
    Case(None, 1, 512, "prefill"),
    Case(None, 16, 64),
)


@dataclass
class Steps:
    """What was seen of a case, one number per step."""

    ms: list[float] = field(default_factory=list)  # from the end of one step to the end of the next
    laps: dict[str, list[float]] = field(default_factory=dict)
    phases: dict[str, list[float]] = field(default_factory=dict)


def observe(executor: CppExecutor, library: CpuLibrary, case: Case, num_tokens: int, seen: Steps) -> None:
    """Serve the case once. Effect: its steps are added to ``seen``."""
    limits = Limits(max_requests=case.streams, max_batch_tokens=max(case.context, 512), num_blocks=2048)
    engine = Engine(executor, "chunked", limits, 16)
    generator = torch.Generator().manual_seed(1)
    for stream in range(case.streams):
        prompt = torch.randint(1000, 40000, (case.context,), generator=generator).tolist()
        engine.add(Request(f"r{stream}", prompt, num_tokens if case.phase == "decode" else 1, ignore_eos=True))
    before = time.perf_counter()
    while engine.has_work:
        record = engine.step()
        after = time.perf_counter()
        wanted = case.streams if case.phase == "decode" else case.context
        is_whole = sum(row.num_tokens for row in record.scheduled) == wanted
        if is_whole and all(row.phase == case.phase for row in record.scheduled):
            seen.ms.append((after - before) * 1e3)
            for name, ms in record.time_ms.model_dump().items():
                if ms is not None:
                    seen.laps.setdefault(name, []).append(ms)
            phases = by_name(library.phase_times_ns(), executor.loaded.spec.num_layers)
            around = record.time_ms.forward - sum(phases.values())
            for name, ms in {**phases, "around": around}.items():
                seen.phases.setdefault(name, []).append(ms)
        before = time.perf_counter()


def by_name(times_ns: list[int], num_layers: int) -> dict[str, float]:
    """Milliseconds of the phases of one pass, added up over the layers. Pure."""
    layer = next(names for names in (LAYER_PHASES, LAYER_PHASES_INT4) if len(names) * num_layers == len(times_ns) - 3)
    names = ["embed", *layer * num_layers, "norm", "head"]
    found = dict.fromkeys(["embed", *layer, "head"], 0.0)
    for name, ns in zip(names, times_ns, strict=True):
        found[name] += ns / 1e6
    return found


def weight_bytes(executor: CppExecutor) -> dict[str, int]:
    """Packed bytes by product, all layers together. Pure."""
    decoder = executor.loaded.decoder
    found = {
        name: sum(getattr(layer, name).packed.num_bytes for layer in decoder.layers)
        for name in ("qkv", "o", "gate_up", "down")
    }
    return {**found, "head": decoder.head.packed.num_bytes}


class Roofs:
    """The two ceilings as our own kernels reach them, measured anew whenever asked."""

    def __init__(self, library: CpuLibrary) -> None:
        self.library = library
        arena = WeightArena(300 << 20)
        self.data = arena.keep(torch.randint(0, 255, (300 << 20,), dtype=torch.uint8))
        self.weight = pack(torch.randn(3072, 576).to(torch.bfloat16))
        self.x = torch.randn(512, 576).to(torch.bfloat16)
        self.read_gbps: list[float] = []
        self.matmul_tflops: list[float] = []

    def measure(self) -> None:
        for _ in range(6):
            begin = time.perf_counter()
            self.library.read(self.data)
            self.read_gbps.append(self.data.numel() / (time.perf_counter() - begin) / 1e9)
            begin = time.perf_counter()
            self.library.linear(self.x, self.weight)
            self.matmul_tflops.append(2 * 512 * 576 * 3072 / (time.perf_counter() - begin) / 1e12)


def report(case: Case, executor: CppExecutor, seen: Steps, roofs: Roofs) -> dict[str, object]:
    """The case in numbers. Pure."""
    ms, read = statistics.median(seen.ms), statistics.median(roofs.read_gbps)
    weights, layers = weight_bytes(executor), executor.loaded.spec.num_layers
    spec = executor.loaded.spec
    rows = case.streams if case.phase == "decode" else case.context
    tokens = case.context + 16 if case.phase == "decode" else case.context / 2
    kv_bytes = layers * spec.num_kv_heads * spec.head_dim * 2 * 2 * case.streams * int(tokens)
    phases = {name: statistics.median(values) for name, values in seen.phases.items()}
    found: dict[str, object] = {
        "case": case.name,
        "steps": len(seen.ms),
        "step_ms": round(ms, 3),
        "step_ms_p10_p90": [round(q, 3) for q in quantiles(seen.ms)],
        "tokens_per_s": round(rows / ms * 1e3, 1),
        "laps_ms": {name: round(statistics.median(values), 3) for name, values in seen.laps.items()},
        "phases_ms": {name: round(value, 3) for name, value in phases.items()},
    }
    if case.phase == "decode":
        gbps = (sum(weights.values()) + kv_bytes) / ms / 1e6
        found["gbps"] = {name: round(num / phases[name] / 1e6, 1) for name, num in weights.items()}
        found["share_of_read"] = f"{gbps:.1f} of {read:.1f} GB/s = {gbps / read:.0%}"
    else:
        elements = {name: 2 * num / 2 for name, num in weights.items() if name != "head"}
        flops = {name: num * rows for name, num in elements.items()}
        flops["attention"] = 4 * layers * spec.num_heads * spec.head_dim * rows * (rows + 1) / 2
        tflops = sum(flops.values()) / ms / 1e9
        roof = statistics.median(roofs.matmul_tflops)
        found["tflops"] = {name: round(num / phases[name] / 1e9, 3) for name, num in flops.items()}
        found["share_of_matmul"] = f"{tflops:.3f} of {roof:.3f} TFLOP/s = {tflops / roof:.0%}"
    return found


@contextlib.contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """What else runs on a learner's machine. Effect: so many processes compute until the end of the block."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def quantiles(values: list[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", nargs="*", choices=[case.name for case in CASES], help="default: all")
    parser.add_argument("--rounds", type=int, default=3, help="how often each case is served, in turn with the others")
    parser.add_argument("--busy", type=int, default=0, help="programs that keep a core busy meanwhile")
    parser.add_argument("--tokens", type=int, default=32, help="output tokens of a stream")
    arguments = parser.parse_args()
    library, why = load_library(settings().home / "kernels", num_threads=torch.get_num_threads())
    if library is None:
        raise SystemExit(why)
    cases = [case for case in CASES if not arguments.case or case.name in arguments.case]
    executors: dict[str | None, CppExecutor] = {}
    for weights in dict.fromkeys(case.weights for case in cases):
        loaded = load_model(MODEL, "bfloat16", weights=weights, ops=ops_of(KernelChoice("cpp"), weights, library))
        settle(loaded)
        executors[weights] = CppExecutor(loaded, Limits(num_blocks=2048))
        executors[weights].warm_up()
    roofs, seen, before = Roofs(library), {case.name: Steps() for case in cases}, cpu_sample()
    with busy_programs(arguments.busy):
        for _ in range(arguments.rounds):
            for case in cases:
                roofs.measure()
                observe(executors[case.weights], library, case, arguments.tokens, seen[case.name])
    for case in cases:
        print(json.dumps(report(case, executors[case.weights], seen[case.name], roofs)))
    read, matmul, heard = quantiles(roofs.read_gbps), quantiles(roofs.matmul_tflops), noise(before)
    print(json.dumps({"read_gbps_p10_p90": read, "matmul_tflops_p10_p90": matmul, **vars(heard)}))


if __name__ == "__main__":
    main()
