"""The kinds of quiz items, and what makes one fit to be asked.

It decides the shape of an item and refuses one that could not be graded or explained; it grades nothing
(``lessons.quiz`` does). Invariant: every wrong option, trap and swap names the misconception behind it and explains it
in both languages, so no answer is ever met with a bare "wrong".
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from lessons.text import LANGS, Text


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Option(_Strict):
    """One choice. ``feedback`` is shown when it is chosen (rightly or not) or missed; it explains, not judges."""

    id: str = Field(pattern=r"^[a-z0-9_.-]+$")
    text: Text
    feedback: Text
    correct: bool = False
    misconception: str | None = Field(None, pattern=r"^[a-z0-9_]+$")

    @model_validator(mode="after")
    def _named_misconception(self) -> Option:
        if self.correct == (self.misconception is not None):
            raise ValueError(f"option {self.id}: a wrong option names its misconception, a correct one has none")
        return self


class Trap(_Strict):
    """A wrong number that many give, and the reasoning that leads to it. ``within`` is absolute, in the item's unit."""

    value: float
    within: float = Field(0.0, ge=0)
    misconception: str = Field(pattern=r"^[a-z0-9_]+$")
    feedback: Text


class _ItemBase(_Strict):
    """``trace`` is a piece of a run as plain text, shown in a fixed-width font below the prompt: what happens next?"""

    id: str = Field(pattern=r"^[A-Za-z0-9_.:-]+$", max_length=200)
    prompt: Text
    trace: Text | None = None
    generator: str | None = None  # the kind of generated item; None for an item of the bank
    run_ids: tuple[str, ...] = ()  # the Runs a generated item was made from


class _WithOptions(_ItemBase):
    options: tuple[Option, ...] = Field(min_length=2, max_length=8)

    @model_validator(mode="after")
    def _distinct_options(self) -> _WithOptions:
        for lang in LANGS:
            if len({o.text[lang] for o in self.options}) != len(self.options):
                raise ValueError(f"item {self.id}: two options read the same in {lang}")
        if len({o.id for o in self.options}) != len(self.options):
            raise ValueError(f"item {self.id}: two options have the same id")
        return self


class ChoiceItem(_WithOptions):
    """Exactly one option is right."""

    kind: Literal["choice"] = "choice"

    @model_validator(mode="after")
    def _one_key(self) -> ChoiceItem:
        if sum(o.correct for o in self.options) != 1:
            raise ValueError(f"item {self.id}: a choice has exactly one correct option")
        return self


class SeveralItem(_WithOptions):
    """One or more options are right, at least one is wrong; all right ones and no other must be chosen."""

    kind: Literal["several"] = "several"

    @model_validator(mode="after")
    def _some_keys(self) -> SeveralItem:
        if not 1 <= sum(o.correct for o in self.options) < len(self.options):
            raise ValueError(f"item {self.id}: needs at least one correct and one wrong option")
        return self


class NumberItem(_ItemBase):
    """A number is typed. It is right within ``tolerance`` (absolute, in ``unit``, shown) of ``answer``."""

    kind: Literal["number"] = "number"
    answer: float
    tolerance: float = Field(0.0, ge=0)
    whole: bool = False
    unit: Text
    explanation: Text  # shown with a right answer
    otherwise: Text  # shown with a wrong one that no trap explains: how to find the number
    traps: tuple[Trap, ...] = ()

    @model_validator(mode="after")
    def _traps_are_wrong(self) -> NumberItem:
        for trap in self.traps:
            if abs(trap.value - self.answer) <= self.tolerance + trap.within:
                raise ValueError(f"item {self.id}: trap {trap.value} overlaps the right answer {self.answer}")
        if self.whole and self.answer != int(self.answer):
            raise ValueError(f"item {self.id}: answer {self.answer} is not whole")
        return self


class Step(_Strict):
    """One step of an order item."""

    id: str = Field(pattern=r"^[a-z0-9_.-]+$")
    text: Text


class Swap(_Strict):
    """A wrong order that many give: ``first`` put after ``then``, and the reasoning that leads to it."""

    first: str
    then: str
    misconception: str = Field(pattern=r"^[a-z0-9_]+$")
    feedback: Text


class OrderItem(_ItemBase):
    """Steps are put in order. They stand here in the right one; each named mistake is explained when it is made."""

    kind: Literal["order"] = "order"
    steps: tuple[Step, ...] = Field(min_length=3, max_length=7)
    explanation: Text  # shown with a right answer
    otherwise: Text  # shown with a wrong one that no swap explains
    swaps: tuple[Swap, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _swaps_name_steps(self) -> OrderItem:
        ids = [step.id for step in self.steps]
        if len(set(ids)) != len(ids):
            raise ValueError(f"item {self.id}: two steps have the same id")
        for lang in LANGS:
            if len({step.text[lang] for step in self.steps}) != len(ids):
                raise ValueError(f"item {self.id}: two steps read the same in {lang}")
        for swap in self.swaps:
            if not {swap.first, swap.then} <= set(ids) or ids.index(swap.first) >= ids.index(swap.then):
                raise ValueError(
                    f"item {self.id}: swap {swap.first}, {swap.then} does not name two steps in their order"
                )
        return self


Item = Annotated[ChoiceItem | SeveralItem | NumberItem | OrderItem, Field(discriminator="kind")]
_ITEMS: TypeAdapter[tuple[Item, ...]] = TypeAdapter(tuple[Item, ...])


def parse_bank(data: object) -> tuple[Item, ...]:
    """Validate a decoded quiz.yaml. Pure. Raises: pydantic.ValidationError, ValueError for an id that stands twice."""
    items = _ITEMS.validate_python(data)
    ids = [item.id for item in items]
    if len(set(ids)) != len(ids):
        raise ValueError(f"item id {next(i for i in ids if ids.count(i) > 1)} stands twice")
    return items
