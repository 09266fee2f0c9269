"""A report in a real browser, opened from disk without a network: it draws, plays, and asks for nothing."""

from __future__ import annotations

import pytest

from engine.lab.report import run_report
from tests.unit.player_runs import eventful_run

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(("lang", "play"), [("en", "Play"), ("zh", "播放")])
def test_a_report_opens_offline_with_the_player_in_it(chromium, tmp_path, lang: str, play: str) -> None:
    run = eventful_run()
    run.header.scenario["name"] = "</script><script>document.title = 'taken over'</script>"
    file = tmp_path / "report.html"
    file.write_text(run_report(run, lang, {"A": ["</script>", "<b>x</b>"]}), encoding="utf-8")
    context = chromium.new_context(offline=True, viewport={"width": 390, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    wrong, asked = [], []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    page.get_by_role("button", name=play).wait_for()
    painted = page.evaluate(
        """() => { const c = document.querySelector('canvas');
        return new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size; }"""
    )
    assert painted > 10, "the timeline is not drawn"
    page.locator(".root").focus()
    page.keyboard.press("Home")
    assert page.locator(".readout").inner_text().startswith("0.0 ")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert "taken over" not in page.title()
    assert wrong == [] and asked == [file.as_uri()]
    context.close()
