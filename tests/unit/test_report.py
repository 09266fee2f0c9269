"""The HTML report of a Run: it needs nothing but itself, says what the Run says, and lets no text become markup."""

from __future__ import annotations

import html
import json
import re

import pytest

from engine.lab.imports import import_run
from engine.lab.key_figures import key_figures, phase_times
from engine.lab.metrics import all_request_metrics
from engine.lab.player.payload import timeline_payload
from engine.lab.records import Run
from engine.lab.report import Cell, Code, Facts, Page, Section, Table, Text, page, run_report, run_sections
from tests.unit.lab_runs import make_run, preempting_scenario
from tests.unit.player_runs import eventful_run

NASTY = "</script><script>alert(1)</script><!-- & \u2028 <b>x</b>"
CJK = re.compile(r"[\u4e00-\u9fff]")


@pytest.fixture(scope="module")
def run() -> Run:
    made = make_run(preempting_scenario())
    made.header.device.read_gbps, made.header.device.matmul_tflops = 20.0, 0.1
    return made


def data_of(text: str) -> dict:
    return json.loads(re.search(r'id="timeline-data">(.*?)</script>', text, re.DOTALL).group(1))


def cells(text: str) -> list[list[str]]:
    """Every table row as plain text."""
    rows = re.findall(r"<tr>(.*?)</tr>", text, re.DOTALL)
    parts = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [[html.unescape(re.sub(r"<[^>]+>", "", cell)) for cell in row] for row in parts]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_it_loads_nothing_from_anywhere(run: Run, lang: str) -> None:
    text = run_report(run, lang)
    addresses = set(re.findall(r"https?://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}  # a name, never fetched
    assert addresses == set()
    assert (
        re.findall(r"<(?:link|img|iframe|object)\b|\b(?:src|href)\s*=|@import|url\(|\bfetch\(|\bimport\(", text) == []
    )
    assert "default-src 'none'" in text


@pytest.mark.parametrize(("lang", "declared"), [("en", "en"), ("zh", "zh-CN")])
def test_it_is_in_its_language(run: Run, lang: str, declared: str) -> None:
    text = run_report(run, lang)
    assert f'<html lang="{declared}">' in text
    assert bool(CJK.search(re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL))) == (lang == "zh")
    assert data_of(text)["lang"] == lang


def test_the_player_gets_the_payload_of_the_run_and_a_table_stands_beside_it(run: Run) -> None:
    text = run_report(run, "en")
    label = "policy paged" if run.header.scenario["policy"] == "paged" else f"policy {run.header.scenario['policy']}"
    sent = timeline_payload([(label, run)], "en", autoplay=False)
    assert data_of(text) == json.loads(json.dumps(sent))
    steps = [row for row in cells(text) if len(row) == 12 and row[0].isdigit()]
    assert [int(row[0]) for row in steps] == [step.step for step in run.steps]
    assert "<noscript>" in text and text.count("<caption>") == text.count("<table>") == 4
    assert text.count('role="region" tabindex="0" aria-label=') == 4


def test_every_figure_and_every_request_is_there_with_its_badge(run: Run) -> None:
    rows = cells(run_report(run, "en"))
    for figure in key_figures(run):
        assert [figure.text("en") + " measured"] in [row[1:] for row in rows], figure.name
    for name, found in all_request_metrics(run).items():
        row = next(row for row in rows if row[0] == name and len(row) == 11)
        assert row[2:4] == [str(found.num_prompt_tokens), str(found.num_output_tokens)]
    assert any(found.num_preemptions for found in all_request_metrics(run).values())
    decode = next(row for row in rows if row[0] == "decode only")
    assert decode[2].endswith(" measured") and decode[3].endswith(" modelled")


def test_the_modelled_time_is_the_roofline_of_every_step(run: Run) -> None:
    total = sum(
        max((w.weight_bytes + w.kv_read_bytes + w.kv_write_bytes) / 20e9, w.flops / 0.1e12)
        for w in (step.work for step in run.steps)
    )
    found = phase_times(run)
    assert sum(phase.modelled_s for phase in found) == pytest.approx(total)
    assert sum(phase.num_steps for phase in found) == len(run.steps)
    assert all(
        phase.modelled_s is None and phase.factor is None for phase in phase_times(make_run(preempting_scenario()))
    )


def test_nothing_that_was_typed_becomes_markup(run: Run) -> None:
    forged = run.model_copy(deep=True)
    forged.header.device.name = forged.header.model.name = NASTY
    forged.header.scenario["name"] = NASTY
    forged.header.scenario["limits"][NASTY] = NASTY
    first = forged.requests[0].request_id
    text = run_report(forged, "en", {first: [NASTY]})
    assert text.count("<script") == text.count("</script>") == 2  # the player's data and the player
    assert "<b>x</b>" not in text and "<!--" not in text
    assert data_of(text)["runs"][0]["pieces"][0] == [NASTY]
    assert html.escape(NASTY, quote=False) in text


def test_two_runs_stand_side_by_side_with_their_ratio() -> None:
    first, second = make_run(preempting_scenario()), make_run(preempting_scenario())
    figures = next(s for s in run_sections([("a", first), ("b", second)], "en") if s.title == "Key figures")
    row = next(row for row in figures.blocks[0].rows if row[0] == "Steps")
    assert row == ["Steps", Cell(str(len(first.steps)), "measured"), Cell(str(len(second.steps)), "measured"), "1×"]
    assert figures.blocks[0].columns[-1] == "b ÷ a"


def test_a_run_without_steps_says_so() -> None:
    bare = eventful_run().model_copy(update={"steps": []})
    text = run_report(bare, "en")
    assert "its steps are not known" in text and "<script" not in text


def test_what_cannot_be_seen_from_outside_is_a_dash_and_not_a_measured_zero() -> None:
    result = {
        "model_id": "m", "input_lens": [4, 5], "output_lens": [2, 3], "ttfts": [0.1, 0.2], "request_rate": 4.0,
        "itls": [[0.05], [0.05, 0.06]], "generated_texts": ["a", "b"], "errors": ["", ""], "request_throughput": 1.0,
    }  # fmt: skip
    outside = import_run(json.dumps(result), "bench.json", "run-000000000000")
    known = {figure.name: figure.value for figure in key_figures(outside)}
    assert known["ttft_mean"] == pytest.approx(0.15) and known["output_tokens"] == 5
    assert {known[name] for name in ("steps", "peak_blocks", "preemptions", "throughput", "queue_mean")} == {None}
    for lang in ("en", "zh"):
        assert ["–"] in [row[1:] for row in cells(run_report(outside, lang))]


def test_blocks_are_escaped_everywhere() -> None:
    blocks = [
        Text(Cell(NASTY, "spec"), strong=True),
        Facts([(NASTY, NASTY)]),
        Table(NASTY, [NASTY, NASTY], [[NASTY, Cell(NASTY, "measured")]], folded=True),
        Code(NASTY, NASTY),
    ]
    text = page(Page("en", NASTY, NASTY, [Section(NASTY, blocks)], foot=NASTY, badges=("spec",)))
    assert "<script" not in text and "<b>" not in text
    assert text.count(html.escape(NASTY, quote=False)) >= 13
