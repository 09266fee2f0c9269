"""The lesson on batching: a study of seven parts, its pictures with badges and tables, and a device elsewhere."""

from __future__ import annotations

from lessons.batch_size.scenarios import ROLES
from pages._ui.i18n import translate
from tests.pages.fake_client import FakeClient
from tests.pages.test_lessons import LEARNER, finish, predict, start
from tests.pages.test_smoke import all_text

PAGE = "p_batch_size.py"


def run_study(lab):
    return finish(start(predict(lab(PAGE, lang="en"), 3), "batch_size"), most=60)


def test_the_button_waits_for_the_prediction(lab, client: FakeClient) -> None:
    at = lab(PAGE, lang="en")
    assert at.button(key="run_batch_size").disabled
    at = predict(at, 3)
    assert not at.exception and not at.button(key="run_batch_size").disabled
    assert client.submitted == []


def test_the_whole_study(lab, client: FakeClient, store) -> None:
    at = run_study(lab)
    assert not at.exception and not at.error
    assert set(store.latest_runs(LEARNER, "batch_size")) == set(ROLES)
    assert [len(s.requests) for s in client.submitted] == [1, 2, 4, 8, 16, 32, 8]
    assert [s.policy for s in client.submitted] == ["chunked"] * 6 + ["static"]
    settled = store.predictions(LEARNER, "batch_size")
    assert len(settled) == 2 and all(p.answer is not None for p in settled)
    shown = all_text(at)
    assert translate("en", "predict.outcome") in shown
    assert "too high" in shown or "too low" in shown or "Spot on" in shown
    assert translate("en", "quiz.from_your_run") in shown
    assert "C12" in shown and "C15" in shown


def test_every_figure_has_a_name_a_table_and_a_badge(studied) -> None:
    for lang in ("en", "zh"):
        at = studied(PAGE, "batch_size", 3, lang=lang)
        charts = at.get("plotly_chart")
        assert len(charts) == 5
        assert all(len(chart.proto.alt) > 20 for chart in charts)
        assert len(at.dataframe) >= len(charts)
        shown = "\n".join(m.value for m in at.markdown)
        for kind, least in (("measured", 4), ("modelled", 2), ("spec", 2)):
            assert shown.count(f"{translate(lang, f'common.badge_{kind}')}]") >= least
        cells = [str(cell) for table in at.table for cell in table.value.to_numpy().ravel()]
        assert any(translate(lang, "common.badge_measured") in cell for cell in cells)


def test_the_same_on_another_device_is_a_choice_that_travels_in_the_link(studied) -> None:
    at = studied(PAGE, "batch_size", 3, bs_device="h100", bs_model="llama-3-8b")
    titles = [s.value for s in at.subheader]
    assert any("Llama-3-8B" in title and "H100" in title for title in titles)
    at.selectbox(key="bs_model").set_value("llama-3-70b").run()
    assert not at.exception
    assert "does not fit" in all_text(at)
    assert at.query_params["bs_model"] == "llama-3-70b"


def test_pictures_of_another_context_say_so(studied) -> None:
    at = studied(PAGE, "batch_size", 3, bs_context="128")
    assert translate("en", "batch_size.other_context", n=16) in [i.value for i in at.info]
    assert len(at.get("plotly_chart")) == 5


def test_the_points_appear_as_they_arrive(lab, client: FakeClient) -> None:
    at = start(predict(lab(PAGE, lang="en"), 3), "batch_size")
    seen = set()
    for _ in range(60):
        if not any(str(b.key).startswith("stop_") for b in at.button):
            break
        seen.add(len(at.get("plotly_chart")))
        at.run()
    assert seen == {0, 1}
