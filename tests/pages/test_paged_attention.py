"""The PagedAttention lesson, from the locked prediction to the quiz; its tables and charts against the engine's own."""

from __future__ import annotations

import json

import pytest

from engine.lab.replay import block_snapshots
from lessons.paged_attention.facts import three
from lessons.paged_attention.scenarios import PARTS, museum
from pages._ui import block_tables
from pages._ui.i18n import translate
from tests.pages.fake_client import FakeClient
from tests.pages.test_lessons import LEARNER, finish, predict, run_lesson, start
from tests.pages.test_smoke import CJK, all_text
from tests.unit.lesson_cases import paged_attention as cases

ID, PAGE = "paged_attention", "p_paged_attention.py"


def test_from_the_prediction_to_the_pictures(lab, client: FakeClient, store) -> None:
    at = run_lesson(lab, ID, PAGE)
    assert not at.exception and not at.error
    assert client.submitted == [museum(part, 16, 768, 128) for part in PARTS]
    runs = store.latest_runs(LEARNER, ID)
    assert set(runs) == set(PARTS)
    found = three(runs)
    answers = {p.prediction_id: p.answer for p in store.predictions(LEARNER, ID)}
    assert answers == {"at_once": found.orca.peak, "used_percent": pytest.approx(100 * found.orca.share_used)}
    for chart in at.get("plotly_chart"):
        assert chart.proto.alt and json.loads(chart.proto.spec)["data"]
    assert len(at.get("plotly_chart")) == 3
    assert len(at.dataframe) >= 5, "every figure, the block tables and the map have their tables"
    assert translate("en", "paged_attention.compare_note") in all_text(at)


def test_pool_and_block_tables_are_shown_while_it_runs(lab, client: FakeClient) -> None:
    client.num_running = 4
    at = start(predict(lab(PAGE, lang="en")), ID)
    at.run()
    assert "requests run, " in all_text(at)
    assert any("r1" in block.value and "│" in block.value for block in at.code), "the block tables as text"
    assert any('role="img"' in block.proto.body for block in at.get("html"))
    finish(at, most=40)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_tables_and_events_follow_run_and_step(lab, client: FakeClient, store, lang: str) -> None:
    runs = cases.runs(eos=cases.TALKATIVE)
    for part, run in runs.items():
        store.save_run(run, {}, ID, store.learner(LEARNER), role=part, experiment="x")
    client.down = True
    at = lab(PAGE, lang=lang)
    assert not at.exception
    assert bool(CJK.search(all_text(at))) == (lang == "zh")
    hit = runs["paged"].steps[three(runs).paged.losses[0].step].preempted
    assert translate(lang, "paged_attention.event_preempted", who=", ".join(hit)) in all_text(at)
    if lang != "en":
        return  # the test harness finds a choice by its English name only
    at.segmented_control(key="pa_part").set_value("shared").run()
    at.slider(key="pa_step_shared").set_value(1).run()
    assert not at.exception
    shares = [e for e in runs["shared"].steps[1].block_events if e.op == "share"]
    assert shares and translate(lang, "block_tables.op_share") in all_text(at)
    assert f"{shares[0].request_id}: {shares[0].block_id}" in all_text(at)


def test_the_tables_are_the_engines_own_after_every_step() -> None:
    for run in cases.runs(eos=cases.TALKATIVE).values():
        for index, snapshot in enumerate(block_snapshots(run), start=1):
            if index % 7:
                continue
            found = block_tables.tables(run.header.num_blocks, run.header.block_size, run.steps[:index])
            assert {table.request_id: table.block_ids for table in found} == snapshot.tables
            for table in found:
                assert all((len(snapshot.users[b]) > 1) == (b in table.shared) for b in table.block_ids)
                assert table.num_filled + table.num_empty == len(table.block_ids) * run.header.block_size


def test_nonsense_in_a_link_is_said(lab) -> None:
    at = lab(PAGE, lang="en", pa_block="5", pa_pool="-1", pa_limit="many")
    assert not at.exception
    assert len([w for w in at.warning if "pa_" in w.value]) == 3
