"""A Run file is read back as it was written, or refused with the line that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.lab.records import Run, RunFileError
from tests.unit.lab_runs import chunked_scenario, make_run


@pytest.fixture(scope="module")
def text() -> str:
    return make_run(chunked_scenario()).to_jsonl()


def test_a_run_is_read_back_as_it_was_written(text: str, tmp_path: Path) -> None:
    run = Run.from_jsonl(text)
    assert run.to_jsonl() == text
    run.save(tmp_path / "run.jsonl")
    assert Run.load(tmp_path / "run.jsonl") == run
    assert [p.name for p in tmp_path.iterdir()] == ["run.jsonl"]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('"schema":1', '"schema":2', "line 1: schema 2"),
        ('"step":0', '"step":"x"', "line 2: step"),
        ('"step":0', '"step":' + "9" * 5000, "line 2: not JSON"),
        ('{"kind":"step"', '{"kind":"stop"', "line 2: a record of kind 'stop'"),
        ('{"kind":"step"', '["kind","step"', "line 2: not JSON"),
    ],
)
def test_a_broken_line_is_named(text: str, old: str, new: str, sentence: str) -> None:
    assert old in text
    with pytest.raises(RunFileError, match=sentence):
        Run.from_jsonl(text.replace(old, new, 1))


def test_an_empty_file_and_records_out_of_order_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match="empty"):
        Run.from_jsonl("\n")
    lines = text.splitlines()
    with pytest.raises(RunFileError, match="line 1"):
        Run.from_jsonl("\n".join(lines[1:]))
    with pytest.raises(RunFileError, match="order is header, steps, requests"):
        Run.from_jsonl("\n".join([lines[0], lines[-1], lines[1]]))
    with pytest.raises(RunFileError, match="cannot read"):
        Run.load(tmp_path / "absent.jsonl")
