"""The KV cache lesson, from the locked prediction to the quiz; block map and calculator against the engine's own."""

from __future__ import annotations

import json

import pytest

from engine.lab.catalogue import device, model
from engine.lab.replay import block_snapshots
from engine.lab.work import kv_cache_bytes, num_requests_that_fit, with_kv_heads
from lessons.kv_cache.scenarios import PARTS, one_request
from pages._ui import block_map, kv_calculator
from pages._ui.i18n import translate
from pages._ui.units import byte_count
from tests.pages.fake_client import FakeClient
from tests.pages.test_lessons import LEARNER, finish, predict, run_lesson, start
from tests.pages.test_smoke import CJK, all_text
from tests.unit.lab_runs import make_run, preempting_scenario, prompt
from tests.unit.lesson_runs import serve

ID, PAGE = "kv_cache", "p_kv_cache.py"


def test_from_the_prediction_to_the_pictures(lab, client: FakeClient, store) -> None:
    at = run_lesson(lab, ID, PAGE)
    assert not at.exception and not at.error
    assert client.submitted == [one_request(32, 32, 16, part) for part in PARTS]
    runs = store.latest_runs(LEARNER, ID)
    assert set(runs) == {"cached", "uncached"}
    assert runs["uncached"].steps[-1].work.tokens == 63
    answers = {p.prediction_id: p.answer for p in store.predictions(LEARNER, ID)}
    fake = runs["cached"].header.model
    assert answers["kv_kb_per_token"] == 2 * fake.num_layers * fake.num_kv_heads * fake.head_dim * 4 / 1e3
    assert answers["slowdown"] > 1
    shown = all_text(at)
    assert translate("en", "kv_cache.same", n=32) in shown
    for chart in at.get("plotly_chart"):
        assert chart.proto.alt and json.loads(chart.proto.spec)["data"]
    assert len(at.get("plotly_chart")) == 3
    assert len(at.dataframe) >= 4, "every figure and the map have their tables"


def test_the_pool_is_shown_while_it_fills(lab, client: FakeClient) -> None:
    client.num_running = 4
    at = start(predict(lab(PAGE, lang="en")), ID)
    at.run()
    shown = all_text(at)
    assert "In the cache: **" in shown and "The pool holds" in shown
    assert any('role="img"' in block.proto.body for block in at.get("html"))
    finish(at)


def test_the_block_map_follows_the_slider(lab, store) -> None:
    for part in PARTS:
        store.save_run(serve(one_request(32, 24, 4, part)), {}, ID, store.learner(LEARNER), role=part, experiment="x")
    at = lab(PAGE, lang="en", kv_block="4")
    words = {"used": 14, "total": 64, "slots": 56, "filled": 54, "empty": 2}
    assert translate("en", "kv_cache.map_alt", **words) in all_text(at)
    at.slider(key="kv_map_token").set_value(24).run()
    assert not at.exception
    assert translate("en", "kv_cache.map_done", total=64) in all_text(at)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_stored_runs_and_the_calculator_need_no_engine(lab, client: FakeClient, store, lang: str) -> None:
    for part in PARTS:
        store.save_run(serve(one_request(16, 8, 64, part)), {}, ID, store.learner(LEARNER), role=part, experiment="x")
    client.down = True
    at = lab(PAGE, lang=lang)
    assert not at.exception
    shown = all_text(at)
    assert bool(CJK.search(shown)) == (lang == "zh")
    assert translate(lang, "kv_cache.compare_note") in shown
    assert translate(lang, "quiz.from_your_run") in shown
    assert "524,288" in shown


def test_the_calculator_works_before_any_run(lab) -> None:
    at = lab(PAGE, lang="en", kv_model="llama-3-8b", kv_positions="8192", kv_card="h100")
    assert not at.exception
    sizes, fits = at.table[0].value, at.table[1].value
    info = model("llama-3-8b").info("bfloat16")
    built = sizes[sizes.iloc[:, 0].str.contains("as built")].iloc[0]
    assert "GQA, 8 KV heads" in built.iloc[0]
    assert list(built.iloc[1:]) == [byte_count(kv_cache_bytes(info, 8192, size), "en") for size in (2.0, 1.0, 0.5)]
    mha = with_kv_heads(info, 32)
    expected = num_requests_that_fit(mha, device("h100").memory_gb.value * 1e9, 8192, 2.0, 2e9)
    assert fits.iloc[0, 1] == f"{expected:,}"
    at.select_slider(key="kv_positions").set_value(131_072).run()
    assert "8,192 positions" in all_text(at), "longer than the model was made for"


def test_a_model_of_the_lab_is_taken_in_16_bits(lab) -> None:
    at = lab(PAGE, lang="en", kv_model="here")
    assert not at.exception
    assert translate("en", "kv_calculator.here", name="fake") in at.selectbox(key="kv_model").options


def test_nonsense_in_a_link_is_said(lab) -> None:
    at = lab(PAGE, lang="en", kv_block="5", kv_output="1000", kv_card="<b>", kv_positions="3")
    assert not at.exception
    assert len([w for w in at.warning if "kv_" in w.value]) == 4


# ------------------------------------------------------------------------------------------------- parts alone
@pytest.mark.parametrize("scenario", [preempting_scenario()])
def test_the_cells_are_the_engines_own_blocks_after_every_step(scenario: dict) -> None:
    run = make_run(scenario)
    for index, snapshot in enumerate(block_snapshots(run), start=1):
        found = block_map.cells(run.header.num_blocks, run.header.block_size, run.steps[:index])
        assert [cell.state for cell in found] == [snapshot.state(b) for b in range(run.header.num_blocks)]
        assert {cell.block_id: cell.users for cell in block_map.in_use(found)} == snapshot.users
        held = dict.fromkeys(snapshot.tables, 0)
        for cell in block_map.in_use(found):
            held[cell.users[0]] += cell.filled
        for step in (run.steps[index - 1],):
            for row in step.scheduled:
                if row.request_id in held:
                    assert held[row.request_id] == row.start + row.num_tokens


def test_shared_and_cached_blocks_look_different() -> None:
    scenario = {
        "policy": "chunked",
        "block_size": 4,
        "limits": {"max_requests": 4, "max_batch_tokens": 64, "num_blocks": 16, "prefix_cache": "hash"},
        "requests": [
            {"request_id": "A", "prompt_token_ids": prompt(9), "max_tokens": 6, "ignore_eos": True},
            {"request_id": "B", "prompt_token_ids": prompt(9), "max_tokens": 6, "arrival_s": 0.02, "ignore_eos": True},
        ],
    }
    run = make_run(scenario)
    states = [{c.state for c in block_map.cells(16, 4, run.steps[:n])} for n in range(1, len(run.steps) + 1)]
    assert {"shared"} <= set.union(*states)
    assert states[-1] == {"cached", "free"}
    marks = {state: block_map.html([block_map.Cell(0, state, ("A",), 4)], 4, "x") for state in block_map.STATES}
    assert "double" in marks["shared"] and "dotted" in marks["cached"]


def test_variants_are_named_once_each() -> None:
    kinds = {
        m: [(v.kind, v.built) for v in kv_calculator.variants(model(m).info())] for m in ("llama-2-7b", "llama-3-8b")
    }
    assert kinds["llama-2-7b"] == [("mha", True), ("mqa", False)]
    assert kinds["llama-3-8b"] == [("mha", False), ("gqa", True), ("mqa", False)]
