"""How fast pages answer while the engine is busy: opened, run again after a widget, opened with stored Runs.

    python -m tests.load.pages

Times are a learner's on loopback: from the websocket's first byte (or the message a widget sends) to the message that
says the script has run. Everything is bounded: a few opens per page, one run at a time, under two minutes in all.
"""

from __future__ import annotations

import asyncio
import sys
import threading

from engine.lab.scenario import Limits, RequestSpec, Scenario
from lessons import scenarios
from lessons.catalog import load_lessons
from lessons.stored import experiment_of
from tests.load.browserless import Learner
from tests.load.figures import told
from tests.load.lab import Lab, run_once, running_lab

NUM_OPENS, NUM_RERUNS = 5, 9
OPEN_TARGET_S, RERUN_TARGET_S = 1.5, 0.2
STORED = "stored-runs-of-a-learner"


def busy_scenario() -> Scenario:
    """Eight requests that keep every core busy for some seconds."""
    requests = tuple(RequestSpec(prompt="Tell a long story.", max_tokens=300, ignore_eos=True) for _ in range(8))
    return Scenario(name="load", limits=Limits(max_requests=8, num_blocks=512), requests=requests)


class Busy:
    """Keeps the engine running, run after run, while the block lasts."""

    def __init__(self, lab: Lab) -> None:
        self._lab, self._over = lab, threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        with self._lab.engine() as engine:
            while not self._over.is_set():
                run_id = engine.submit(busy_scenario(), "busy").run_id
                while not self._over.wait(0.5):
                    if engine.follow(run_id).state not in ("queued", "running"):
                        break
                else:
                    engine.cancel(run_id)


def store_runs(lab: Lab) -> None:
    """A learner who has done the two first lessons: real Runs of this engine in the database."""
    lab.store.learner(STORED)
    one = scenarios.prefill_decode("Why is the sky blue?", 64, 64)
    run, texts = run_once(lab, one)
    lab.store.save_run(run, texts.texts, "prefill_decode", STORED, pieces=texts.pieces, role="run", experiment="a")
    pair = {policy: scenarios.batching("mixed", policy) for policy in ("static", "chunked")}
    shared = experiment_of([scenario.model_dump(mode="json") for scenario in pair.values()])
    for policy, scenario in pair.items():
        run, texts = run_once(lab, scenario)
        lab.store.save_run(run, texts.texts, "batching", STORED, pieces=texts.pieces, role=policy, experiment=shared)


async def measure(lab: Lab, page: str, sid: str, title: str) -> tuple[list[float], list[float], int]:
    """(seconds to open, seconds to run again in another language, bytes of a first opening) of one page."""
    opens, reruns, num_bytes = [], [], 0
    for _ in range(NUM_OPENS):
        learner = Learner(lab.ws, sid, page)
        answer = await learner.open()
        assert answer.well and not learner.errors and title in learner.title, (page, learner.title, learner.errors)
        opens.append(answer.seconds)
        num_bytes = num_bytes or answer.num_bytes
        if len(opens) == NUM_OPENS:
            reruns = [await switch_language(learner, turn) for turn in range(NUM_RERUNS)]
        await learner.close()
    return opens, reruns, num_bytes


async def switch_language(learner: Learner, turn: int) -> float:
    """The widget that changes most of a page: every text is made anew. Returns seconds."""
    before, learner.query = learner.title, ""
    answer = await learner.rerun("language_switch", string_array_value=[("中文", "English")[turn % 2]])
    assert answer.well and not learner.errors and learner.title != before, (learner.title, learner.errors)
    return answer.seconds


async def all_pages(lab: Lab) -> bool:
    """Print two lines for each page. Returns whether every target was met."""
    lines, titles = [], {lesson.id: lesson.title["en"] for lesson in load_lessons()}
    pages = [("", "a-new-learner-on-the-home-page", "")]
    pages += [(name.replace("_", "-"), f"a-new-learner-of-{name}", title) for name, title in titles.items()]
    pages += [(name.replace("_", "-"), STORED, titles[name]) for name in ("prefill_decode", "batching")]
    for page, sid, title in pages:
        opens, reruns, num_bytes = await measure(lab, page, sid, title)
        name = f"{page or 'home'}{', with stored Runs' if sid == STORED else ''}"
        lines.append(told(f"{name}: open", opens, OPEN_TARGET_S, f"{num_bytes / 1e3:.0f} KB"))
        lines.append(told(f"{name}: rerun", reruns, RERUN_TARGET_S))
        print("\n".join(lines[-2:]), flush=True)
    return "MISSED" not in "".join(lines)


def main() -> int:
    with running_lab() as lab:
        store_runs(lab)
        asyncio.run(measure(lab, "", "the-very-first-visitor", ""))  # imports, caches
        with Busy(lab):
            met = asyncio.run(all_pages(lab))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
