"""The lesson on ring attention: both parts, its pictures with badges and tables, and 128 K tokens elsewhere."""

from __future__ import annotations

from lessons.ring_attention.scenarios import ROLES
from pages._ui.i18n import translate
from tests.pages.fake_client import FakeClient
from tests.pages.test_lessons import LEARNER, finish, predict, start
from tests.pages.test_smoke import all_text

PAGE = "p_ring_attention.py"


def test_the_whole_lesson(lab, client: FakeClient, store) -> None:
    at = lab(PAGE, lang="en", ra_length="512", ra_workers="3", ra_layout="zigzag")
    assert at.button(key="run_ring_attention").disabled
    at = finish(start(predict(at), "ring_attention"), most=20)
    assert not at.exception and not at.error
    assert set(store.latest_runs(LEARNER, "ring_attention")) == set(ROLES)
    assert [s.ring.num_workers for s in client.submitted] == [1, 3]
    assert client.submitted[1].ring.layout == "zigzag"
    settled = store.predictions(LEARNER, "ring_attention")
    assert len(settled) == 2 and all(p.answer is not None for p in settled)
    shown = all_text(at)
    assert translate("en", "predict.outcome") in shown and translate("en", "quiz.from_your_run") in shown
    _every_figure_has_a_name_a_table_and_a_badge(at, "en")
    chinese = lab(PAGE, lang="zh", ra_device="h100", ra_model="llama-3-70b")
    assert not chinese.exception
    _every_figure_has_a_name_a_table_and_a_badge(chinese, "zh")
    assert any("Llama-3-70B" in s.value and "H100" in s.value for s in chinese.subheader)
    assert len([i for i in chinese.info if "512" in i.value]) == 1  # pictures of other settings say so


def _every_figure_has_a_name_a_table_and_a_badge(at, lang: str) -> None:
    charts = at.get("plotly_chart")
    assert len(charts) == 5
    assert all(len(chart.proto.alt) > 20 for chart in charts)
    assert len(at.dataframe) >= len(charts)
    shown = "\n".join(m.value for m in at.markdown)
    for kind, least in (("measured", 5), ("modelled", 3), ("spec", 2)):
        assert shown.count(f"{translate(lang, f'common.badge_{kind}')}]") >= least
