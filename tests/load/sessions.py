"""Sixty learners follow their runs at once, each in a session of its own, and the engine's timing is compared.

    python -m tests.load.sessions [NUMBER]

Each has pressed the button of the batching lesson: one run is on the device, the others wait in the line and see their
place. Every session lets its fragments run as the server asks for. An update is from the request of a fragment to the
message that it is whole. All sessions stay connected; for some seconds nobody looks, then everybody does, and again
(A B A B), so that what else the machine does hits both alike. The engine's steps of runs inside a phase are compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import random
import statistics
import sys
import time
from datetime import datetime

import psutil

from engine.lab.metrics import percentile
from engine.server.client import EngineRefused
from lessons import scenarios
from pages._ui.jobs import Job
from tests.load.browserless import Learner
from tests.load.figures import decode_step_ms, makespan_s, told
from tests.load.lab import Lab, running_lab

NUM_SESSIONS, NUM_PHASES = 60, 4  # phases of each kind
ALONE_S, FOLLOWED_S = 9.0, 9.0  # the first stays under the engine's lease: a run nobody follows for longer is cancelled
NICENESS = 15
UPDATE_TARGET_S, DISTURBED_TARGET = 1.0, 0.05
PRESET = "one_long"  # runs of a second or two, so that many fall into a phase
CARD_S = 5.0  # interval of the engine's card in the sidebar; a shorter one belongs to a job that is not over


def press_the_button(lab: Lab, sid: str) -> None:
    """What ``jobs.start`` leaves behind: a run in the line, and the job among the learner's preferences."""
    parts = []
    for policy in ("static", "chunked"):
        scenario = scenarios.batching(PRESET, policy)
        parts.append({"label": policy, "scenario": scenario.model_dump(mode="json"), "asked": {}})
    with lab.engine() as engine:
        run_id = engine.submit(scenarios.batching(PRESET, "static"), sid).run_id
    lab.store.learner(sid)
    job = Job("batching", parts, "a mark", [run_id], experiment=f"of {sid}")
    lab.store.set_preference(sid, "job:batching", json.dumps(dataclasses.asdict(job)))


@dataclasses.dataclass(frozen=True)
class Phases:
    """Nobody looks, everybody looks, and again, from ``begin_s`` on (seconds since the epoch)."""

    begin_s: float

    @property
    def end_s(self) -> float:
        return self.begin_s + NUM_PHASES * (ALONE_S + FOLLOWED_S)

    def wait_s(self, now_s: float) -> float:
        """Until everybody looks; 0 when they do. Pure."""
        return max(0.0, ALONE_S - (now_s - self.begin_s) % (ALONE_S + FOLLOWED_S))

    def phase(self, begin_s: float, end_s: float) -> str | None:
        """``alone`` or ``followed`` for a time that lies in one phase, None for one that does not. Pure."""
        cycle = ALONE_S + FOLLOWED_S
        place_s, length_s = (begin_s - self.begin_s) % cycle, end_s - begin_s
        if begin_s < self.begin_s or end_s > self.end_s:
            return None
        if place_s + length_s <= ALONE_S:
            return "alone"
        return "followed" if place_s >= ALONE_S and place_s + length_s <= cycle else None


class Follower:
    """One session that follows its job while everybody does."""

    def __init__(self, lab: Lab, sid: str) -> None:
        self.learner = Learner(lab.ws, sid, "batching")
        self.updates: list[float] = []
        self.num_bytes = 0
        self.opened_s = 0.0
        self.why_dropped = ""

    async def open(self) -> None:
        try:
            self.opened_s = (await self.learner.open()).seconds
        except Exception as error:
            self.why_dropped = f"{type(error).__name__}: {error}"

    async def follow(self, phases: Phases) -> None:
        """Until the last phase or the end of its runs. Effect: what goes wrong is the reason why it was dropped."""
        try:
            due_s: dict[str, float] = {}
            while time.time() < phases.end_s and min(self.learner.fragments.values(), default=CARD_S) < CARD_S:
                now_s = time.time()
                if phases.wait_s(now_s) > 0:
                    await asyncio.sleep(phases.wait_s(now_s) + 0.01)
                    due_s.clear()  # a browser's timers would have gone on: everyone is somewhere in their interval
                    continue
                for fragment_id, every_s in list(self.learner.fragments.items()):
                    if now_s >= due_s.setdefault(fragment_id, now_s + every_s * random.random()):
                        due_s[fragment_id] = now_s + every_s
                        await self.refresh(fragment_id, every_s)
                next_s = min((due_s.get(fragment_id, now_s) for fragment_id in self.learner.fragments), default=now_s)
                await asyncio.sleep(max(0.01, next_s - time.time()))
            await self.learner.close()
        except Exception as error:
            self.why_dropped = f"{type(error).__name__}: {error}"

    async def refresh(self, fragment_id: str, every_s: float) -> None:
        if fragment_id not in self.learner.fragments:  # the page has been made anew meanwhile
            return
        answer = await self.learner.refresh(fragment_id)
        if not answer.well or self.learner.errors:
            raise RuntimeError("; ".join(self.learner.errors) or "the script failed")
        self.num_bytes += answer.num_bytes
        if every_s < CARD_S:
            self.updates.append(answer.seconds)


async def follow_all(lab: Lab, sids: list[str]) -> tuple[list[Follower], Phases]:
    """All sessions open, then the phases begin."""
    followers = [Follower(lab, sid) for sid in sids]
    for follower in followers:
        await follower.open()
    phases = Phases(time.time())
    await asyncio.gather(*(follower.follow(phases) for follower in followers if not follower.why_dropped))
    return followers, phases


def engine_times(lab: Lab, sids: list[str], phases: Phases) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """(median decode step in ms, makespan in s) of each run that lies in one phase, by policy and phase."""
    found = {policy: {"alone": [], "followed": []} for policy in ("static", "chunked")}
    with lab.engine() as engine:
        for run_id in [r for sid in sids for r in json.loads(lab.store.preference(sid, "job:batching"))["run_ids"]]:
            run = lab.store.run(run_id)
            with contextlib.suppress(EngineRefused):  # not done yet, or no longer kept
                run = run or engine.fetch_run(run_id)
            if run is None:
                continue
            # The header's second is cut, so the run began in [then, then + 1).
            then_s = datetime.fromisoformat(run.header.created_utc).timestamp()
            phase = phases.phase(then_s, then_s + 1 + makespan_s(run))
            if phase is not None:
                found[run.header.scenario["policy"]][phase].append((decode_step_ms(run), makespan_s(run)))
    return found


def main(num_sessions: int = NUM_SESSIONS) -> int:
    with running_lab() as lab:
        os.nice(NICENESS)  # sixty browsers would not run on this machine: they shall not take the engine's time
        sids = [f"a-learner-among-many-{i:04d}" for i in range(num_sessions)]
        before = psutil.Process(lab.pid).cpu_times()
        for sid in sids:
            press_the_button(lab, sid)
        followers, phases = asyncio.run(follow_all(lab, sids))
        after = psutil.Process(lab.pid).cpu_times()
        times = engine_times(lab, sids, phases)
    return 0 if report(followers, used_s(before, after), times) else 1


def used_s(before, after) -> float:
    return after.user + after.system - before.user - before.system


def report(followers: list[Follower], ui_s: float, times: dict[str, dict[str, list]]) -> bool:
    """Print what was found. Returns whether every target was met."""
    updates = [s for follower in followers for s in follower.updates]
    dropped = [follower.why_dropped for follower in followers if follower.why_dropped]
    kilobytes, seconds = sum(follower.num_bytes for follower in followers) / 1e3, NUM_PHASES * FOLLOWED_S
    p95, worst = percentile(updates, 95) or 0.0, -1.0
    print(told(f"{len(followers)} sessions: open", [follower.opened_s for follower in followers]))
    print(told(f"{len(followers)} sessions: update", updates))
    print(f"{kilobytes / len(updates):.1f} KB an update, {len(updates) / seconds:.0f} updates/s, UI {ui_s:.1f} core-s")
    for policy, runs in times.items():
        if runs["alone"] and runs["followed"]:
            worst = max(worst, compare(policy, runs["alone"], runs["followed"]))
    assert worst > -1, "no run lies within a phase: the machine is too slow, or too few learners press the button"
    met = {
        f"p95 of an update {p95:.3f} s, target {UPDATE_TARGET_S:g} s": p95 < UPDATE_TARGET_S,
        f"{len(dropped)} dropped {dropped[:2] or ''}, target 0": not dropped,
        f"engine disturbed {worst:+.1%}, target {DISTURBED_TARGET:.0%}": worst < DISTURBED_TARGET,
    }
    for line, is_met in met.items():
        print(f"{line}: {'met' if is_met else 'MISSED'}")
    return all(met.values())


def compare(policy: str, alone: list[tuple[float, float]], followed: list[tuple[float, float]]) -> float:
    """Print both. Returns by how much the median step grew."""
    step, whole = map(statistics.median, zip(*alone, strict=True))
    step_now, whole_now = map(statistics.median, zip(*followed, strict=True))
    print(
        f"{policy}: decode step {step:.2f} ms unfollowed ({len(alone)} runs), {step_now:.2f} followed "
        f"({len(followed)}): {step_now / step - 1:+.1%}; whole run {whole:.2f} s, {whole_now:.2f}: "
        f"{whole_now / whole - 1:+.1%}"
    )
    return step_now / step - 1


if __name__ == "__main__":
    sys.exit(main(*(int(number) for number in sys.argv[1:2])))
