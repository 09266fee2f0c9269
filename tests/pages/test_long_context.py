"""The page on long contexts: five kinds from one memory, the answers as plain text, 128 K tokens elsewhere."""

from __future__ import annotations

import pytest

from engine.lab.scenario import Scenario
from lessons.long_context.scenarios import MAX_CHARACTERS, OWN_BLOCKS, ROLES
from pages._ui.i18n import translate
from tests.pages import fake_client
from tests.pages.fake_client import FakeClient
from tests.pages.test_lessons import LEARNER, finish, predict, start
from tests.pages.test_smoke import all_text
from tests.unit.lesson_cases.long_context import _shaped

PAGE = "p_long_context.py"


@pytest.fixture(autouse=True)
def shaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Runs name the model and the sizes that the scenario asks for, as the real engine's do."""
    plain = fake_client.serve

    def serve(scenario: Scenario, run_id: str):
        role = scenario.name.rpartition("/")[2]
        run = plain(scenario, run_id)
        return _shaped(run, role, scenario) if scenario.name.startswith("long_context/") else run

    monkeypatch.setattr(fake_client, "serve", serve)


def studied(lab, **query: str):
    return finish(start(predict(lab(PAGE, lang="en", **query), 3), "long_context"), most=60)


def test_the_whole_study_in_both_languages(lab, client: FakeClient, store) -> None:
    at = studied(lab, lc_prompt="Why is the sky blue?")
    assert not at.exception and not at.error
    assert set(store.latest_runs(LEARNER, "long_context")) == set(ROLES)
    assert client.submitted[0].limits.num_blocks == OWN_BLOCKS
    assert [s.kv_dtype for s in client.submitted] == [None, None, None, "int8", "int4"]
    assert client.submitted[0].requests[-1].prompt == "Why is the sky blue?"
    assert all(p.answer is not None for p in store.predictions(LEARNER, "long_context"))
    for lang in ("en", "zh"):
        at = lab(PAGE, lang=lang)
        assert not at.exception
        figures = at.get("plotly_chart")
        assert len(figures) == 3 == len(at.dataframe)
        assert all(len(figure.proto.alt) > 20 for figure in figures)
        shown = all_text(at)
        for kind in ("measured", "modelled", "spec"):
            assert f"{translate(lang, f'common.badge_{kind}')}]" in shown
        assert translate(lang, "quiz.from_your_run") in shown


def test_the_model_and_the_card_travel_in_the_link(lab) -> None:
    at = studied(lab, lc_model="llama-2-7b", lc_card="rtx-4090")
    assert not at.exception
    assert any("Llama-2-7B" in title.value for title in at.subheader)
    at.selectbox(key="lc_model").set_value("qwen3-8b").run()
    assert not at.exception and at.query_params["lc_model"] == "qwen3-8b"


def test_a_prompt_too_long_in_a_link_is_reported(lab) -> None:
    at = lab(PAGE, lang="en", lc_prompt="x" * (MAX_CHARACTERS + 1))
    assert not at.exception and len(at.warning) == 1
