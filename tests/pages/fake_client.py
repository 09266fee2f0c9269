"""An engine client without an engine: the protocol of ``engine.server.client.EngineClient``, genuine Runs inside.

A submitted scenario is served at once by the real scheduler with a fake model (``tests.unit.lab_runs``); following it
then walks through queued, running and done, one stage a call, so that a test sees every stage. Flags make it fail in
the ways an engine fails: gone, restarted, busy, refusing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.lab.records import Disturbance, Run
from engine.lab.scenario import Scenario
from engine.server.client import EngineRefused, EngineUnavailable, Readiness, RunStatus, RunTexts, Tokens
from tests.unit import lesson_runs
from tests.unit.lab_runs import MODEL, make_run

RATES = {"read_gbps": 20.0, "matmul_tflops": 0.1}
DEVICE = {"name": "test bench", "type": "cpu", "threads": 2, "memory_bytes": 8_000_000_000, **RATES}
CEILINGS = {"read": {"value": 20.0, "unit": "GB/s"}, "matmul": {"float32": {"value": 0.1, "unit": "TFLOP/s"}}}


def serve(scenario: Scenario, run_id: str) -> Run:
    """A genuine Run of the scenario: prompts become as many tokens as they have words, ends are the asked lengths."""
    if scenario.disaggregated is not None or scenario.ring is not None:
        run = lesson_runs.serve(scenario, ceilings=(RATES["read_gbps"], RATES["matmul_tflops"]))
        run.header.run_id = run_id
        return run
    data = scenario.model_dump(mode="json")
    for index, (spec, asked) in enumerate(zip(data["requests"], scenario.requests, strict=True)):
        length = asked.num_prompt_tokens or len((asked.prompt or "").split()) + 4
        spec.update(prompt=None, chat=False, num_prompt_tokens=None, ignore_eos=True)
        if asked.follows is None:
            spec["prompt_token_ids"] = [(7 * index + i) % 90 for i in range(length)]
    run = make_run(data)
    run.header.run_id = run_id
    run.header.scenario = scenario.model_dump(mode="json")
    run.header.device.read_gbps, run.header.device.matmul_tflops = RATES["read_gbps"], RATES["matmul_tflops"]
    return run


def words(run: Run) -> dict[str, list[str]]:
    """Text pieces of each request. One of them is Markdown and HTML: a page must show it as it is."""
    return {
        r.request_id: ["**bold** <b>x</b> $y$", *(f" w{token}" for token in r.output_token_ids[1:])]
        for r in run.requests
    }


@dataclass
class FakeClient:
    """See the module. ``num_queued`` is how many looks a run stays in the queue, ``num_running`` how many it runs."""

    num_queued: int = 1
    num_running: int = 1
    down: bool = False
    state: str = "ready"
    refuse: EngineRefused | None = None
    disturbance: Disturbance | None = None
    lost: set[str] = field(default_factory=set)
    runs: dict[str, Run] = field(default_factory=dict)
    looks: dict[str, int] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)
    submitted: list[Scenario] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)

    def _ask(self) -> None:
        if self.down:
            raise EngineUnavailable("the engine is not running")

    def health(self) -> bool:
        return not self.down

    def ready(self) -> Readiness:
        self._ask()
        return Readiness(ready=self.state == "ready", state=self.state, stage="load", fraction=0.5, message="no file")

    def device(self) -> dict:
        self._ask()
        return {"device": DEVICE, "default_model": MODEL.model_dump(), "ceilings": CEILINGS}

    def submit(self, scenario: Scenario, client_id: str) -> RunStatus:
        self._ask()
        if self.refuse is not None:
            raise self.refuse
        run_id = f"run-{len(self.submitted):012x}"
        self.submitted.append(scenario)
        self.clients.append(client_id)
        self.runs[run_id], self.looks[run_id] = serve(scenario, run_id), 0
        self.runs[run_id].header.disturbance = self.disturbance
        return RunStatus(run_id=run_id, state="queued", position=1)

    def follow(self, run_id: str, since: int = 0) -> RunStatus:
        self._ask()
        if run_id in self.lost or run_id not in self.runs:
            raise EngineUnavailable("the run is unknown to this engine", restarted=True)
        run, look = self.runs[run_id], self.looks[run_id]
        self.looks[run_id] += 1
        total = sum(r.num_output_tokens for r in run.requests)
        if run_id in self.cancelled:
            return RunStatus(run_id=run_id, state="cancelled", error="cancelled on request", total_tokens=total)
        if look < self.num_queued:
            return RunStatus(run_id=run_id, state="queued", position=2, total_tokens=total)
        if look < self.num_queued + self.num_running:
            half = len(run.steps) // 2
            texts = {name: "".join(pieces[:3]) for name, pieces in words(run).items()}
            return RunStatus(
                run_id=run_id, state="running", num_steps=half, num_tokens=total // 2, total_tokens=total,
                steps=run.steps[since:half], texts=texts,
            )  # fmt: skip
        return RunStatus(
            run_id=run_id, state="done", num_steps=len(run.steps), num_tokens=total, total_tokens=total,
            steps=run.steps[since:],
        )  # fmt: skip

    def cancel(self, run_id: str) -> RunStatus:
        self._ask()
        self.cancelled.append(run_id)
        return self.follow(run_id)

    def fetch_run(self, run_id: str) -> Run:
        self._ask()
        return self.runs[run_id]

    def fetch_texts(self, run_id: str) -> RunTexts:
        self._ask()
        pieces = words(self.runs[run_id])
        return RunTexts(texts={name: "".join(p) for name, p in pieces.items()}, pieces=pieces)

    def tokenize(self, text: str, *, chat: bool = False) -> Tokens:
        self._ask()
        pieces = text.split()
        return Tokens(num_tokens=len(pieces) + 4 * chat, pieces=pieces)
