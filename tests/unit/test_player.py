"""The timeline player's data, table and summary: they say what the Run says, in both languages, and stay small."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from streamlit.testing.v1 import AppTest

from engine.lab.player.payload import EVENTS, PHASES, REASONS, partial_run, player_strings, timeline_payload
from engine.lab.player.twin import timeline_summary, timeline_table
from engine.lab.scenario import Scenario
from tests.unit.player_runs import eventful_run, long_run, make_request, make_run, make_step

FOLDER = Path("engine/lab/player")


def decoded(columns: dict[str, list]) -> list[dict]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def replayed(sent: dict) -> list[list[tuple]]:
    """From the payload back to what each step scheduled, as (request id, phase, start, tokens, cached)."""
    steps: list[list[tuple]] = [[] for _ in sent["steps"]["number"]]
    for s in decoded(sent["spans"]):
        for k in range(s["from"], s["to"]):
            start = s["start"] + (k - s["from"] if PHASES[s["phase"]] == "decode" else 0)
            name = sent["requests"]["id"][s["request"]]
            steps[k].append((name, PHASES[s["phase"]], start, s["tokens"], s["cached"]))
    return steps


@pytest.mark.parametrize("run", [eventful_run(), long_run(200, 12, 4)], ids=["eventful", "long"])
def test_spans_replay_to_the_recorded_schedule(run):
    sent = timeline_payload([("a", run)], "en")["runs"][0]
    for step, got in zip(run.steps, replayed(sent), strict=True):
        want = [(s.request_id, s.phase, s.start, s.num_tokens, s.num_cached_tokens) for s in step.scheduled]
        assert sorted(got) == sorted(want), f"step {step.step}"


@pytest.mark.parametrize("run", [eventful_run(), long_run(200, 12, 4)], ids=["eventful", "long"])
def test_waits_and_reasons_replay_to_the_recorded_ones(run):
    sent = timeline_payload([("a", run)], "en")["runs"][0]
    got: list[list[tuple]] = [[] for _ in run.steps]
    for w in decoded(sent["waits"]):
        for k in range(w["from"], w["to"]):
            got[k].append((sent["requests"]["id"][w["request"]], REASONS[w["why"]]))
    for step, waits in zip(run.steps, got, strict=True):
        assert sorted(waits) == sorted((r.request_id, r.why) for r in step.refused)


def test_times_are_exact_to_the_microsecond_however_long_the_run():
    run = long_run(900, 12, 4)
    columns = timeline_payload([("a", run)], "en")["runs"][0]["steps"]
    clock = 0
    for step, delta, length in zip(run.steps, columns["begin_delta"], columns["length"], strict=True):
        clock += delta
        assert clock == round(step.t_begin_s * 1e6)
        assert clock + length == round(step.t_end_s * 1e6)


def test_events_name_preemption_first_token_and_end():
    sent = timeline_payload([("a", eventful_run())], "en")["runs"][0]
    events = {(e["step"], EVENTS[e["kind"]], sent["requests"]["id"][e["request"]]) for e in decoded(sent["events"])}
    assert {(3, "preempted", "B"), (1, "token", "A"), (5, "token", "B"), (4, "length", "A"), (5, "abort", "C"),
            (8, "stop", "B"), (9, "admitted", "D")} <= events  # fmt: skip
    assert (2, "token", "A") not in events, "a decode step shows its token by its tick"


def test_merging_stops_where_a_position_is_skipped():
    """A decode span that jumps (a lost token) must not be drawn as an unbroken one."""
    steps = [make_step(k, k * 0.01, [("A", "decode", start, 1)]) for k, start in enumerate([5, 6, 8, 9])]
    sent = timeline_payload([("a", make_run(steps, []))], "en")["runs"][0]
    assert [(s["from"], s["to"], s["start"]) for s in decoded(sent["spans"])] == [(0, 2, 5), (2, 4, 8)]


def test_payload_is_small():
    usual = long_run(300, 8, 4, tokens=140)
    assert len(usual.steps) >= 290
    assert len(json.dumps(timeline_payload([("a", usual), ("b", usual)], "zh"))) < 150_000
    long = long_run(5_000, 64, 64, tokens=4_900)
    assert len(long.steps) > 4_900
    assert len(json.dumps(timeline_payload([("a", long)], "en"))) < 400_000


def test_one_to_five_runs_only():
    run = eventful_run()
    for runs in ([], [("a", run)] * 6):
        with pytest.raises(ValueError, match="1 to 5"):
            timeline_payload(runs, "en")


def test_text_pieces_stand_beside_their_run_in_row_order():
    payload = timeline_payload([("a", eventful_run()), ("b", eventful_run())], "en", texts=[None, {"B": ["x", "<b>"]}])
    assert payload["runs"][0]["pieces"] is None
    assert payload["runs"][1]["pieces"] == [[], ["x", "<b>"], [], []]


def test_live_run_has_every_row_from_the_start_and_grows():
    scenario = Scenario.parse(
        {"requests": [{"prompt": "x", "request_id": "A"}, {"prompt": "y", "arrival_s": 0.5}],
         "limits": {"max_requests": 2, "num_blocks": 32}}
    )  # fmt: skip
    steps = [make_step(k, k * 0.01, [("A", "decode", 5 + k, 1)]) for k in range(4)]
    for n in range(5):
        payload = timeline_payload([("now", partial_run(scenario, steps[:n], "run-1"))], "en", live=True)
        sent = payload["runs"][0]
        assert payload["live"] and not payload["autoplay"]
        assert sent["requests"] == {"id": ["A", "r1"], "arrival": [0, 500_000]}
        assert len(sent["steps"]["number"]) == n
        assert (sent["max_requests"], sent["num_blocks"]) == (2, 32)


def test_table_has_a_row_per_step_with_everything_in_it():
    run = eventful_run()
    table = timeline_table(run, "en")
    assert list(table["Step"]) == [s.step for s in run.steps]
    row = table.iloc[5]
    assert (row["Prefill"], row["Recompute"], row["Decode"], row["Padding"]) == ("", "B 10", "C", "A")
    assert table.iloc[3]["Preempted"] == "B"
    assert table.iloc[3]["Waiting"] == "B: no free block, C: no free block"
    assert table.iloc[9]["Begin (ms)"] == 150
    assert table.iloc[4]["KV blocks in use"] == 4 and table.iloc[4]["KV blocks cached"] == 1
    assert timeline_table(run, "zh")["等待"].iloc[0] == "B: 无空闲块"


def test_summary_names_every_request_its_wait_and_why():
    text = timeline_summary([("static", eventful_run())], "en")
    lines = {line[2:].split("**")[1]: line for line in text.splitlines() if line.startswith("- ")}
    assert set(lines) == {"A", "B", "C", "D"}
    assert "waited 30 ms in all (30 ms because no KV block is free)" in lines["B"]
    assert "waited 36 ms in all" in lines["C"] and "6 ms because a step was still running" in lines["C"]
    assert "20 ms because the batch already holds as many requests as allowed" in lines["C"]
    assert "waited 0 ms in all, had its first token 10 ms after arriving" in lines["D"]
    assert "It was preempted once." in lines["B"] and "preempted" not in lines["A"]
    assert "6 tokens (stop)" in lines["B"] and "aborted" in lines["C"]
    assert "4 of 63 computed rows of tokens were padding" in text
    assert "At most 4 of 64 KV blocks" in text


def test_summary_compares_two_runs():
    fast = make_run([make_step(0, 0.0, [("A", "prefill", 0, 4)], length_s=0.5)], [], "run-1")
    slow = make_run([make_step(0, 0.0, [("A", "prefill", 0, 4)], length_s=1.25)], [], "run-2")
    assert "chunked ends 750 ms before static: 2.50× as fast." in timeline_summary(
        [("static", slow), ("chunked", fast)], "en"
    )
    assert "chunked 比 static 早 750 ms 结束" in timeline_summary([("static", slow), ("chunked", fast)], "zh")
    assert "Both end at 500 ms." in timeline_summary([("a", fast), ("b", fast)], "en")


def test_summary_survives_a_run_without_steps_or_with_open_requests():
    assert "No step has been recorded yet" in timeline_summary([("a", make_run([], []))], "en")
    open_request = make_request("A", 0.0, 0.0, 0.0, 0.0)
    open_request = open_request.model_copy(update={"completion_s": None, "finish_reason": None, "first_token_s": None})
    text = timeline_summary([("a", make_run([make_step(0, 0.0, [("A", "prefill", 0, 4)])], [open_request]))], "en")
    assert "has not ended" in text


def test_names_cannot_become_markup():
    run = make_run([make_step(0, 0.0, [("a_b_*c", "prefill", 0, 4)])], [make_request("a_b_*c", 0.0, 0.0, 0.01, 0.01)])
    assert r"a\_b\_\*c" in timeline_summary([("<i>x</i>", run)], "en")
    assert "<i>" not in timeline_summary([("<i>x</i>", run)], "en")


def test_catalogues_match_and_hold_every_string_the_script_asks_for():
    en, zh = (yaml.safe_load(Path(f"engine/lab/text/{lang}/player.yaml").read_text("utf-8")) for lang in ("en", "zh"))
    assert list(en) == list(zh)
    for key in en:
        places = [set(re.findall(r"{(\w+)}", text[key])) for text in (en, zh)]
        assert places[0] == places[1], key
    assert set(player_strings("zh")) == set(zh)
    script = "\n".join(p.read_text("utf-8") for p in sorted((FOLDER / "js").glob("*.js")))
    asked = set(re.findall(r'\.say\("(\w+)"', script)) | set(re.findall(r"\btext\.(\w+)\b", script))
    asked -= {"length", "slice"}
    assert asked and asked <= set(en), asked - set(en)
    plural = set(re.findall(r'counted\("(\w+)"', script)) | set(re.findall(r'add\("\w+", "(\w+)"', script))
    assert plural and {f"{key}_{number}" for key in plural for number in ("one", "other")} <= set(en)
    for reason in (*REASONS, "not_its_turn"):
        assert f"why_{reason}" in en and f"short_{reason}" in en
    for phase in PHASES:
        assert f"legend_{phase}" in en


def test_script_and_payload_agree_on_the_codes():
    model = (FOLDER / "js" / "10_model.js").read_text("utf-8")
    for name, codes in (("PHASES", PHASES), ("REASONS", REASONS), ("EVENTS", EVENTS)):
        listed = re.search(rf"const {name} = (\[.*?\]);", model).group(1)
        assert tuple(json.loads(listed)) == codes


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_script_is_valid_as_one_module(tmp_path):
    script = tmp_path / "player.mjs"
    script.write_text("\n".join(p.read_text("utf-8") for p in sorted((FOLDER / "js").glob("*.js"))), encoding="utf-8")
    done = subprocess.run(["node", "--check", str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def player_app():
    import streamlit as st

    from pages._ui.player import timeline_player
    from tests.unit.player_runs import eventful_run

    lang = st.session_state.get("lang", "en")
    timeline_player([("static", eventful_run())], lang=lang, key="p", live=st.session_state.get("live", False))


def test_page_shows_the_twin_when_the_box_is_opened():
    app = AppTest.from_function(player_app, default_timeout=20).run()
    assert not app.exception
    assert len(app.get("bidi_component")) == 1
    assert not app.dataframe, "the table is sent only when someone opens the box"
    app.session_state["p_twin"] = True
    app.run()
    assert not app.exception
    assert len(app.dataframe[0].value) == 11
    assert any("waited 30 ms" in m.value for m in app.markdown)


def test_live_page_sends_no_table():
    app = AppTest.from_function(player_app, default_timeout=20)
    app.session_state["live"] = True
    app.run()
    assert not app.exception
    assert not app.expander
