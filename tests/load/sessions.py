"""Sixty learners follow their runs at once, each in a session of its own, and the engine's timing is compared.

    python -m tests.load.sessions [NUMBER] [SECONDS]

Each has pressed the button of the batching lesson: one run is on the device, the others wait in the line and see their
place. Every session lets its fragments run as the server asks for. An update is from the request of a fragment to the
message that it is whole. What the engine needed for a step is compared with the same scenario followed by one session.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import statistics
import sys
import time
from datetime import UTC, datetime

import psutil

from engine.lab.metrics import percentile
from lessons import scenarios
from pages._ui.jobs import Job
from tests.load.browserless import Learner
from tests.load.figures import decode_step_ms, makespan_s, told
from tests.load.lab import Lab, running_lab

NUM_SESSIONS, SECONDS, ALONE_SECONDS = 60, 30.0, 20.0
UPDATE_TARGET_S, DISTURBED_TARGET = 1.0, 0.05
PRESET = "mixed"
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


class Follower:
    """One session that follows its job until it is told to stop."""

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

    async def follow(self, until_s: float) -> None:
        """Until then, or until its runs are done. Effect: what goes wrong is kept as the reason why it was dropped."""
        try:
            due_s: dict[str, float] = {}
            while time.monotonic() < until_s and min(self.learner.fragments.values(), default=CARD_S) < CARD_S:
                now_s = time.monotonic()
                for fragment_id, every_s in list(self.learner.fragments.items()):
                    if now_s >= due_s.setdefault(fragment_id, now_s + every_s * random.random()):
                        due_s[fragment_id] = now_s + every_s
                        await self.refresh(fragment_id, every_s)
                next_s = min(due_s.get(fragment_id, now_s) for fragment_id in self.learner.fragments)
                await asyncio.sleep(max(0.01, next_s - time.monotonic()))
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


async def follow_all(lab: Lab, sids: list[str], seconds: float) -> tuple[list[Follower], str]:
    """All sessions open, then all follow for so long. Returns them, and when (UTC) all were open."""
    followers = [Follower(lab, sid) for sid in sids]
    for follower in followers:
        await follower.open()
    all_open_utc = datetime.now(UTC).isoformat(timespec="seconds")
    until_s = time.monotonic() + seconds
    await asyncio.gather(*(follower.follow(until_s) for follower in followers if not follower.why_dropped))
    return followers, all_open_utc


def one_round(lab: Lab, sids: list[str], seconds: float) -> tuple[list[Follower], str]:
    for sid in sids:
        press_the_button(lab, sid)
    return asyncio.run(follow_all(lab, sids, seconds))


def engine_times(lab: Lab, sids: list[str], after_utc: str = "") -> dict[str, list[tuple[float, float]]]:
    """(median decode step in ms, makespan in s) of each stored run that began later than ``after_utc``, by policy."""
    found: dict[str, list[tuple[float, float]]] = {"static": [], "chunked": []}
    for sid in sids:
        for policy, run in lab.store.latest_runs(sid, "batching").items():
            if run.header.created_utc > after_utc:
                found[policy].append((decode_step_ms(run), makespan_s(run)))
    return found


def cancel_all(lab: Lab, sids: list[str]) -> None:
    with lab.engine() as engine:
        for sid in sids:
            for run_id in json.loads(lab.store.preference(sid, "job:batching"))["run_ids"]:
                engine.cancel(run_id)


def main(num_sessions: int = NUM_SESSIONS, seconds: float = SECONDS) -> int:
    with running_lab() as lab:
        alone = [f"one-learner-alone-{i:04d}" for i in range(2)]
        for sid in alone:
            one_round(lab, [sid], ALONE_SECONDS)
        sids = [f"a-learner-among-many-{i:04d}" for i in range(num_sessions)]
        before = psutil.Process(lab.pid).cpu_times()
        followers, all_open_utc = one_round(lab, sids, seconds)
        after = psutil.Process(lab.pid).cpu_times()
        cancel_all(lab, sids)
        quiet, loaded = engine_times(lab, alone), engine_times(lab, sids, all_open_utc)
    return 0 if report(followers, seconds, used_s(before, after), quiet, loaded) else 1


def used_s(before, after) -> float:
    return after.user + after.system - before.user - before.system


def report(
    followers: list[Follower], seconds: float, ui_s: float, quiet: dict[str, list], loaded: dict[str, list]
) -> bool:
    """Print what was found. Returns whether every target was met."""
    updates = [s for follower in followers for s in follower.updates]
    dropped = [follower.why_dropped for follower in followers if follower.why_dropped]
    kilobytes = sum(follower.num_bytes for follower in followers) / 1e3
    p95, worst = percentile(updates, 95) or 0.0, 0.0
    print(told(f"{len(followers)} sessions: open", [follower.opened_s for follower in followers]))
    print(told(f"{len(followers)} sessions: update", updates))
    print(f"{kilobytes / len(updates):.1f} KB an update, {len(updates) / seconds:.0f} updates/s, UI {ui_s:.1f} core-s")
    assert quiet["static"] and loaded["static"], "no run came to its end: watch for longer"
    for policy in quiet:
        if quiet[policy] and loaded[policy]:
            worst = max(worst, compare(policy, quiet[policy], loaded[policy]))
    met = {
        f"p95 of an update {p95:.3f} s, target {UPDATE_TARGET_S:g} s": p95 < UPDATE_TARGET_S,
        f"{len(dropped)} dropped {dropped[:2] or ''}, target 0": not dropped,
        f"engine disturbed {worst:+.1%}, target {DISTURBED_TARGET:.0%}": worst < DISTURBED_TARGET,
    }
    for line, is_met in met.items():
        print(f"{line}: {'met' if is_met else 'MISSED'}")
    return all(met.values())


def compare(policy: str, quiet: list[tuple[float, float]], loaded: list[tuple[float, float]]) -> float:
    """Print both. Returns by how much the median step grew."""
    (step, whole), (step_now, whole_now) = (map(statistics.median, zip(*runs, strict=True)) for runs in (quiet, loaded))
    print(
        f"{policy}: decode step {step:.2f} ms alone ({len(quiet)} runs), {step_now:.2f} among many ({len(loaded)}): "
        f"{step_now / step - 1:+.1%}; whole run {whole:.2f} s, {whole_now:.2f}: {whole_now / whole - 1:+.1%}"
    )
    return step_now / step - 1


if __name__ == "__main__":
    sys.exit(main(*(int(number) for number in sys.argv[1:3])))
