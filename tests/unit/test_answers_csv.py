"""The instructor's CSV: every prediction and answer, under pseudonyms, safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lessons import answers_csv, learner_code
from lessons.__main__ import cli
from lessons.shown import LessonStore

SID = "a-secret-cookie-of-somebody"


@pytest.fixture
def store() -> LessonStore:
    store = LessonStore("sqlite://")
    learner = store.learner(SID)
    store.save_prediction(learner, "batching", "times_sooner", 3.0)
    store.settle_prediction(learner, "batching", "times_sooner", 1, "run-000000000000", 1.5)
    store.save_answer(learner, "batching", "bt.one", ["a", "b"], 0.5)
    store.save_answer(learner, "batching", "bt.one", ["a"], 1.0)
    store.save_answer(learner, "batching", "bt.two", "=HYPERLINK(1)", 0.0)
    store.save_prediction(store.learner("another-learner"), "metrics", "ttft_growth", -2.0)
    return store


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_every_attempt_is_a_row_with_its_verdict(store: LessonStore) -> None:
    found = rows(answers_csv.answers(store))
    mine = [row for row in found if row["lesson"] == "batching"]
    assert [(row["kind"], row["item"], row["attempt"]) for row in mine] == [
        ("prediction", "times_sooner", "1"),
        ("answer", "bt.one", "1"),
        ("answer", "bt.one", "2"),
        ("answer", "bt.two", "1"),
    ]
    assert [row["verdict"] for row in mine] == ["high", "partly", "right", "wrong"]
    assert (mine[0]["given"], mine[0]["run_gave"], mine[0]["times_off"]) == ("3.0", "1.5", "2")
    other = next(row for row in found if row["lesson"] == "metrics")
    assert (other["verdict"], other["given"]) == ("open", "-2.0")


def test_learners_are_pseudonyms_and_formulas_are_disarmed(store: LessonStore) -> None:
    text = answers_csv.answers(store)
    assert SID not in text
    assert len({row["learner"] for row in rows(text)}) == 2
    assert answers_csv.pseudonym(SID) in text
    assert "'=HYPERLINK(1)" in text


def test_scores_are_the_best_of_each_item(store: LessonStore) -> None:
    found = next(row for row in rows(answers_csv.scores(store)) if row["lesson"] == "batching")
    assert (found["items_answered"], found["items_right"], found["best_score_mean"]) == ("2", "1", "0.500")


def test_the_command_writes_the_file_and_names_a_missing_database(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.setenv("TOKEN_BY_TOKEN_HOME", str(tmp_path))
    out = tmp_path / "class.csv"
    refused = CliRunner().invoke(cli, ["export-answers", "--out", str(out)])
    assert refused.exit_code == 2
    assert "no database" in refused.output
    assert not out.exists()
    store = LessonStore(f"sqlite:///{tmp_path / 'lab.sqlite3'}")
    store.save_answer(store.learner(SID), "batching", "bt.one", "批", 1.0)
    store.close()
    done = CliRunner().invoke(cli, ["export-answers", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "批" in out.read_text(encoding="utf-8-sig")


def test_a_code_finds_its_learner_however_it_is_typed(store: LessonStore) -> None:
    code = learner_code.code_of(store, SID)
    assert learner_code.code_of(store, SID) == code
    assert len(code) == 14
    assert learner_code.owner(store, code) == SID
    assert learner_code.owner(store, code.lower().replace("-", " ")) == SID
    for nonsense in ("", "AAAA-AAAA-AAAA", "0OIL-1111-1111", code[:-1], "é" * 12):
        assert learner_code.owner(store, nonsense) is None
    browser = store.learner("a-new-browser")
    assert learner_code.goes_on_as(store, browser) == browser
    learner_code.go_on_as(store, browser, SID)
    assert learner_code.goes_on_as(store, browser) == SID
    learner_code.go_on_as(store, browser, None)
    assert learner_code.goes_on_as(store, browser) == browser
