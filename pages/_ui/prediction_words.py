"""A predicted or measured value in words, and how far the one was from the other."""

from __future__ import annotations

from lessons.catalog import Outcome, Prediction
from pages._ui.i18n import language, t
from pages._ui.units import number


def say(prediction: Prediction, value: float | str) -> str:
    """A predicted or measured value in words, with its unit."""
    lang = language()
    if prediction.kind == "choice":
        return next((o.text[lang] for o in prediction.options if o.id == value), str(value))
    return f"{number(float(value), lang)} {prediction.unit[lang]}"


def verdict(found: Outcome) -> str:
    """How far off, in one phrase: exact, so many times too high or too low, right, wrong."""
    if found.direction in ("high", "low") and found.factor is None:
        return t(f"predict.{found.direction}_only")
    return t(f"predict.{found.direction}", times=number(found.factor, language()) if found.factor else "")
