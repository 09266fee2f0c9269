"""The concepts of the core course and how they hang together, as data for a map and for the list that says the same.

It decides what the file ``concepts.yaml`` may say and refuses one that contradicts itself; it draws nothing. Invariant:
every relation joins two concepts that exist, every concept has a place of its own and takes part in a relation.
"""

from __future__ import annotations

import functools

from pydantic import BaseModel, ConfigDict, Field, model_validator

from lessons.catalog import LESSONS_DIR, load_yaml
from lessons.text import Text

COLUMNS, ROWS = 3, 5


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Concept(_Strict):
    """One idea, the lesson that explains it, and its place (column, row) on the map."""

    id: str
    lesson: str
    at: tuple[int, int]
    name: Text
    text: Text


class Relation(_Strict):
    """``start`` ``how`` ``end``, read as a sentence."""

    start: str = Field(alias="from")
    end: str = Field(alias="to")
    how: Text


class ConceptMap(_Strict):
    concepts: tuple[Concept, ...]
    relations: tuple[Relation, ...]

    @model_validator(mode="after")
    def _consistent(self) -> ConceptMap:
        ids = [concept.id for concept in self.concepts]
        if len(set(ids)) != len(ids):
            raise ValueError("two concepts have the same id")
        if len({concept.at for concept in self.concepts}) != len(ids):
            raise ValueError("two concepts have the same place")
        for concept in self.concepts:
            if not (0 <= concept.at[0] < COLUMNS and 0 <= concept.at[1] < ROWS):
                raise ValueError(f"{concept.id} stands at {concept.at}, outside of {COLUMNS} × {ROWS}")
        joined = {end for relation in self.relations for end in (relation.start, relation.end)}
        if joined != set(ids):
            raise ValueError(f"relations and concepts do not match: {', '.join(sorted(joined ^ set(ids)))}")
        return self

    def concept(self, concept_id: str) -> Concept:
        """Raises: KeyError."""
        for concept in self.concepts:
            if concept.id == concept_id:
                return concept
        raise KeyError(concept_id)


@functools.cache
def concept_map() -> ConceptMap:
    """The map of the course. Raises: pydantic.ValidationError."""
    return ConceptMap.model_validate(load_yaml(LESSONS_DIR / "summary" / "concepts.yaml"))
