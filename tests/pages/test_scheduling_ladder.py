"""The scheduling-ladder page: five Runs under one button, the code that made them, and why a request waited."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from lessons.scheduling_ladder.rungs import refused_steps, rungs
from lessons.scheduling_ladder.scenarios import ORDER, RUNGS
from pages._ui import policy_source
from pages._ui.i18n import translate
from tests.pages.fake_client import FakeClient
from tests.pages.test_lessons import LEARNER, finish, predict, start
from tests.pages.test_smoke import all_text

PAGE = "p_scheduling_ladder.py"
ID = "scheduling_ladder"


def climb(lab, **query: str) -> AppTest:
    return finish(start(predict(lab(PAGE, lang="en", **query), 3), ID), most=40)


def test_all_five_policies_serve_one_workload_under_the_same_limits(lab, client: FakeClient, store) -> None:
    at = climb(lab, sl_blocks="46")
    assert not at.exception and not at.error
    assert [s.policy for s in client.submitted] == list(RUNGS)
    assert len({s.limits.model_dump_json() for s in client.submitted}) == 1
    assert len({str(s.requests) for s in client.submitted}) == 1
    assert client.submitted[0].limits.num_blocks == 46
    settled = store.predictions(LEARNER, ID)
    assert {p.prediction_id for p in settled} == {"ladder_gain", "best_rung"}
    assert all(p.answer is not None for p in settled)
    assert translate("en", "quiz.from_your_run") in all_text(at)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_table_figures_and_code_follow_the_runs(lab, client: FakeClient, store, lang: str) -> None:
    climb(lab)
    at = lab(PAGE, lang=lang)
    assert not at.exception
    found = rungs(store.latest_runs(LEARNER, ID))
    shown = at.table[0].value
    padding = shown[shown.iloc[:, 0] == translate(lang, f"{ID}.row_padding")].iloc[0, 1:]
    assert [int(n.replace(",", "")) for n in padding] == [rung.padding_tokens for rung in found.values()]
    charts = at.get("plotly_chart")
    assert len(charts) == len(at.dataframe) == 2
    assert all(len(chart.proto.alt) > 20 for chart in charts)
    for policy in ("static", "orca", "cache_aware"):
        at.segmented_control(key="sl_rung").set_value(policy).run()
        assert not at.exception
        code = [block.value for block in at.code]
        if policy == "static":
            assert policy_source.source("static").strip() in code
        else:
            assert policy_source.difference(policy, RUNGS[RUNGS.index(policy) - 1]) in code
            at.segmented_control(key=f"sl_code:{policy}").set_value("source").run()
            assert policy_source.source(policy).strip() in [block.value for block in at.code]


def test_why_a_request_waited_is_answered_from_its_refusals(lab, store) -> None:
    climb(lab)
    at = lab(PAGE, lang="en")
    runs = store.latest_runs(LEARNER, ID)
    for request_id in ("C1", "S1", "T3"):
        assert request_id in ORDER
        at.segmented_control(key="sl_request").set_value(request_id).run()
        answers = next(
            m.value for m in at.markdown if m.value.startswith(f"- **{translate('en', f'{ID}.part_static')}")
        )
        for policy, line in zip(RUNGS, answers.splitlines(), strict=True):
            total = refused_steps(runs[policy], request_id).total()
            assert (f"Refused in {total} steps" in line) if total else ("never refused" in line)


def test_other_settings_are_named(lab) -> None:
    climb(lab)
    at = lab(PAGE, lang="en", sl_budget="128")
    assert translate("en", f"{ID}.other_settings", budget=64, blocks=23) in [i.value for i in at.info]


# ------------------------------------------------------------------ the code beside the Run
def test_the_difference_is_of_the_real_files() -> None:
    changed = policy_source.difference("orca", "static").splitlines()
    assert any(line.startswith("-") and "batch_not_drained" in line for line in changed)
    assert any(line.startswith("+") and "fits_budget" in line for line in changed)
    kept = policy_source.source("chunked")
    for line in policy_source.difference("chunked", "paged").splitlines():
        if line.startswith("+") and not line.startswith("+++"):
            assert line[1:] in kept


def test_a_policy_that_builds_on_the_one_below_shows_only_what_it_says_itself() -> None:
    assert policy_source.extends("cache_aware", "chunked") and not policy_source.extends("chunked", "paged")
    lines = policy_source.difference("cache_aware", "chunked").splitlines()
    assert all(line.startswith("+") for line in lines)
    assert any("def candidates" in line for line in lines) and not any("def schedule" in line for line in lines)
