"""A predicted or measured value in words, and how far the one was from the other."""

from __future__ import annotations

from lessons.catalog import Outcome, Prediction
from pages._ui.i18n import language, translate
from pages._ui.units import number


def say(prediction: Prediction, value: float | str, lang: str | None = None) -> str:
    """A predicted or measured value in words, with its unit; in the session's language unless one is given."""
    lang = lang or language()
    if prediction.kind == "choice":
        return next((o.text[lang] for o in prediction.options if o.id == value), str(value))
    unit = prediction.unit[lang]
    space = "" if lang == "zh" and unit == "%" else " "
    return f"{number(float(value), lang)}{space}{unit}"


def with_unit(question: str, unit: str, lang: str) -> str:
    """A question and the unit of its answer, in the brackets of the language. Pure."""
    return f"{question}（{unit}）" if lang == "zh" else f"{question} ({unit})"


def allowed(prediction: Prediction) -> tuple[str, str]:
    """The least and the greatest number a prediction may be, in words. Pure."""
    return f"{prediction.minimum:,g}", f"{prediction.maximum:,g}"


def outside(prediction: Prediction, value: float | None) -> str | None:
    """One sentence for a number that cannot be meant, with what is allowed; None where there is nothing to say."""
    if value is None or prediction.minimum <= value <= prediction.maximum:
        return None
    lang = language()
    low, high = allowed(prediction)
    return translate(lang, "predict.outside", value=say(prediction, value), low=low, high=high)


def verdict(found: Outcome, lang: str | None = None) -> str:
    """How far off, in one phrase: exact, so many times too high or too low, right, wrong."""
    lang = lang or language()
    if found.direction in ("high", "low") and found.factor is None:
        return translate(lang, f"predict.{found.direction}_only")
    return translate(lang, f"predict.{found.direction}", times=number(found.factor, lang) if found.factor else "")
