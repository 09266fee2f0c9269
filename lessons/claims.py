"""The claims of the source lesson, checked: what it says, what a second derivation gives, what this device measured.

It decides how a claim is read (``lessons/<id>/claims.yaml``) and put together with the numbers that the lesson's own
``claims.py`` computes from catalogue and Runs. It types no number. Invariant: a claim always has a derivation and a
verdict with its condition; a measurement only where Runs give one.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from engine.lab.records import Run
from lessons.catalog import LESSONS_DIR, lesson, load_yaml
from lessons.text import Fact, Lang, Text, fill_text

Verdict = Literal["holds", "holds_when", "does_not_hold"]


class ClaimWords(BaseModel):
    """The words of one claim. ``verdicts``: the condition or the reason, by verdict that can be reached."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    says: Text
    derived: Text
    measured: Text | None = None
    verdicts: dict[Verdict, Text] = Field(min_length=1)


@dataclass(frozen=True)
class Finding:
    """What a lesson's ``claims.py`` found out about a claim. ``measured``: whether the Runs say something about it."""

    verdict: Verdict
    values: Mapping[str, Fact]
    measured: bool = False


@dataclass(frozen=True)
class Claim:
    """One row of the claims table, every sentence in both languages."""

    id: str
    lesson_id: str
    says: Mapping[Lang, str]
    derived: Mapping[Lang, str]
    measured: Mapping[Lang, str] | None
    verdict: Verdict
    condition: Mapping[Lang, str]


def claims(lesson_id: str, runs: Mapping[str, Run]) -> tuple[Claim, ...]:
    """The claims this lesson checks, with what the Runs say; without Runs each is still derived. Pure.

    Raises: FileNotFoundError for a lesson that checks none.
    """
    words = claim_words(lesson_id)
    findings: Mapping[str, Finding] = importlib.import_module(f"lessons.{lesson(lesson_id).id}.claims").findings(runs)
    found = []
    for claim_id, finding in findings.items():
        text = words[claim_id]
        measured = fill_text(text.measured, finding.values) if finding.measured and text.measured else None
        found.append(
            Claim(
                id=claim_id,
                lesson_id=lesson_id,
                says=text.says,
                derived=fill_text(text.derived, finding.values),
                measured=measured,
                verdict=finding.verdict,
                condition=fill_text(text.verdicts[finding.verdict], finding.values),
            )
        )
    return tuple(found)


@functools.cache
def claim_words(lesson_id: str) -> Mapping[str, ClaimWords]:
    """The words of a lesson's claims by id. Raises: FileNotFoundError, pydantic.ValidationError."""
    return TypeAdapter(dict[str, ClaimWords]).validate_python(load_yaml(LESSONS_DIR / lesson_id / "claims.yaml"))
