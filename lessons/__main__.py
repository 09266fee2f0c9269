"""The command line of the lessons: ``python -m lessons record | export-answers``.

Results go to stdout, progress and errors to stderr; a mistake of the user is one sentence and exit code 2.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from engine.lab.check import CheckError
from engine.lab.scenario import ScenarioError
from lessons.catalog import LessonError, lesson, load_lessons
from lessons.facts_error import FactsError

USER_ERROR = 2
INTERRUPTED = 130

cli = typer.Typer(
    help="Token by Token's lessons.", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)


@cli.command()
def record(
    lessons: Annotated[list[str] | None, typer.Argument(help="Lesson ids; default: all.", metavar="LESSON ...")] = None,
    engine: Annotated[str, typer.Option(help="Address of a running engine; default: one of its own.")] = "",
) -> None:
    """Play the standard experiment of lessons on the engine and keep its Runs in lessons/<id>/recorded/."""
    from lessons.record import own_engine
    from lessons.record import record as record_lesson

    with sentences():
        chosen = [lesson(name) for name in lessons or [x.id for x in load_lessons()]]
        with contextlib.nullcontext(engine) if engine else own_engine() as address:
            for found in chosen:
                written = record_lesson(found.id, address, _say)
                size = sum(path.stat().st_size for path in written)
                print(f"{found.id}: {len(written)} Runs, {size / 1000:.0f} kB")


class Table(StrEnum):
    answers = "answers"
    scores = "scores"


@cli.command("export-answers")
def export_answers(
    out: Annotated[Path, typer.Option(help="Where the CSV file is written.")],
    table: Annotated[Table, typer.Option(help="A row per answer, or per learner and lesson.")] = Table.answers,
) -> None:
    """Write what all learners of this lab predicted and answered, under pseudonyms, for the instructor."""
    from engine.settings import settings
    from lessons import answers_csv
    from lessons.shown import LessonStore

    with sentences():
        address = settings().database_url
        path = address.removeprefix("sqlite:///")
        if path != address and not Path(path).exists():
            raise LessonError(f"there is no database {path}; has the lab run on this machine, with this home?")
        store = LessonStore(address)
        if store.in_memory:
            raise LessonError(store.notice or "the database cannot be read")
        text = answers_csv.answers(store) if table is Table.answers else answers_csv.scores(store)
        out.write_text(text, encoding="utf-8-sig", newline="")  # the mark tells spreadsheets that this is UTF-8
        print(f"wrote {out}: {text.count(chr(10)) - 1} rows")


@contextlib.contextmanager
def sentences() -> Iterator[None]:
    """Turn what a user can cause into one sentence on stderr and an exit code. Bugs keep their traceback."""
    import httpx

    from lessons.record import RecordError

    try:
        yield
    except KeyboardInterrupt:
        _say("stopped")
        raise typer.Exit(INTERRUPTED) from None
    except (LessonError, RecordError, CheckError, ScenarioError, FactsError, OSError, httpx.HTTPError) as error:
        _say(str(error))
        raise typer.Exit(USER_ERROR) from None


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    cli(prog_name="python -m lessons")
