"""The page that measures another server: eight parts, two sides, what is not seen, and files from elsewhere."""

from __future__ import annotations

import json

import pytest

from engine.lab.scenario import Scenario
from lessons.real_server.scenarios import ROLES
from pages._ui.i18n import translate
from tests.pages import fake_client
from tests.pages.fake_client import FakeClient
from tests.pages.test_lessons import LEARNER, finish, predict, start
from tests.pages.test_smoke import all_text
from tests.unit.observed_runs import from_outside

PAGE = "p_real_server.py"


@pytest.fixture(autouse=True)
def observing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scenario for a server comes back as what a client saw of a genuine run of it."""
    inside = fake_client.serve

    def serve(scenario: Scenario, run_id: str):
        run = inside(scenario.model_copy(update={"server": None}), run_id)
        if scenario.server is None:
            return run
        seen = from_outside(run, server="a server")
        seen.header.scenario = scenario.model_dump(mode="json")
        return seen

    monkeypatch.setattr(fake_client, "serve", serve)


def studied(lab, **query: str):
    return finish(start(predict(lab(PAGE, lang="en", **query), 3), "real_server"), most=60)


def test_the_whole_study_in_both_languages(lab, client: FakeClient, store) -> None:
    at = studied(lab, rs_url="http://127.0.0.1:9999/v1/", rs_api="chat")
    assert not at.exception and not at.error
    assert set(store.latest_runs(LEARNER, "real_server")) == set(ROLES)
    assert [s.server.url for s in client.submitted[:4]] == ["http://127.0.0.1:9999"] * 4
    assert [s.server for s in client.submitted[4:]] == [None] * 4
    assert all(r.chat for s in client.submitted for r in s.requests)
    assert [len(s.requests) for s in client.submitted] == [1, 2, 4, 8] * 2
    assert {p.prediction_id for p in store.predictions(LEARNER, "real_server") if p.answer is not None} == {
        "gain_eight",
        "tpot_growth",
    }
    for lang in ("en", "zh"):
        at = lab(PAGE, lang=lang)
        assert not at.exception
        figures = at.get("plotly_chart")
        assert len(figures) == 3 and all(len(figure.proto.alt) > 20 for figure in figures)
        assert len(at.dataframe) == len(figures)
        shown = all_text(at)
        assert f"{translate(lang, 'common.badge_measured')}]" in shown
        assert translate(lang, "real_server.lacks_queue") in shown
        assert translate(lang, "quiz.from_your_run") in shown


def test_answers_too_short_to_time_are_named_with_the_remedy(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = fake_client.serve

    def serve(scenario: Scenario, run_id: str):
        ended = [r.model_copy(update={"max_tokens": 1}) for r in scenario.requests]
        return inside(scenario.model_copy(update={"requests": tuple(ended)}), run_id)

    monkeypatch.setattr(fake_client, "serve", serve)
    at = studied(lab)
    assert not at.exception and not at.error
    words = translate("en", "real_server.too_short", request="r1", n=1, chat=translate("en", "real_server.api_chat"))
    assert words in [warning.value for warning in at.warning]


@pytest.mark.parametrize("url", ["ftp://x", "hello", "http://user:word@host"])
def test_an_address_that_is_none_is_said_before_the_run(lab, client: FakeClient, url: str) -> None:
    at = predict(lab(PAGE, lang="en", rs_url=url), 3)
    assert not at.exception
    assert at.button(key="run_real_server").disabled and client.submitted == []
    assert "server" in at.error[0].value


def test_files_from_elsewhere(lab) -> None:
    at = lab(PAGE, lang="en")
    result = {"model_id": "m", "request_rate": 1, "ttfts": [0.1], "itls": [[0.02, 0.3]], "output_lens": [3]}
    at.file_uploader(key="rs_file").set_value(("bench.json", json.dumps(result).encode(), "application/json")).run()
    assert not at.exception and not at.error
    assert translate("en", "real_server.lacks_arrivals") in all_text(at)
    assert len(at.get("plotly_chart")) == 1 and len(at.get("download_button")) >= 1
    for content in (b"\xff\xd8", b"{}", b"not json"):
        at.file_uploader(key="rs_file").set_value(("x.json", content, "application/json")).run()
        assert not at.exception and len(at.error) == 1
