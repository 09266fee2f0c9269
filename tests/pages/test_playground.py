"""The playground: form and JSON in step, a short link, run and cancel, files in and out, two Runs, and what if."""

from __future__ import annotations

import json
import re

import pytest
from streamlit.testing.v1 import AppTest

from engine.lab.records import Run
from engine.lab.scenario import Scenario
from pages._ui.i18n import translate
from pages._ui.playground_form import STARTS, start
from tests.pages.fake_client import FakeClient, serve
from tests.pages.test_lessons import LEARNER, finish
from tests.pages.test_smoke import CJK, all_text
from tests.unit.lab_runs import chunked_scenario, make_run, preempting_scenario, static_scenario

PAGE = "p_playground.py"


def json_of(at: AppTest) -> dict:
    return json.loads(at.text_area(key="pg_json").value)


def write(at: AppTest, data: object) -> AppTest:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return at.text_area(key="pg_json").set_value(text).run()


def run_it(at: AppTest, name: str = "playground") -> AppTest:
    return finish(at.button(key=f"run_{name}").click().run())


def upload(at: AppTest, content: str | bytes, name: str = "run.jsonl") -> AppTest:
    raw = content.encode() if isinstance(content, str) else content
    return at.file_uploader(key="pg_file").set_value((name, raw, "application/jsonl")).run()


# ------------------------------------------------------------------------------------------------- form and JSON
def test_a_field_of_the_form_stands_in_the_json_at_once(lab) -> None:
    at = lab(PAGE, lang="en")
    assert Scenario.parse(json_of(at)).policy == "chunked" and "policy" not in json_of(at)
    at.selectbox(key="pg_policy").set_value("static").run()
    at.number_input(key="pg_num_blocks").set_value(77).run()
    assert json_of(at)["policy"] == "static"
    assert json_of(at)["limits"]["num_blocks"] == 77
    at.selectbox(key="pg_policy").set_value("chunked").run()
    assert "policy" not in json_of(at), "a default need not stand there"


def test_json_fills_the_form_and_keeps_what_the_form_cannot_show(lab) -> None:
    at = lab(PAGE, lang="en")
    data = {
        "policy": "paged",
        "limits": {"num_blocks": 64, "prefix_cache": "radix"},
        "speculation": {"ngram": 2, "num_draft_tokens": 3},
        "requests": [{"prompt": "x", "stop": ["."], "top_p": 0.5}, {"prompt_token_ids": [1, 2, 3]}],
    }
    write(at, data)
    assert not at.exception and not at.error
    assert at.selectbox(key="pg_policy").value == "paged"
    assert at.number_input(key="pg_num_blocks").value == 64
    assert at.selectbox(key="pg_prefix_cache").value == "radix"
    assert at.number_input(key="pg_drafts").value == 3
    assert "requests\\[0\\]\\.stop" in all_text(at)
    at.number_input(key="pg_block_size").set_value(8).run()
    assert json_of(at) == {**data, "block_size": 8}


BAD_TEXTS = (
    ("{", "line 1, column 2"),
    ("[" * 20_000, "nested too deeply"),
    ("[]", "a scenario is a JSON object"),
    ({"requests": [{"prompt": "x", "max_tokens": 0}]}, "max\\_tokens is 0; allowed"),
    ({"requests": [{"prompt": "x"}], "polcy": "static"}, "did you mean policy?"),
    ({"policy": "fifo", "requests": [{"prompt": "x"}]}, "policy is"),
)


def test_bad_json_is_one_sentence_locks_the_form_and_loses_nothing(lab) -> None:
    at = lab(PAGE, lang="en")
    good = json_of(at)
    for text, words in BAD_TEXTS:
        write(at, text)
        assert not at.exception
        assert len(at.error) == 1 and words in at.error[0].value
        assert "<" not in at.error[0].value and "Traceback" not in at.error[0].value
        assert at.button(key="run_playground").disabled
        assert at.selectbox(key="pg_policy").disabled
        assert at.text_area(key="pg_json").value == (text if isinstance(text, str) else json.dumps(text))
    at.button(key="pg_back").click().run()
    assert not at.error and not at.button(key="run_playground").disabled
    assert json_of(at) == good


def test_on_a_chinese_page_what_is_wrong_is_said_in_chinese(lab) -> None:
    at = lab(PAGE, lang="zh")
    for text in [text for text, _ in BAD_TEXTS]:
        write(at, text)
        assert CJK.search(at.error[0].value) and "原话" not in at.error[0].value, at.error[0].value
    for content, _ in BAD_FILES:
        upload(at, content)
        said = at.error[-1].value
        english = re.sub(r"`[^`]*`", "", said.partition("原话（英文）")[0])  # details of a broken rule come as they are
        assert CJK.search(said) and not re.search(r"[a-z]{3,} [a-z]{2,} [a-z]{2,}", english), said


def test_a_bad_combination_in_the_form_does_not_lock_it(lab) -> None:
    at = lab(PAGE, lang="en")
    at.selectbox(key="pg_prefix_cache").set_value("hash").run()
    at.selectbox(key="pg_kv_cache").set_value("none").run()
    assert "a prefix cache needs kv\\_cache keep" in at.error[0].value
    at.selectbox(key="pg_kv_cache").set_value("keep").run()
    assert not at.error


def test_every_start_is_a_scenario_that_runs_to_its_end(lab) -> None:
    at = lab(PAGE, lang="zh").button(key="pg_start_shared").click().run()
    assert not at.exception and not at.error and not at.button(key="run_playground").disabled
    assert Scenario.parse(json_of(at)).limits.prefix_cache == "radix"
    for name in STARTS:
        for lang in ("en", "zh"):
            run = serve(Scenario.parse(start(name, lang)), "run-000000000000")
            assert all(r.finish_reason == "length" for r in run.requests)
    assert sum(r.num_preemptions for r in serve(Scenario.parse(start("tight", "en")), "run-1").requests) > 0
    shared = serve(Scenario.parse(start("shared", "en")), "run-1")
    assert sum(r.num_cached_tokens for r in shared.requests) > 0


def test_many_like_requests_are_made_from_four_numbers(lab) -> None:
    at = lab(PAGE, lang="en")
    at.number_input(key="pg_make_count").set_value(3)
    at.number_input(key="pg_make_gap").set_value(0.5)
    at.button(key="pg_make").click().run()
    made = Scenario.parse(json_of(at))
    assert [r.arrival_s for r in made.requests] == [0, 0.5, 1.0]
    assert {(r.num_prompt_tokens, r.max_tokens, r.ignore_eos) for r in made.requests} == {(32, 24, True)}


# ------------------------------------------------------------------------------------------------- link
def test_a_link_carries_the_scenario(lab) -> None:
    at = lab(PAGE, lang="en")
    at.selectbox(key="pg_policy").set_value("orca").run()
    link = at.query_params["pg"]
    link = link[0] if isinstance(link, list) else link
    assert re.fullmatch(r"[A-Za-z0-9_-]{20,1500}", link)
    other = lab(PAGE, lang="zh", pg=link)
    assert other.selectbox(key="pg_policy").value == "orca"
    assert json_of(other) == json_of(at)


def test_nonsense_in_a_link_is_said(lab) -> None:
    at = lab(PAGE, lang="en", pg="<b>nonsense</b>")
    assert not at.exception and not at.error
    assert len([w for w in at.warning if "pg" in w.value and "<" not in w.value]) == 1


def test_the_scenario_comes_back_after_another_page(lab) -> None:
    at = write(lab(PAGE, lang="en"), '{"requests": ')
    at.switch_page("p_home.py").run()
    at.switch_page(PAGE).run()
    assert at.text_area(key="pg_json").value == '{"requests": '
    assert at.error


# ------------------------------------------------------------------------------------------------- run and look
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_run_from_the_button_to_the_views(lab, client: FakeClient, lang: str) -> None:
    at = run_it(lab(PAGE, lang=lang))
    assert not at.exception and not at.error
    assert len(client.submitted) == 1
    shown = all_text(at)
    assert translate(lang, "report.figures") in shown
    assert bool(CJK.search(shown)) == (lang == "zh")
    assert len(at.get("bidi_component")) == 1
    assert len(at.get("download_button")) == 5
    figures = at.table[0].value
    assert figures.shape == (16, 2)
    assert f"{translate(lang, 'common.badge_measured')}]" in figures.columns[1]


def test_stop_cancels(lab, client: FakeClient) -> None:
    client.num_running = 50
    at = lab(PAGE, lang="en").button(key="run_playground").click().run()
    at.button(key="stop_playground").click().run()
    assert client.cancelled and translate("en", "run.stopped") in [i.value for i in at.info]


def test_without_an_engine_everything_but_running_works(lab, client: FakeClient, store) -> None:
    client.down = True
    at = lab(PAGE, lang="en")
    assert not at.exception and at.button(key="run_playground").disabled
    at.selectbox(key="pg_policy").set_value("orca").run()
    assert json_of(at)["policy"] == "orca"
    upload(at, make_run(static_scenario()).to_jsonl())
    assert not at.exception and not at.error
    assert len(at.get("bidi_component")) == 1
    assert at.button(key="run_what_if").disabled


# ------------------------------------------------------------------------------------------------- files
def test_an_imported_run_is_stored_once_and_shown(lab, store) -> None:
    run = make_run(preempting_scenario())
    at = upload(lab(PAGE, lang="en"), run.to_jsonl())
    assert run.run_id.removeprefix("run-") in at.success[0].value
    at.run()
    stored = store.runs_of(LEARNER)
    assert [(s.run_id, s.lesson_id, s.policy) for s in stored] == [(run.run_id, "imported", run.steps[0].policy)]
    assert store.run(stored[0].key) == run
    assert at.selectbox(key="pg_first").value == stored[0].key


def test_a_file_of_another_learner_is_mine_too(lab, store) -> None:
    run = make_run(static_scenario())
    store.save_run(run, {}, "playground", store.learner("somebody-else"))
    at = upload(lab(PAGE, lang="en"), run.to_jsonl())
    assert [s.run_id for s in store.runs_of(LEARNER)] == [run.run_id] and not at.error


def broken(run: Run) -> str:
    forged = run.model_copy(deep=True)
    forged.steps[3].t_end_s = forged.steps[3].t_begin_s - 1
    return forged.to_jsonl()


BAD_FILES = (
    (broken(make_run(static_scenario())), "step 3"),
    ("not a run", "JSON"),
    (b"\xff\xfe\x00", "is not a text file"),
    ('{"kind": "header"}', "line 1"),
)


def test_a_broken_file_is_one_sentence_and_changes_nothing(lab, store) -> None:
    at = run_it(lab(PAGE, lang="en"))
    before = store.runs_of(LEARNER)
    for content, words in BAD_FILES:
        upload(at, content)
        assert not at.exception
        assert len(at.error) == 1 and words in at.error[0].value and "Nothing has changed" in at.error[0].value
        assert store.runs_of(LEARNER) == before
        assert len(at.get("bidi_component")) == 1


# ------------------------------------------------------------------------------------------------- two Runs
def test_two_runs_stand_side_by_side_with_what_changed_and_why(lab, store) -> None:
    for lesson, scenario in (("playground", static_scenario()), ("imported", chunked_scenario())):
        run = make_run(scenario)
        run.header.run_id = f"run-{len(store.runs_of(LEARNER)):012x}"
        store.save_run(run, {}, lesson, LEARNER)
    at = lab(PAGE, lang="en")
    first, second = (s.key for s in reversed(store.runs_of(LEARNER)))
    at.selectbox(key="pg_first").set_value(first).run()
    at.selectbox(key="pg_second").set_value(second).run()
    assert not at.exception
    shown = all_text(at)
    assert translate("en", "run_diff.title") in shown and "about as before" in shown
    assert len(at.get("bidi_component")) == 1
    assert [str(name).split()[0] for name in at.table[0].value.columns] == ["Quantity", "static", "chunked", "Ratio"]
    charts = at.get("plotly_chart")
    assert len(charts) == 3 and all(len(chart.proto.alt) > 20 for chart in charts)
    reasons = " ".join(map(str, next(d.value for d in at.dataframe if "Why" in d.value.columns)["Why"]))
    assert "the whole batch has to finish first" in reasons


def test_what_if_runs_the_same_workload_again_and_shows_both(lab, client: FakeClient, store) -> None:
    at = run_it(lab(PAGE, lang="en"))
    key = at.selectbox(key="pg_first").value
    assert at.button(key="run_what_if").disabled
    assert translate("en", "playground.what_if_same") in all_text(at)
    at.selectbox(key=f"wi_policy_{key}").set_value("static").run()
    run_it(at, "what_if")
    assert not at.exception
    assert [s.policy for s in client.submitted] == ["chunked", "static"]
    assert client.submitted[0].requests == client.submitted[1].requests
    assert at.selectbox(key="pg_first").value == key
    assert at.selectbox(key="pg_second").value == "run-000000000001"
    assert translate("en", "run_diff.title") in all_text(at)


def test_runs_that_come_with_lessons_can_be_chosen_before_any_own(lab, client: FakeClient) -> None:
    client.down = True
    at = lab(PAGE, lang="en")
    choice = at.selectbox(key="pg_first")
    assert choice.value == "" and translate("en", "playground.no_run") in [i.value for i in at.info]
    name = next(option for option in choice.options if "Static and continuous batching (recorded)" in option)
    choice.select(name).run()
    assert not at.exception and len(at.get("bidi_component")) == 1


def test_a_result_of_another_tool_shows_what_is_known_of_it(lab) -> None:
    result = {
        "backend": "vllm", "model_id": "m", "input_lens": [4, 5], "output_lens": [2, 3], "ttfts": [0.1, 0.2],
        "itls": [[0.05], [0.05, 0.06]], "generated_texts": ["a", "b"], "errors": ["", ""], "request_throughput": 1.0,
    }  # fmt: skip
    at = upload(lab(PAGE, lang="en"), json.dumps(result), "bench.json")
    assert not at.exception and not at.error
    assert translate("en", "run_pair.no_steps") in [i.value for i in at.info]
    assert at.get("bidi_component") == [] and at.table[0].value.shape[0] == 16
    assert not any(b.key == "run_what_if" for b in at.button)
