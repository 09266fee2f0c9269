"""What was measured, as a file: suite by suite, each with its samples, its date and the command that made it.

A suite measured again replaces what the file had of it and leaves the others, so a long bench can be made in pieces
(``--only``). Invariant: the file is written whole or not at all, and only results of one machine stand in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from engine.bench.samples import Sample

SCHEMA = 1


class BenchError(ValueError):
    """A bench that cannot be run, or a file that cannot be used, in one sentence."""


@dataclass
class SuiteResult:
    """One suite, as it was last measured. ``disturbed`` names what had company on the machine.

    ``roofs``: the ceilings of the same rounds, if they were measured; those of another hour would make no share.
    """

    name: str
    measured_utc: str
    command: str
    repeats: int
    samples: list[Sample]
    about: str = ""
    disturbed: list[str] = field(default_factory=list)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)  # by system
    roofs: list[Sample] = field(default_factory=list)


@dataclass
class Results:
    """All suites of a machine. ``systems`` says what each one is, ``skipped`` why one is missing."""

    machine: str
    device: dict[str, Any]
    systems: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    suites: dict[str, SuiteResult] = field(default_factory=dict)

    def put(self, suites: Sequence[SuiteResult]) -> None:
        """Effect: these replace what was there under their names."""
        self.suites.update({suite.name: suite for suite in suites})

    def save(self, path: Path) -> None:
        """Raises: OSError."""
        partial = path.with_name(path.name + ".partial")
        try:
            text = json.dumps({"kind": "bench", "schema": SCHEMA, **asdict(self)}, ensure_ascii=False, indent=1)
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path, machine: str) -> Results | None:
        """None if there is no such file yet. Raises: BenchError."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise BenchError(f"cannot read {path} ({error}); give another file for the results") from None
        if not isinstance(data, dict) or data.get("kind") != "bench" or data.get("schema") != SCHEMA:
            raise BenchError(f"{path} is no bench file of schema {SCHEMA}; give another file for the results")
        if data["machine"] != machine:
            raise BenchError(
                f"{path} was measured on another machine ({data['machine']}, this is {machine}); give another file"
            )
        suites = {name: _suite(suite) for name, suite in data["suites"].items()}
        kept = {key: data[key] for key in ("machine", "device", "systems", "skipped", "notes")}
        return cls(**kept, suites=suites)


def _suite(data: dict[str, Any]) -> SuiteResult:
    lists = {name: [Sample(**sample) for sample in data[name]] for name in ("samples", "roofs")}
    return SuiteResult(**{**data, **lists})
