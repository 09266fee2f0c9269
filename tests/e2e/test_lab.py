"""The lab in a real browser, with a real engine and a real model: few tests, each a thing only a browser can show."""

from __future__ import annotations

import re

import pytest

from pages._ui.i18n import translate
from tests.e2e.conftest import Lab, settled
from tests.e2e.keyboard import Keyboard

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
PATHS = ("/", "/prefill-decode", "/batching")


def say(key: str, lang: str = "en", **values: object) -> str:
    return translate(lang, key, **values)


def predict(page, value: str = "7", lang: str = "en") -> None:
    """Fill every number of the prediction, lock it, and wait until the engine lets the run begin."""
    fields = page.locator("[data-testid=stNumberInput] input")
    fields.nth(1).wait_for()
    for index in range(fields.count()):
        fields.nth(index).fill(value)
        fields.nth(index).press("Tab")
    settled(page)
    page.get_by_role("button", name=say("predict.commit", lang)).click()
    page.get_by_text(say("predict.locked", lang)).wait_for()


def start(page, lesson_id: str) -> None:
    page.locator(f".st-key-run_{lesson_id} button:not([disabled])").wait_for(timeout=300_000)
    page.locator(f".st-key-run_{lesson_id} button").click()
    stop = page.locator(f".st-key-stop_{lesson_id}")
    stop.or_(page.get_by_text(say("run.done"))).first.wait_for()  # a short run may be over before it is drawn


def finished(page, lang: str = "en") -> None:
    page.get_by_text(say("run.done", lang)).wait_for(timeout=300_000)
    settled(page)


def test_the_first_visitor_may_come_by_a_deep_link_before_the_engine_is_ready(visit) -> None:
    page = visit("/batching?lang=en")
    assert page.locator("h1").inner_text() == "Static and continuous batching"
    assert page.get_by_role("link", name="2 · Prefill and decode", exact=True).is_visible()
    assert page.context.cookies()[0]["httpOnly"]


def test_a_link_restores_language_and_settings_in_a_fresh_browser(visit) -> None:
    page = visit("/prefill-decode?lang=zh&pd_length=128&pd_output=20&pd_prompt=What+is+a+token%3F")
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    assert page.locator("textarea").input_value() == "What is a token?"
    assert page.locator(".st-key-pd_length").get_by_text("128").first.is_visible()
    assert page.locator(".st-key-pd_output").get_by_text("20", exact=True).first.is_visible()
    page.get_by_role("link", name="静态批处理与连续批处理").click()
    page.get_by_role("heading", name="静态批处理与连续批处理").wait_for()
    assert "lang=zh" in page.url


@pytest.mark.parametrize("path", PATHS)
def test_axe_finds_nothing_serious_in_either_theme(visit, path: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    from tests.e2e.looks import serious

    page = visit(f"{path}?lang=en", color_scheme="light", reduced_motion="reduce")
    colours = set()
    for scheme in ("light", "dark"):
        if scheme == "dark":
            page.emulate_media(color_scheme="dark")
            page.reload()
            settled(page)
        colours.add(page.evaluate("getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor"))
        assert serious(axe.Axe().run(page).response) == []
    assert len(colours) == 2, "the theme follows the browser"


@pytest.mark.parametrize("path", PATHS)
def test_nothing_sticks_out_on_a_phone(visit, path: str) -> None:
    context = None
    for lang in ("en", "zh"):
        page = visit(f"{path}?lang={lang}", context, viewport={"width": 390, "height": 844})
        context = page.context
        wide = page.evaluate(
            "() => [...document.querySelectorAll('[data-testid=stMain] *')]"
            ".filter(e => e.getClientRects().length && e.getBoundingClientRect().right > innerWidth + 1)"
            ".filter(e => !e.closest('.glideDataEditor, .stTable, pre, [data-testid=stDataFrame]'))"
            ".slice(0, 3).map(e => e.outerHTML.slice(0, 120))"
        )
        assert wide == [], lang


def test_a_whole_lesson_by_keyboard(lab: Lab, visit) -> None:
    page = visit("/prefill-decode?lang=en&pd_output=8")
    lab.wait_ready()
    keys = Keyboard(page)
    assert keys.fill(page.locator("[data-testid=stForm]").first, "9") == 2
    keys.to(page.get_by_role("button", name=say("predict.commit")), "the lock")
    keys.press("Enter")
    page.get_by_text(say("predict.locked")).wait_for()
    begin = page.locator(".st-key-run_prefill_decode button:not([disabled])")
    begin.wait_for(timeout=300_000)
    keys.to(begin, "the run")
    keys.press("Enter")
    finished(page)
    page.locator("[role=figure]").nth(2).wait_for()
    first = page.locator("[data-testid=stForm]").filter(has=page.get_by_role("radiogroup")).first
    keys.fill(first)
    keys.to(first.get_by_role("button", name=say("quiz.check")), "Check")
    keys.press("Enter")
    first.get_by_role("button", name=say("quiz.check_again")).wait_for()
    # Options stand in an order of the learner's own, so either; only what is wrong is announced as an alert.
    verdicts = re.compile("|".join(map(say, ("quiz.right", "quiz.wrong"))))
    first.locator("[role=status], [role=alert]").filter(has_text=verdicts).wait_for()


def test_both_policies_run_and_play_on_one_clock(lab: Lab, visit) -> None:
    lab.wait_ready()
    page = visit("/batching?lang=zh")
    predict(page, lang="zh")
    start(page, "batching")
    finished(page, "zh")
    page.locator(".player .canvas").first.wait_for()
    page.locator("[role=figure]").nth(1).wait_for()
    assert page.get_by_text(say("quiz.from_your_run", "zh")).is_visible()
    page.reload()
    settled(page)
    page.locator(".player .canvas").first.wait_for()
    assert page.get_by_text(say("predict.outcome", "zh")).is_visible()


def test_a_second_browser_sees_its_place_in_the_queue(lab: Lab, visit) -> None:
    lab.wait_ready()
    first, second = (visit("/prefill-decode?lang=en&pd_output=200&pd_length=8") for _ in range(2))
    predict(first)
    predict(second)
    start(first, "prefill_decode")
    start(second, "prefill_decode")
    second.get_by_text(re.compile("In the queue, place 1")).wait_for()
    first.locator(".st-key-stop_prefill_decode button").click()
    first.get_by_text(say("run.stopped")).wait_for()
    second.get_by_text(re.compile(r"^\d+ of 200 tokens")).wait_for()
    second.locator(".st-key-stop_prefill_decode button").click()
    second.get_by_text(say("run.stopped")).wait_for()


def test_killing_the_engine_in_mid_run_loses_nothing_but_the_run(lab: Lab, visit) -> None:
    lab.wait_ready()
    page = visit("/prefill-decode?lang=en&pd_output=200&pd_length=8")
    predict(page)
    start(page, "prefill_decode")
    page.get_by_text(re.compile(r"^\d+ of 200 tokens")).wait_for()
    lab.engine().kill()
    page.get_by_text(say("run.ended_lost")).wait_for(timeout=120_000)
    lab.wait_ready()
    assert page.get_by_text(say("predict.locked")).is_visible()
    page.goto(lab.url + "/prefill-decode?lang=en&pd_output=8&pd_length=8")
    settled(page)
    predict(page)
    start(page, "prefill_decode")
    finished(page)
    assert lab.process.poll() is None
