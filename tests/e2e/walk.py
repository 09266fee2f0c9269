"""Every page as somebody without a mouse meets it: ``python -m tests.e2e.walk URL [page ...]`` against a running lab.

For each page, in a real browser and with keys only: predict, lock, run, walk once round everything (opening every
table behind a chart), play the player, change a setting, answer and check every question, go to the next lesson. Then
with the results on the screen: axe in both languages and themes; and with reduced motion, two pictures some seconds
apart. One line a page and check; ends with 1 if one failed. Two to five minutes a page, and no part of ``make test``.

    python app.py --port 18080 &            # a home of its own (TOKEN_BY_TOKEN_HOME) keeps the records apart
    python -m tests.e2e.walk http://127.0.0.1:18080 kv-cache
    python -m engine serve --port 18700 &   # real-server needs one of its own: an engine does not measure itself
    python -m tests.e2e.walk http://127.0.0.1:18080 --server http://127.0.0.1:18700 real-server
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Error, Locator, Page, sync_playwright

from lessons.catalog import load_lessons
from tests.e2e.conftest import FLAGS, settled
from tests.e2e.keyboard import Keyboard, Unreachable
from tests.e2e.looks import NEUTRAL, axe_with_all_open, still
from tests.e2e.test_lab import say

SHORT = {"prefill-decode": "&pd_output=8", "kv-cache": "&kv_output=16", "summary": "&sm_requests=2&sm_output=9"}
RUN_S = 240
NEAR = 25  # presses of Tab from one step of a lesson to the next, at most: more, and the focus was lost on the way
VERDICT = re.compile("|".join([say("quiz.right"), say("quiz.wrong"), r"Partly right"]))


@dataclass
class Report:
    """Lines as they come. ``failed`` counts those that say so."""

    page: str
    failed: int = 0
    started: float = field(default_factory=time.monotonic)

    def line(self, check: str, ok: bool, detail: str = "") -> None:
        self.failed += not ok
        at = f"{time.monotonic() - self.started:4.0f} s"
        print(f"{self.page:20} {check:16} {'ok' if ok else 'FAILED':6} {at}  {detail}".rstrip(), flush=True)

    def check(self, name: str, work: Callable[[], str]) -> bool:
        """Do ``work`` and report what it says; an exception is a failure, and the walk goes on."""
        try:
            detail = work()
        except (AssertionError, Error) as error:
            self.line(name, False, " ".join(str(error).split())[:700])
            return False
        self.line(name, True, detail)
        return True


# ------------------------------------------------------------------------------------------------- with keys
class Walk:
    """A page, walked by keys. Each method is one check and says in a few words what it saw."""

    def __init__(self, page: Page, path: str, lesson_id: str):
        self.page, self.path, self.lesson_id = page, path, lesson_id
        self.keys = Keyboard(page)

    def settle(self) -> None:
        self.page.wait_for_selector('[data-testid=stApp][data-test-script-state="notRunning"]')
        self.page.wait_for_timeout(150)
        self.page.wait_for_selector('[data-testid=stApp][data-test-script-state="notRunning"]')

    def predict(self) -> str:
        commit = self.page.get_by_role("button", name=say("predict.commit"))
        form = self.page.locator("[data-testid=stForm]").filter(has=commit)
        count = self.keys.fill(form)
        assert count, "nothing to predict was found"
        self.keys.to(commit, "the button that locks")
        self.keys.press("Enter")
        self.page.get_by_text(say("predict.locked")).wait_for()
        return f"{count} fields filled and locked"

    def run(self, button: str = "") -> str:
        """Start the run; while it lasts, Stop can be reached and keeps the focus."""
        key = button or f"run_{self.lesson_id}"
        start = self.page.locator(f".st-key-{key} button:not([disabled])")
        start.wait_for(timeout=RUN_S * 1000)
        tabs = self.keys.to(start, "the button that runs")
        self.keys.press("Enter")
        done = self.page.get_by_text(say("run.done"))
        stop = self.page.locator(f".st-key-stop_{self.lesson_id} button")
        ended = self.page.locator(f".st-key-retry_{self.lesson_id}")
        stop.or_(done).or_(ended).first.wait_for()
        seen = self._stop(stop, done)
        began = time.monotonic()
        done.or_(ended).first.wait_for(timeout=RUN_S * 1000)
        assert done.is_visible(), f"the run did not end well: {self.page.get_by_role('alert').last.inner_text()}"
        seconds = time.monotonic() - began
        self.settle()
        settled(self.page)
        assert button or tabs <= NEAR, f"{tabs} times Tab from the lock to the run: the focus was lost"
        return f"{tabs} times Tab to the button; {seen}; done {seconds:.0f} s later"

    def _stop(self, stop: Locator, done: Locator) -> str:
        if done.is_visible():
            return "over before Stop was drawn"
        try:
            tabs = self.keys.to(stop, "Stop")
            self.page.wait_for_timeout(1500)
            if not stop.is_visible():
                return f"Stop after {tabs} times Tab"
            assert self.keys.is_in(stop), f"Stop lost the focus to {self.keys.at()}"
            return f"Stop after {tabs} times Tab, keeps the focus"
        except (Unreachable, Error):
            assert not stop.is_visible(), "Stop is there, but not reached"
            return "over before Stop was reached"

    def sweep(self) -> str:
        found = self.keys.sweep(self.settle)
        assert not found.trap, found.trap
        assert not found.missed, f"not reached: {'; '.join(found.missed[:12])} ({len(found.missed)})"
        assert not found.unseen, f"focus not visible on: {'; '.join(found.unseen[:12])} ({len(found.unseen)})"
        tables = self.page.locator("[data-testid=stDataFrame]:visible").count()
        return f"{found.stops} stops, {found.opened} opened, {tables} tables with {found.in_grids} stops in them"

    def play(self) -> str:
        """Each player: play and hold with Space, step with the arrows, to the end and back."""
        players = self.page.locator(".player .root")
        for index in range(players.count()):
            root, readout = players.nth(index), self.page.locator(".player .readout").nth(index)
            self.keys.to(root, "the player")
            self.keys.press("Home")
            zero = readout.inner_text()
            self.keys.press("ArrowRight", "ArrowRight")
            stepped = readout.inner_text()
            self.keys.press("End")
            assert len({zero, stepped, readout.inner_text()}) == 3, "the player's keys do not move it"
            self.keys.press("Home")
            self.keys.to(root.locator("button[data-action=play]"), "Play")
            self.keys.press("Space")
            self.page.wait_for_timeout(700)
            self.keys.press("Space")
            assert readout.inner_text() != zero, "Space on Play does not play"
        return f"{players.count()} played" if players.count() else "none here"

    def settings(self) -> str:
        """One of each kind of setting takes another value by keys, and keeps the focus through the rerun."""
        said = []
        for kind, inner in (("stButtonGroup", "[role=radio]"), ("stSlider", "[role=slider], input"),
                            ("stSelectbox", "input"), ("stRadio", "input"), ("stTabs", "[role=tab]")):  # fmt: skip
            knobs = self.page.locator(f"[data-testid=stMain] [data-testid={kind}]:visible")
            knobs = knobs.and_(self.page.locator(":not([data-testid=stForm] *, .st-key-top_bar *)"))
            if knobs.count() == 0:
                continue
            knob = knobs.last
            self.keys.to(knob.locator(inner), kind)
            before = self._state(knob)
            keys = {"stSelectbox": ("ArrowDown", "ArrowDown", "Enter"), "stButtonGroup": ("ArrowRight", "Space")}
            self.keys.press(*keys.get(kind, ("ArrowRight",)))
            self.settle()
            if self._state(knob) == before:  # it stood at its end
                self.keys.press(*{"stSelectbox": ("ArrowUp", "ArrowUp", "Enter"),
                                  "stButtonGroup": ("ArrowLeft", "Space")}.get(kind, ("ArrowLeft",)))  # fmt: skip
                self.settle()
            assert self._state(knob) != before, f"{kind} is not changed by keys"
            assert self.keys.is_in(knob), f"{kind} lost the focus to {self.keys.at()}"
            said.append(kind)
        return " ".join(said) or "none here"

    def _state(self, knob: Locator) -> str:
        return knob.evaluate(
            "e => [...e.querySelectorAll('*')].map(x => [x.value, x.checked, x.getAttribute('aria-checked'),"
            " x.getAttribute('aria-selected'), x.getAttribute('aria-valuenow')].join()).join(';') + e.innerText"
        )

    def quiz(self) -> str:
        """Answer and check every question; the verdict stands with it and the button keeps the focus."""
        forms = self.page.locator("[data-testid=stForm]").filter(has=self.page.locator("[class*='st-key-check-']"))
        kinds: dict[str, int] = {}
        count, farthest = forms.count(), 0
        assert count, "no question was found"
        for index in range(count):
            form = forms.nth(index)
            before = self.keys.presses
            self.keys.fill(form, number="12")
            check = form.locator("[class*='st-key-check-'] button")
            self.keys.to(check, "Check")
            farthest = max(farthest, self.keys.presses - before)
            self.keys.press("Enter")
            form.locator("[role=status], [role=alert]").filter(has_text=VERDICT).wait_for(timeout=20_000)
            self.settle()
            assert self.keys.is_in(check), f"question {index + 1}: Check lost the focus to {self.keys.at()}"
            for kind in ("stTextInput", "stRadio", "stCheckbox", "stButtonGroup"):
                if form.locator(f"[data-testid={kind}]").count():
                    kinds[kind] = kinds.get(kind, 0) + 1
        return f"{count} questions checked: {kinds}"

    def exam(self) -> str:
        self.keys.to(self.page.locator(".st-key-exam_begin button"), "begin the exam")
        self.keys.press("Enter")
        form = self.page.locator("[data-testid=stForm]").filter(has=self.page.locator(".st-key-exam_item_1"))
        form.wait_for()
        self.settle()
        count = self.keys.fill(form, number="12")
        self.keys.to(form.get_by_role("button", name=say("exam.submit")), "hand in")
        self.keys.press("Enter")
        self.page.locator(".st-key-exam_again").wait_for()
        self.settle()
        return f"{count} fields filled and handed in"

    def onward(self) -> str:
        """To the page that comes next, by its link."""
        link = self.page.locator(".st-key-next_page a")
        tabs = self.keys.to(link, "the link to the next lesson")
        before = self.page.locator("h1").inner_text()
        self.keys.press("Enter")
        self.page.wait_for_function("old => document.querySelector('h1')?.innerText !== old", arg=before)
        settled(self.page)
        top = self.page.locator("[data-testid=stMain]").evaluate("e => e.scrollTop")
        assert top == 0, f"the next page opens scrolled down by {top:.0f} px"
        self.keys.press("Tab")
        first = self.page.locator(".st-key-top_bar")
        assert self.keys.is_in(first), f"the next page does not begin at its top: Tab goes to {self.keys.at()}"
        return f"{tabs} times Tab, then {self.page.locator('h1').inner_text()!r}; Tab there: {self.keys.at()}"


# ------------------------------------------------------------------------------------------------- pages
def by_keys(report: Report, walk: Walk, server: str) -> None:
    lesson = walk.path not in ("home", "playground")
    if walk.path == "playground":
        report.check("run", lambda: walk.run("run_playground"))
    elif lesson:
        if walk.path == "real-server":
            report.check("address", lambda: _type_address(walk, server))
        if report.check("predict", walk.predict):
            report.check("run", walk.run)
    report.check("sweep", walk.sweep)
    if lesson or walk.path == "playground":
        report.check("player", walk.play)
    report.check("settings", walk.settings)
    if lesson:
        report.check("quiz", walk.quiz)
    if walk.path == "summary":
        report.check("exam", walk.exam)
    if lesson:
        report.check("next page", walk.onward)


def _type_address(walk: Walk, server: str) -> str:
    field = walk.page.locator(".st-key-rs_url input")
    walk.keys.to(field, "the address")
    walk.keys.press("Control+a")
    walk.page.keyboard.type(server)
    walk.keys.press("Tab")
    walk.settle()
    return server


def one_page(browser: Browser, url: str, path: str, options: argparse.Namespace) -> int:
    report = Report(path)
    parts = options.parts.split(",")
    address = f"{url}/{'' if path == 'home' else path}"
    kept = Path(options.keep or "") / f"{path}.json"
    if "keys" in parts:
        context = browser.new_context(**NEUTRAL)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.goto(f"{address}?lang=en{SHORT.get(path, '')}")
        settled(page)
        by_keys(report, Walk(page, path, path.replace("-", "_")), options.server)
        state = context.storage_state(path=kept if options.keep else None)
        context.close()
    else:
        state = json.loads(kept.read_text(encoding="utf-8"))
    if "axe" in parts:
        for lang in ("en", "zh"):
            for scheme in ("light", "dark"):
                context = browser.new_context(**NEUTRAL, storage_state=state, color_scheme=scheme)
                page = context.new_page()
                page.goto(f"{address}?lang={lang}")
                settled(page)
                report.check(f"axe {lang} {scheme}", lambda page=page: axe_with_all_open(page))
                context.close()
    if "motion" in parts:
        report.check("reduced motion", lambda: still(browser, f"{address}?lang=en", state))
    return report.failed


def main() -> None:
    known = ["home", "playground", *(lesson.id.replace("_", "-") for lesson in load_lessons())]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="address of a running lab")
    parser.add_argument("pages", nargs="*", metavar="page", help=f"default: all of {', '.join(known)}")
    parser.add_argument("--server", default="http://127.0.0.1:8000", help="for real-server: an OpenAI-like server")
    parser.add_argument("--parts", default="keys,axe,motion", help="some of keys,axe,motion (default: all)")
    parser.add_argument("--keep", help="a folder for the learners; --parts without keys looks at what they did")
    arguments = parser.parse_intermixed_args()
    if "keys" not in arguments.parts and not arguments.keep:
        parser.error("--parts without keys needs --keep, the folder of an earlier walk")
    unknown = set(arguments.pages) - set(known)
    if unknown:
        parser.error(f"no such page: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    failed = 0
    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        for name in arguments.pages or known:
            failed += one_page(browser, arguments.url.rstrip("/"), name, arguments)
        browser.close()
    print(f"{failed} failed" if failed else "all well")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
