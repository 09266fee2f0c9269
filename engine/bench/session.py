"""The bench itself: prepare, then round after round each system in a fresh process, then everything into ``Results``.

In a round the systems take turns (A B A B over the rounds), first at bfloat16, then at the smaller precisions, and the
machine's ceilings are measured with them, so that drift hits all alike. A system that fails once is not tried again:
it is named as skipped with what it said.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from engine.bench import scheduling, serving
from engine.bench.plan import NUM_TEXT_TOKENS, PRECISIONS, PRECISIONS_OF, Plan, spread_of_lengths, workload
from engine.bench.process import Answer, run_job
from engine.bench.results import BenchError, Results, SuiteResult
from engine.bench.samples import Sample
from engine.bench.systems import ROOT, System, environment, ours, ours_environment, peer
from engine.lab.device import describe_device
from engine.lab.records import ModelInfo
from engine.lab.work import kv_bytes_per_token, prefill_flops
from engine.settings import settings

Say = Callable[[str], None]
IN_PROCESS = ("start", "decode", "prefill", "streams", "mixed")  # suites that a system's own process measures


@dataclass
class Session:
    """One call of the bench. ``suites``: those wanted; ``command``: how it was called, for the record."""

    plan: Plan
    suites: Sequence[str]
    peers: Sequence[str]
    command: str
    say: Say
    limit_s: float = math.inf  # no round begins that would not end before
    samples: list[Sample] = field(default_factory=list)
    disturbed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    systems: dict[str, str] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    texts: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def run(self, results: Results, after_round: Callable[[], None] = lambda: None) -> None:
        """Measure; after each round the wanted suites in ``results`` are those of the rounds so far.

        Effect: minutes of all cores. Raises: BenchError.
        """
        begin_s = time.monotonic()
        self.device = describe_device("cpu")
        self.facts = _prepare(self.device.threads)
        self.model = ModelInfo.model_validate(self.facts["model"])
        systems = self._systems()
        for round_index in range(self.plan.repeats):
            round_begin_s = time.monotonic()
            self._round(round_index, systems)
            results.skipped = dict(self.skipped)
            results.systems.update(self.systems)
            results.notes = self._notes()
            results.put([self._suite(name, round_index + 1) for name in self.suites])
            after_round()
            now_s = time.monotonic()
            if now_s - begin_s + (now_s - round_begin_s) > self.limit_s and round_index + 1 < self.plan.repeats:
                self.say(f"stopping after {round_index + 1} rounds: another would not end in time")
                return

    # ---- one round ---------------------------------------------------------------------------------------------

    def _round(self, round_index: int, systems: list[System]) -> None:
        if "roofs" in self.suites:
            self._roofs(round_index)
        if "scheduler" in self.suites:
            for policy, ms in scheduling.all_policies().items():
                self._add("scheduler", f"scheduler {policy}", "ours", "bfloat16", round_index, ms, "ms")
        if "start" in self.suites:
            self._serving(round_index)
        for precision in PRECISIONS:
            for system in systems:
                if precision in PRECISIONS_OF[system.name] and system.name not in self.skipped:
                    self._measure(system, precision, round_index)

    def _measure(self, system: System, precision: str, round_index: int) -> None:
        cases = self.plan.cases(system.name, precision, self.suites)
        if not cases and ("start" not in self.suites or precision != "bfloat16"):
            return
        job = {
            "model": self.model.name,
            "model_dir": self.facts["model_dir"],
            "gguf": self.facts["gguf"][precision],
            "precision": precision,
            "weight_bytes": self.model.weight_bytes,
            "num_threads": self.device.threads,
            "first_prompt": self.facts["first_prompt"],
            "num_text_tokens": NUM_TEXT_TOKENS,
            "cases": cases,
        }
        answer = self._run(system, job, f"{system.name} {precision}", round_index)
        if answer.why_failed:
            self.skipped[system.name] = f"{precision}: {answer.why_failed}"
            return
        self._take(system.name, precision, round_index, answer, {case["name"]: case for case in cases})

    def _run(self, system: System, job: dict[str, Any], name: str, round_index: int) -> Answer:
        make_env = ours_environment if system.name == "ours" else environment
        answer = run_job(system.command, job, make_env(self.device.threads), ROOT)
        told = answer.why_failed or answer.disturbed
        self.say(f"round {round_index + 1} of {self.plan.repeats}: {name}, {answer.seconds:.1f} s. {told}".strip())
        if answer.disturbed:
            self.disturbed[f"{name} in round {round_index + 1}"] = answer.disturbed
        return answer

    def _take(
        self, system: str, precision: str, round_index: int, answer: Answer, cases: dict[str, dict[str, Any]]
    ) -> None:
        """Samples from what a process said."""
        (start,) = answer.all("start")
        self.systems.setdefault(system, f"{_versions(start['versions'])}; {start['notes']}")
        self.versions[system] = start["versions"]
        self.texts[system, precision] = answer.all("text")[0]["tokens"]
        if "start" in self.suites and precision == "bfloat16":
            self._add("start", "ready", system, precision, round_index, start["ready_s"], "s")
            self._add("start", "first token", system, precision, round_index, start["first_token_s"], "s")
            peak_mb = answer.all("end")[0]["peak_bytes"] / 1e6
            self._add("start", "peak memory, all cases", system, precision, round_index, peak_mb, "MB")
        for line in answer.all("result"):
            case = cases[line["case"]]
            suite, name = case["suite"], line["case"]
            extra: dict[str, float] = {}
            if suite == "decode":
                num_tokens, context = 1, len(case["prompts"][0])
                kv_bytes = kv_bytes_per_token(self.model, 2) * (context + case["num_tokens"] / 2)
                extra["bytes_read"] = start["weight_bytes"] + kv_bytes
            elif suite == "streams":
                num_tokens = len(case["prompts"])
            elif suite == "prefill":
                num_tokens = len(case["prompts"][-1])  # the one before it was the warm-up
                extra["flops"] = prefill_flops(self.model, num_tokens) / num_tokens
            else:
                num_tokens = line["num_tokens"]
            self._add(suite, name, system, precision, round_index, num_tokens / line["seconds"], "tok/s", **extra)

    def _roofs(self, round_index: int) -> None:
        answer = self._run(ours("engine.bench.roofs"), {}, "roofs", round_index)
        if answer.why_failed:
            raise BenchError(f"the ceilings of this machine cannot be measured: {answer.why_failed}")
        for line in answer.all("result"):
            self._add("roofs", line["case"], "ours", "bfloat16", round_index, line["value"], line["unit"])

    def _serving(self, round_index: int) -> None:
        found = serving.start_times(self.device.threads)
        if round_index == 0:  # it compiles: once is enough
            found["C++ kernels, very first start"] = serving.first_start_s(self.device.threads)
        for case, seconds in found.items():
            self._add("start", case, "ours", "bfloat16", round_index, seconds, "s")

    def _add(
        self,
        suite: str,
        case: str,
        system: str,
        precision: str,
        round_index: int,
        value: float,
        unit: str,
        **extra: float,
    ) -> None:
        self.samples.append(Sample(suite, case, system, precision, round_index, value, unit, **extra))

    # ---- before and after --------------------------------------------------------------------------------------

    def _systems(self) -> list[System]:
        """Ours and every peer that can be started. Effect: the others are skipped with their reason."""
        if not set(self.suites) & set(IN_PROCESS):
            return []
        found = [peer(name, settings().home) for name in self.peers]
        self.skipped.update({system.name: system.why_not for system in found if system.why_not})
        for name, why in self.skipped.items():
            self.say(f"{name} is skipped: {why}")
        return [ours(), *(system for system in found if not system.why_not)]

    def _suite(self, name: str, num_rounds: int) -> SuiteResult:
        mine = [sample for sample in self.samples if sample.suite == name]
        shown = {sample.system for sample in mine}
        return SuiteResult(
            name=name,
            measured_utc=datetime.now(UTC).isoformat(timespec="seconds"),
            command=self.command,
            repeats=num_rounds,
            samples=mine,
            about=_about(name, self.plan),
            disturbed=[f"{what}: {why}" for what, why in self.disturbed.items() if what.split()[0] in shown | {name}],
            versions={system: found for system, found in self.versions.items() if system in shown},
            roofs=[sample for sample in self.samples if sample.suite == "roofs"],
        )

    def _notes(self) -> list[str]:
        """What a reader must know: that all hold the same model, and how the runs went."""
        notes = [f"model: {self.model.name}, {self.model.source}"]
        if self.facts["why_no_kernels"]:
            notes.append(f"ours ran on torch: {self.facts['why_no_kernels']}")
        mine = self.texts.get(("ours", "bfloat16"))
        for (system, precision), theirs in self.texts.items():
            if mine and precision == "bfloat16" and system != "ours":
                same = next(
                    (i for i, pair in enumerate(zip(mine, theirs, strict=False)) if pair[0] != pair[1]), len(mine)
                )
                notes.append(f"{system} gives the same first {same} of {len(mine)} greedy tokens as ours in bfloat16")
        return notes


def _about(suite: str, plan: Plan) -> str:
    if suite != "mixed":
        return ""
    spread = spread_of_lengths(workload(plan.num_requests))
    return f"{spread}; at most {plan.max_requests} run at a time."


def _prepare(num_threads: int) -> dict[str, Any]:
    """Raises: BenchError."""
    command = [sys.executable, "-m", "engine.bench.prepare", str(num_threads)]
    env = ours_environment(num_threads)
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=env, timeout=600)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise BenchError(f"the bench cannot be prepared: {last}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _versions(found: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())


def machine() -> tuple[str, dict[str, Any]]:
    """This machine in a line, and its device record. Pure."""
    info = describe_device("cpu")
    return f"{info.name}, {info.threads} threads, {info.memory_bytes / 1e9:.0f} GB", info.model_dump()
