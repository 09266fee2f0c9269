"""A learner who comes back finds their place: the lesson, its settings, and with a code also in another browser."""

from __future__ import annotations

from lessons import learner_code
from tests.pages.test_lessons import finish, predict, start
from tests.pages.test_recorded_mode import LEARNER


def test_home_goes_back_to_the_lesson_and_the_settings_that_were_open(lab) -> None:
    lab("p_batching.py", lang="en", bt_workload="chat")
    at = lab(lang="en")
    assert "batching" in at.button(key="continue").label
    at.button(key="continue").click().run()
    assert not at.exception
    assert at.title[0].value == "Static and continuous batching"
    assert at.session_state["bt_workload"] == "chat"


def test_a_code_shows_the_records_of_another_browser_and_leads_back(lab, store) -> None:
    other = store.learner("somebody-else-somebody-else")
    store.save_prediction(other, "batching", "times_sooner", 2.0)
    at = lab(lang="en")
    at.text_input(key="code_typed").set_value("ABCD-EFGH-JKMN")
    submit = next(b for b in at.button if b.label == "Go on with it")
    submit.click().run()
    assert "Nobody here has this code" in at.error[0].value
    at.text_input(key="code_typed").set_value(learner_code.code_of(store, other).lower())
    next(b for b in at.button if b.label == "Go on with it").click().run()
    assert not at.exception
    assert at.session_state["_learner"] == other
    again = lab(lang="en")  # a new session of the same browser
    assert again.session_state["_learner"] == other
    again.button(key="code_leave").click().run()
    assert again.session_state["_learner"] == LEARNER


def test_two_tabs_that_watch_an_experiment_run_each_part_once(lab, client) -> None:
    client.num_running = 2
    first = start(predict(lab("p_kv_cache.py", lang="en")), "kv_cache")
    second = lab("p_kv_cache.py", lang="en")  # the same learner, the same experiment under way
    for _ in range(12):
        first.run()
        second.run()
    first, second = finish(first), finish(second)
    assert not first.exception and not second.exception and not first.error and not second.error
    assert len(client.submitted) == 2
    assert first.session_state["job:kv_cache"].run_ids == second.session_state["job:kv_cache"].run_ids
