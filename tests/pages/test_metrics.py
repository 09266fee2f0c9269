"""The metrics page: loads sized by its own first Runs, the curve as it grows, goodput without a rerun."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from engine.lab.metrics import goodput, makespan_s, request_metrics
from lessons.metrics.scenarios import ROLES, SHARES
from pages._ui.i18n import translate
from tests.pages.fake_client import FakeClient
from tests.pages.test_lessons import LEARNER, finish, predict, start
from tests.pages.test_smoke import all_text
from tests.unit.lesson_cases.metrics import falling

PAGE = "p_metrics.py"


def run_study(lab, **query: str) -> AppTest:
    return finish(start(predict(lab(PAGE, lang="en", **query), 3), "metrics"), most=60)


def test_the_loads_are_sized_by_what_the_full_batch_showed(lab, client: FakeClient, store) -> None:
    at = run_study(lab, me_places="4")
    assert not at.exception and not at.error
    assert [s.name for s in client.submitted] == [f"metrics/{role}" for role in ROLES]
    runs = store.latest_runs(LEARNER, "metrics")
    assert set(runs) == set(ROLES)
    burst = runs["burst"]
    capacity = len(burst.requests) / makespan_s(burst)
    for role, share in SHARES.items():
        times = [r.arrival_s for r in runs[role].requests]
        assert (len(times) - 1) / max(times) == pytest.approx(share * capacity, rel=0.01)
    settled = store.predictions(LEARNER, "metrics")
    assert {p.prediction_id for p in settled} == {"ttft_growth", "tpot_growth"}
    assert all(p.answer is not None for p in settled)
    assert translate("en", "quiz.from_your_run") in all_text(at)


def test_a_sweep_goes_on_while_another_page_is_shown(lab, client: FakeClient, store) -> None:
    at = start(predict(lab(PAGE, lang="en"), 3), "metrics")
    at.switch_page("p_home.py").run()
    for _ in range(40):
        if set(store.latest_runs(LEARNER, "metrics")) == set(ROLES):
            return
        at.run()
    raise AssertionError("the sidebar does not follow the sweep to its end")


def test_the_curve_grows_point_by_point_also_across_a_reload(lab, client: FakeClient, store) -> None:
    client.num_running = 1
    at = start(predict(lab(PAGE, lang="en"), 3), "metrics")
    seen, reloaded = [], False
    for _ in range(60):
        if not any(str(b.key).startswith("stop_") for b in at.button):
            break
        seen.append(len(at.dataframe[0].value) if at.dataframe else 0)
        if seen[-1] == 2 and not reloaded:
            at, reloaded = lab(PAGE, lang="en"), True
        else:
            at.run()
    assert reloaded and sorted(seen) == seen and set(seen) == set(range(5))
    assert not at.exception and not at.error
    assert len(client.submitted) == len(ROLES)
    assert set(store.latest_runs(LEARNER, "metrics")) == set(ROLES)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_figures_have_names_tables_and_badges(studied, lang: str) -> None:
    at = studied(PAGE, "metrics", 3, lang=lang)
    assert not at.exception
    charts = at.get("plotly_chart")
    assert len(charts) == len(at.dataframe) == 5
    assert all(len(chart.proto.alt) > 20 for chart in charts)
    for kind in ("measured", "modelled"):
        assert f"{translate(lang, f'common.badge_{kind}')}]" in all_text(at)
    assert "C10" in all_text(at) and "C11" in all_text(at)


def test_goodput_follows_the_objective_without_a_run(studied, client: FakeClient, store) -> None:
    at = studied(PAGE, "metrics", 3)
    submitted = len(client.submitted)
    column = translate("en", "metrics.col_good")
    runs = store.latest_runs(LEARNER, "metrics")
    alone = request_metrics(runs["alone"].requests[0])
    for ttft, tpot in ((300, 200), (2000, 1000), (150, 120)):
        at.select_slider(key="me_ttft").set_value(ttft)
        at.select_slider(key="me_tpot").set_value(tpot).run()
        assert not at.exception
        limits = alone.ttft_s * ttft / 100, alone.tpot_s * tpot / 100
        expected = [goodput(runs[role], *limits).requests_per_s for role in SHARES]
        assert list(at.dataframe[-1].value[column]) == pytest.approx(expected, abs=0.001)
    assert len(client.submitted) == submitted


def test_an_objective_that_nobody_meets_is_said(studied, monkeypatch: pytest.MonkeyPatch) -> None:
    from pages._ui import metrics_views

    nothing = metrics_views.goodput
    monkeypatch.setattr(metrics_views, "goodput", lambda run, ttft_s, tpot_s: nothing(run, 0.0, 0.0))
    at = studied(PAGE, "metrics", 3)
    assert not at.exception
    assert translate("en", "metrics.goodput_none", ttft="{", tpot="").split("{")[0] in all_text(at)


def test_a_full_batch_that_says_nothing_ends_the_study_with_a_sentence(lab, client: FakeClient, store) -> None:
    at = start(predict(lab(PAGE, lang="en"), 3), "metrics")
    while len(client.submitted) < 2:
        at.run()
    for record in client.runs["run-000000000001"].requests:
        record.completion_s = None
    at = finish(at, most=60)
    assert not at.exception
    assert "run the whole study" in at.error[0].value
    assert len(client.submitted) == 2


def test_a_disturbed_sweep_is_said_above_its_pictures_which_stay(lab, store) -> None:
    for index, (role, run) in enumerate(falling().items()):
        run.header.run_id = f"run-{index:012x}"
        store.save_run(run, {}, "metrics", LEARNER, role=role, experiment="e")
    for lang, said in (("en", "Do not compare the seconds"), ("zh", "不能互相比较")):
        at = lab(PAGE, lang=lang)
        assert not at.exception
        assert any(said in w.value for w in at.warning)
        assert len(at.get("plotly_chart")) == len(at.dataframe) == 5


def test_a_quiet_sweep_is_not_called_disturbed(studied) -> None:
    assert not studied(PAGE, "metrics", 3).warning


def test_other_settings_are_named(studied) -> None:
    at = studied(PAGE, "metrics", 3, me_places="16")
    assert translate("en", "metrics.other_places", places=8) in [i.value for i in at.info]
