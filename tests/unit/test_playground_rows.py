"""Requests as rows of a table, and the table's edits back: what has no column is kept, what is emptied is left out."""

from __future__ import annotations

from engine.lab.scenario import Scenario
from pages._ui.playground_rows import COLUMNS, edited, frame, made, not_in_the_form

REQUESTS = [
    {"request_id": "a", "prompt": "x", "max_tokens": 7, "stop": ["."]},
    {"prompt_token_ids": [1, 2], "arrival_s": 0.5},
]


def test_defaults_are_written_out_in_the_table() -> None:
    table = frame(REQUESTS)
    assert list(table.columns) == list(COLUMNS)
    assert table["max_tokens"].tolist() == [7, 50] and table["arrival_s"].tolist() == [0, 0.5]
    assert table["ignore_eos"].tolist() == [False, False]
    assert frame([]).empty


def test_an_edit_changes_its_cells_and_nothing_else() -> None:
    change = {"edited_rows": {"0": {"max_tokens": 9.0, "prompt": "y"}}, "added_rows": [], "deleted_rows": []}
    assert edited(REQUESTS, change) == [{**REQUESTS[0], "max_tokens": 9, "prompt": "y"}, REQUESTS[1]]
    assert REQUESTS[0]["max_tokens"] == 7


def test_an_emptied_cell_and_a_default_are_left_out() -> None:
    change = {"edited_rows": {0: {"max_tokens": 50, "request_id": ""}, 1: {"arrival_s": None}}}
    assert edited(REQUESTS, change) == [{"prompt": "x", "stop": ["."]}, {"prompt_token_ids": [1, 2]}]


def test_rows_are_added_and_deleted_together() -> None:
    change = {
        "edited_rows": {"1": {"max_tokens": 3}},
        "added_rows": [{"prompt": "new", "_index": 2}, {}],
        "deleted_rows": [0],
    }
    assert edited(REQUESTS, change) == [{**REQUESTS[1], "max_tokens": 3}, {"prompt": "new"}, {}]


def test_fields_without_a_place_in_the_form_are_named() -> None:
    data = {"policy": "orca", "server": {"url": "http://x"}, "requests": REQUESTS}
    assert not_in_the_form(data) == ["server", "requests[0].stop", "requests[1].prompt_token_ids"]


def test_many_like_requests_make_a_scenario() -> None:
    scenario = Scenario.parse({"requests": made(3, 0.25, "x", 16, 8)})
    assert [r.arrival_s for r in scenario.requests] == [0, 0.25, 0.5]
    assert scenario.request_ids() == ["r1", "r2", "r3"]
