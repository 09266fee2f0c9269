"""Takes the README's screenshots from a running lab: ``python -m tests.e2e.screenshots URL [lesson ...]``.

Each lesson is predicted and run once; then the same learner looks at it in both languages, both themes and two widths.
The pictures go to ``.github/screenshots`` as ``<page>-<lang>-<theme>-<width>.jpg``.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from tests.e2e.conftest import FLAGS, ROOT, settled
from tests.e2e.test_lab import finished, predict, start

FOLDER = ROOT / ".github" / "screenshots"
HEIGHT = {1280: 1500, 390: 1500}


def run_once(browser: Browser, url: str, lesson: str) -> dict:
    """Predict and run a lesson. Returns the learner's cookies."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-GB")
    page = context.new_page()
    page.goto(f"{url}/{lesson.replace('_', '-')}?lang=en")
    settled(page)
    predict(page)
    start(page, lesson)
    finished(page)
    state = context.storage_state()
    context.close()
    return state


def picture(page: Page, target: Path) -> None:
    """The page from its picture section on, or from the top where it has none."""
    sections = page.locator("h2")
    for index in range(sections.count()):
        if sections.nth(index).inner_text().strip().startswith("3"):
            sections.nth(index).scroll_into_view_if_needed()
            sections.nth(index).evaluate("e => e.scrollIntoView({block: 'start'})")
            break
    page.wait_for_timeout(2500)
    page.screenshot(path=str(target), type="jpeg", quality=72)


def main(url: str, lessons: list[str]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        for lesson in lessons:
            state = None if lesson == "home" else run_once(browser, url, lesson)
            for lang, theme, width in itertools.product(("en", "zh"), ("light", "dark"), (1280, 390)):
                context = browser.new_context(
                    viewport={"width": width, "height": HEIGHT[width]},
                    color_scheme=theme,
                    storage_state=state,
                    reduced_motion="reduce",
                )
                page = context.new_page()
                path = "" if lesson == "home" else lesson.replace("_", "-")
                page.goto(f"{url}/{path}?lang={lang}")
                settled(page)
                picture(page, FOLDER / f"{lesson}-{lang}-{theme}-{width}.jpg")
                context.close()
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), sys.argv[2:] or ["home", "prefill_decode", "batching"])
