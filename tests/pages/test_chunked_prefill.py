"""The chunked-prefill page: a long prompt timed by the first Run, six Runs, the trade-off as it grows."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from engine.lab.metrics import token_times
from lessons.chunked_prefill.scenarios import LONG, ROLES, TOKENS_BEFORE, WITHOUT
from pages._ui.i18n import translate
from tests.pages.fake_client import FakeClient
from tests.pages.test_lessons import LEARNER, finish, predict, start
from tests.pages.test_smoke import all_text

PAGE = "p_chunked_prefill.py"


def run_study(lab, **query: str) -> AppTest:
    return finish(start(predict(lab(PAGE, lang="en", **query), 3), "chunked_prefill"), most=40)


def test_the_long_prompt_meets_the_others_decoding(lab, client: FakeClient, store) -> None:
    at = run_study(lab, cp_others="3", cp_length="192")
    assert not at.exception and not at.error
    assert [s.name for s in client.submitted] == [f"chunked_prefill/{role}" for role in ROLES]
    runs = store.latest_runs(LEARNER, "chunked_prefill")
    times = token_times(runs[WITHOUT])
    for role in ROLES[1:]:
        (long,) = [r for r in runs[role].requests if r.request_id == LONG]
        assert long.arrival_s == pytest.approx(times["d1"][TOKENS_BEFORE - 1].t_s, abs=1e-3)
        assert all(long.arrival_s < r.completion_s for r in runs[role].requests)
    settled = store.predictions(LEARNER, "chunked_prefill")
    assert {p.prediction_id for p in settled} == {"gap_growth", "ttft_cost"}
    assert all(p.answer is not None for p in settled)
    assert translate("en", "quiz.from_your_run") in all_text(at)


def test_the_curve_grows_point_by_point_and_a_reload_goes_on(lab, client: FakeClient, store) -> None:
    client.num_running = 2
    at = start(predict(lab(PAGE, lang="en"), 3), "chunked_prefill")
    seen = []
    for _ in range(12):
        seen.append(len(at.dataframe[0].value) if at.dataframe else 0)
        at.run()
    assert sorted(seen) == seen and seen[-1] >= 2
    at = finish(lab(PAGE, lang="en"), most=40)
    assert not at.exception and not at.error
    assert len(client.submitted) == len(ROLES)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_figures_have_names_tables_and_badges_and_follow_the_chosen_budget(lab, client, lang: str) -> None:
    run_study(lab)
    at = lab(PAGE, lang=lang, cp_budget="32")
    assert not at.exception
    charts = at.get("plotly_chart")
    assert len(charts) == len(at.dataframe) == 2
    assert all(len(chart.proto.alt) > 20 for chart in charts)
    assert "32" in at.dataframe[0].value.columns[-1]
    for kind in ("measured", "modelled"):
        assert f"{translate(lang, f'common.badge_{kind}')}]" in all_text(at) or kind in str(at.table[0].value)
    submitted = len(client.submitted)
    at.segmented_control(key="cp_budget").set_value(256).run()
    assert not at.exception and len(client.submitted) == submitted
    assert "256" in at.dataframe[0].value.columns[-1]


def test_other_settings_are_named(lab) -> None:
    run_study(lab)
    at = lab(PAGE, lang="en", cp_others="12")
    assert translate("en", "chunked_prefill.other_settings", others=6, length=384) in [i.value for i in at.info]
