"""The page on smaller weights: six parts, their pictures with badges and tables, the answers as plain text."""

from __future__ import annotations

import pytest

from lessons.smaller_weights.scenarios import ROLES
from pages._ui.i18n import translate
from tests.pages.fake_client import FakeClient
from tests.pages.test_lessons import LEARNER, finish, predict, start
from tests.pages.test_smoke import all_text

PAGE = "p_smaller_weights.py"


def studied(lab, **query: str):
    return finish(start(predict(lab(PAGE, lang="en", **query), 3), "smaller_weights"), most=60)


def test_the_whole_study_in_both_languages(lab, client: FakeClient, store) -> None:
    at = studied(lab, sw_text="1")
    assert not at.exception and not at.error
    assert set(store.latest_runs(LEARNER, "smaller_weights")) == set(ROLES)
    assert [s.weights for s in client.submitted] == [None, None, "int8", "int8", "int4", "int4"]
    assert [s.probes for s in client.submitted] == [(), (), ("quantization",), (), ("quantization",), ()]
    assert all("map" in r.prompt for s in client.submitted for r in s.requests)
    assert all(p.answer is not None for p in store.predictions(LEARNER, "smaller_weights"))
    for lang in ("en", "zh"):
        at = lab(PAGE, lang=lang)
        assert not at.exception
        figures = at.get("plotly_chart")
        assert len(figures) == 3 == len(at.dataframe)
        assert all(len(figure.proto.alt) > 20 for figure in figures)
        shown = all_text(at)
        for kind in ("measured", "modelled"):
            assert f"{translate(lang, f'common.badge_{kind}')}]" in shown
        assert translate(lang, "quiz.from_your_run") in shown
        assert sum("**bold** <b>x</b>" in code.value for code in at.code) == 3, "answers are shown as they are"


@pytest.mark.parametrize("text", ["7", "x", "-1"])
def test_a_link_with_another_text_is_reported(lab, text: str) -> None:
    at = lab(PAGE, lang="en", sw_text=text)
    assert not at.exception and len(at.warning) == 1
