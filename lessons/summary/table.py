"""The claims table: all eighteen claims of the source lesson, for any model, with what the learner's own Runs say.

It decides which lesson checks which claim and puts the rows together: a lesson's own ``claims.py`` where it has the
claim, ``course_claims`` where none does. Words are in ``table.yaml`` and in the lessons' ``claims.yaml``. Invariant:
for every model there are all rows in order, each with a derivation and a verdict; a number is computed, never typed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pydantic import BaseModel, ConfigDict, TypeAdapter

from engine.lab import catalogue
from engine.lab.records import ModelInfo, Run
from engine.lab.work import decode_step_flops
from lessons.batch_size import claims as batch_size_claims
from lessons.catalog import LESSONS_DIR, load_yaml
from lessons.claims import Claim, ClaimWords, Finding, Verdict, claim_words
from lessons.kv_cache import claims as kv_cache_claims
from lessons.metrics import claims as metrics_claims
from lessons.roofline import claims as roofline_claims
from lessons.roofline.facts import SHORT_PROMPT, SOURCE_DEVICE, SOURCE_RIDGE
from lessons.roofline.points import crossing_tokens, prefill_intensity
from lessons.summary import course_claims
from lessons.summary.course_claims import Runs, bytes_of
from lessons.text import Fact, Lang, Text, fill_text

OWNERS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("C1", "C2", "C3"), "prefill_decode"),
        **dict.fromkeys(("C4", "C5", "C6"), "roofline"),
        **dict.fromkeys(("C7", "C8", "C9"), "kv_cache"),
        **dict.fromkeys(("C10", "C11"), "metrics"),
        **dict.fromkeys(("C12", "C13", "C14", "C15"), "batch_size"),
        **dict.fromkeys(("C16", "C17", "C18"), "batching"),
    }
)
"""The lesson in which a claim is explained; its Runs are those that measure it, but for C8 and C9."""

MEASURED_IN: Mapping[str, str] = MappingProxyType({**OWNERS, "C8": "batch_size", "C9": "batch_size"})


class RowWords(BaseModel):
    """The words of one row. A sentence that is None is the owning lesson's own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Text
    source: Text
    ours: Text
    here: Text
    says: Text | None = None
    derived: Text | None = None
    measured: Text | None = None
    verdicts: dict[Verdict, Text] | None = None


@dataclass(frozen=True)
class Row:
    """One row, every word in both languages. ``here`` is None until the lesson ``measured_in`` has been run."""

    claim: Claim
    name: Mapping[Lang, str]
    source: Mapping[Lang, str]
    ours: Mapping[Lang, str]
    here: Mapping[Lang, str] | None
    measured_in: str
    runs: tuple[Run, ...]  # the Runs that measured it


def table(model: ModelInfo, runs: Runs) -> tuple[Row, ...]:
    """All rows for ``model``; weights and cache in the format that ``model.weight_bytes`` implies. Pure."""
    findings = _findings(model, runs)
    return tuple(_row(claim_id, findings[claim_id], runs) for claim_id in OWNERS)


def _findings(model: ModelInfo, runs: Runs) -> dict[str, Finding]:
    """By claim id: ours, and those of the lessons that check a claim themselves."""
    found = dict(course_claims.findings(model, runs))
    for claim_id, finding in roofline_claims.findings(runs.get("roofline", {})).items():
        more = _waiting(model) if claim_id == "C5" else _short_prefill(model) if claim_id == "C6" else {}
        found[claim_id] = Finding(finding.verdict, {**finding.values, **more}, finding.measured)
    found |= metrics_claims.findings(runs.get("metrics", {}))
    found |= batch_size_claims.findings(runs.get("batch_size", {}), model)
    pool = kv_cache_claims.findings(runs.get("kv_cache", {}))["C7"]
    if pool.measured:  # its own values are of the source's model: only what the block pool held is taken over
        here = {name: value for name, value in pool.values.items() if name.startswith("here")}
        found["C7"] = Finding(found["C7"].verdict, {**found["C7"].values, **here}, True)
    return found


def _waiting(model: ModelInfo) -> dict[str, Fact]:
    """The share of the time that one request's decode waits, against the source's ridge and the tensor cores'."""
    intensity = decode_step_flops(model, 1) / model.weight_bytes
    ridge = catalogue.device(SOURCE_DEVICE).ridge("bfloat16")
    return {
        "model": model.name,
        "intensity": intensity,
        "wait": 100 * (1 - intensity / SOURCE_RIDGE),
        "wait_matrix": 100 * (1 - intensity / ridge),
    }


def _short_prefill(model: ModelInfo) -> dict[str, Fact]:
    """Where a short prompt stands, and the length that reaches either ridge of the source's card."""
    card, size = catalogue.device(SOURCE_DEVICE), bytes_of(model)
    crossings = {
        "cross_vector": crossing_tokens(model, card.ridge("float32", "vector")),
        "cross_matrix": crossing_tokens(model, card.ridge("bfloat16")),
    }
    never: Fact = {"en": "no number of", "zh": "再多"}
    return {
        "model": model.name,
        "ten_intensity": prefill_intensity(model, SHORT_PROMPT, size),
        **{name: never if tokens is None else tokens for name, tokens in crossings.items()},
    }


def _row(claim_id: str, finding: Finding, runs: Runs) -> Row:
    owner = OWNERS[claim_id]
    words, theirs = row_words()[claim_id], _owner_words(owner).get(claim_id)

    def sentence(pick: Callable[[RowWords | ClaimWords], object]):
        own = pick(words)
        return own if own is not None else pick(theirs)

    measured = sentence(lambda w: w.measured) if finding.measured else None
    claim = Claim(
        id=claim_id,
        lesson_id=owner,
        says=sentence(lambda w: w.says),
        derived=fill_text(sentence(lambda w: w.derived), finding.values),
        measured=fill_text(measured, finding.values) if measured else None,
        verdict=finding.verdict,
        condition=fill_text(sentence(lambda w: w.verdicts)[finding.verdict], finding.values),
    )
    return Row(
        claim=claim,
        name=words.name,
        source=words.source,
        ours=fill_text(words.ours, finding.values),
        here=fill_text(words.here, finding.values) if finding.measured else None,
        measured_in=MEASURED_IN[claim_id],
        runs=tuple(runs.get(MEASURED_IN[claim_id], {}).values()) if finding.measured else (),
    )


def _owner_words(lesson_id: str) -> Mapping[str, ClaimWords]:
    try:
        return claim_words(lesson_id)
    except FileNotFoundError:
        return {}


@functools.cache
def row_words() -> Mapping[str, RowWords]:
    """The words of the rows by claim id. Raises: pydantic.ValidationError."""
    return TypeAdapter(dict[str, RowWords]).validate_python(load_yaml(LESSONS_DIR / "summary" / "table.yaml"))
