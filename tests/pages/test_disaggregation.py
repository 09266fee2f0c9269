"""The lesson on prefill and decode apart: both parts, its pictures with badges and tables, and a card elsewhere."""

from __future__ import annotations

from lessons.disaggregation.scenarios import ROLES
from pages._ui.i18n import translate
from tests.pages.fake_client import FakeClient
from tests.pages.test_lessons import LEARNER, finish, predict, start
from tests.pages.test_smoke import all_text

PAGE = "p_disaggregation.py"


def served(lab, **query: str):
    at = predict(lab(PAGE, lang="en", dg_long="256", **query))
    return finish(start(at, "disaggregation"), most=20)


def test_the_whole_lesson(lab, client: FakeClient, store) -> None:
    at = lab(PAGE, lang="en", dg_long="256")
    assert at.button(key="run_disaggregation").disabled
    at = served(lab, dg_link="20")
    assert not at.exception and not at.error
    assert set(store.latest_runs(LEARNER, "disaggregation")) == set(ROLES)
    assert [s.disaggregated is not None for s in client.submitted] == [False, True]
    assert client.submitted[1].disaggregated.link_mb_per_s == 20
    settled = store.predictions(LEARNER, "disaggregation")
    assert len(settled) == 2 and all(p.answer is not None for p in settled)
    shown = all_text(at)
    assert translate("en", "predict.outcome") in shown and translate("en", "quiz.from_your_run") in shown
    _every_figure_has_a_name_a_table_and_a_badge(at, "en")
    chinese = lab(PAGE, lang="zh")
    assert not chinese.exception
    _every_figure_has_a_name_a_table_and_a_badge(chinese, "zh")
    assert len([i for i in chinese.info if "256" in i.value]) == 1  # pictures of other settings say so


def _every_figure_has_a_name_a_table_and_a_badge(at, lang: str) -> None:
    charts = at.get("plotly_chart")
    assert len(charts) == 4
    assert all(len(chart.proto.alt) > 20 for chart in charts)
    assert len(at.dataframe) >= len(charts)
    shown = "\n".join(m.value for m in at.markdown)
    for kind, least in (("measured", 5), ("modelled", 2), ("spec", 2)):
        assert shown.count(f"{translate(lang, f'common.badge_{kind}')}]") >= least
    cells = [str(cell) for table in at.table for cell in table.value.to_numpy().ravel()]
    assert any(translate(lang, "common.badge_measured") in cell for cell in cells)


def test_another_card_travels_in_the_link(lab) -> None:
    served(lab)
    at = lab(PAGE, lang="en", dg_device="l4", dg_model="qwen3-0.6b")
    assert any("Qwen3-0.6B" in s.value and "L4" in s.value for s in at.subheader)
