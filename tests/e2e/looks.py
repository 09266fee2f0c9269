"""What can be seen on a page that somebody is not touching: axe's violations, and whether anything moves.

Shared by the browser tests and by ``tests.e2e.walk``. No test of its own.
"""

from __future__ import annotations

import io

from axe_playwright_python.sync_playwright import Axe
from PIL import Image, ImageChops
from playwright.sync_api import Browser, Page

from tests.e2e.conftest import settled

STILL_S = 4
BARELY = 24  # of 255: a glyph's edge may be drawn a shade darker the second time; nobody sees that
NEUTRAL = {"viewport": {"width": 1280, "height": 900}, "locale": "en-GB"}


def serious(response: dict) -> list[str]:
    """The serious and critical violations of an answer of axe: the rule, how often, and the first element."""
    return [
        f"{v['id']} x{len(v['nodes'])}: {v['nodes'][0]['html'][:140]}"
        for v in response["violations"]
        if v["impact"] in ("serious", "critical")
    ]


def axe_with_all_open(page: Page) -> str:
    """Nothing serious, with everything opened that is closed."""
    closed = page.locator("[data-testid=stMain] details:not([open]) > summary")
    for _ in range(60):
        if closed.count() == 0:
            break
        closed.first.click()
        page.wait_for_selector('[data-testid=stApp][data-test-script-state="notRunning"]')
    settled(page)
    found = Axe().run(page).response
    bad = serious(found)
    assert not bad, " | ".join(bad)
    minor = [v["id"] for v in found["violations"]]
    return f"{len(found['passes'])} rules passed" + (f"; minor: {', '.join(minor)}" if minor else "")


def moved(page: Page) -> str:
    """What changes on the whole page within a few seconds in which nobody does anything. Empty: nothing."""
    height = page.locator("[data-testid=stMain]").evaluate("e => e.scrollHeight")
    page.set_viewport_size({"width": 1280, "height": min(int(height) + 50, 12_000)})
    page.add_style_tag(content=".st-key-engine_card { visibility: hidden; }")  # it tells of others' runs as they come
    settled(page)
    page.wait_for_timeout(1000)
    first = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    page.wait_for_timeout(STILL_S * 1000)
    second = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    difference = ImageChops.difference(first, second)
    box = difference.point(lambda value: 255 * (value > BARELY)).getbbox()
    endless = page.evaluate(
        "document.getAnimations().filter(a => a.playState === 'running')"
        ".map(a => a.effect?.target?.outerHTML?.slice(0, 100) ?? '?')"
    )
    return f"pixels {box}" * (box is not None) + f"animations {endless[:2]}" * bool(endless)


def still(browser: Browser, url: str, state: dict) -> str:
    """With reduced motion nothing moves by itself; without it a player does, so the look is a real one."""
    context = browser.new_context(**NEUTRAL, storage_state=state, reduced_motion="reduce")
    page = context.new_page()
    page.goto(url)
    settled(page)
    found = moved(page)
    has_player = page.locator(".player .canvas").count() > 0
    context.close()
    assert not found, found
    if not has_player:
        return f"nothing moved in {STILL_S} s"
    context = browser.new_context(**NEUTRAL | {"viewport": {"width": 1280, "height": 12_000}}, storage_state=state)
    page = context.new_page()
    page.goto(url)
    page.locator(".player .canvas").first.wait_for()
    seen = {page.locator(".player .readout").first.inner_text()}
    for _ in range(20):
        page.wait_for_timeout(150)
        seen.add(page.locator(".player .readout").first.inner_text())
    context.close()
    return f"nothing moved in {STILL_S} s (without the setting the player shows {len(seen)} times in 3 s)"
