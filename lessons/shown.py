"""The store as the pages see it: a learner's own Runs of a lesson, or, while they ask for it, the recorded ones.

It decides which of the two a lesson shows. Everything a page draws, asks or explains is made from what ``latest_runs``
gives, so a lesson needs no code of its own to work from recorded Runs. Invariant: recorded Runs are never copied into
a learner's records, and an own Run that finishes is what the lesson shows from then on.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

from engine.lab.records import Run
from lessons import recorded
from lessons.store import Store
from lessons.stored import LessonProgress, RunTexts

_KEY = "recorded:"


class LessonStore(Store):
    """A ``Store`` that knows the recorded Runs. Methods that read a Run may give one of them."""

    def show_recorded(self, learner: str, lesson_id: str, shown: bool) -> None:
        """Effect: from now on the lesson shows its recorded Runs (or the learner's own again)."""
        kept = self._kept(learner, lesson_id)
        if shown or kept.get("shown"):
            seen = kept.get("seen_utc") or datetime.now(UTC).isoformat(timespec="milliseconds")
            self.set_preference(learner, _KEY + lesson_id, json.dumps({"shown": shown, "seen_utc": seen}))

    def shows_recorded(self, learner: str, lesson_id: str) -> bool:
        return bool(self._kept(learner, lesson_id).get("shown")) and recorded.exists(lesson_id)

    def own_runs(self, learner: str, lesson_id: str) -> dict[str, Run]:
        """The learner's newest Runs of a lesson by role, whatever the lesson shows."""
        return super().latest_runs(learner, lesson_id)

    def latest_runs(self, learner: str, lesson_id: str) -> dict[str, Run]:
        """The Runs that the lesson shows, by role."""
        if self.shows_recorded(learner, lesson_id):
            return dict(recorded.runs(lesson_id))
        return self.own_runs(learner, lesson_id)

    def run(self, run_id: str) -> Run | None:
        return super().run(run_id) or recorded.run(run_id)

    def texts(self, run_id: str) -> RunTexts:
        return recorded.texts(run_id) if recorded.is_recorded(run_id) else super().texts(run_id)

    def progress(self, learner: str) -> dict[str, LessonProgress]:
        """As the store counts it; having been shown the recorded Runs counts as one more run of the lesson."""
        found = super().progress(learner)
        for lesson_id, seen_utc in self._seen(learner).items():
            done = found.get(lesson_id, LessonProgress(lesson_id))
            last_utc = max(done.last_utc, seen_utc)
            found[lesson_id] = replace(done, num_runs=done.num_runs + 1, last_utc=last_utc)
        return found

    def _kept(self, learner: str, lesson_id: str) -> dict:
        return _decoded(self.preference(learner, _KEY + lesson_id))

    def _seen(self, learner: str) -> dict[str, str]:
        kept = self.preferences(learner, _KEY)
        return {key.removeprefix(_KEY): str(_decoded(raw).get("seen_utc", "")) for key, raw in kept.items()}


def _decoded(raw: str | None) -> dict:
    try:
        kept = json.loads(raw) if raw else {}
    except ValueError:
        return {}
    return kept if isinstance(kept, dict) else {}
