"""From a validation error of pydantic to one sentence: the field, its value, what is allowed.

It decides only words. What is allowed is read from the models themselves, so a limit is written once.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping

from pydantic import BaseModel, ValidationError

Models = Mapping[str, type[BaseModel]]
"""The model of each field that holds one, by the field's name; the whole's under the empty name."""


def sentence(error: ValidationError, models: Models) -> tuple[str, str]:
    """The first error as (sentence, field). Pure."""
    first = error.errors(include_url=False)[0]
    parts = first["loc"]
    field = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in parts).lstrip(".")
    value = _shorten(first.get("input"))
    kind, context = first["type"], first.get("ctx", {})
    if kind == "extra_forbidden":
        return f"{field} is not a field of a scenario{_nearest(parts, models)}; remove it or correct its name", field
    if kind == "missing":
        return f"{field} is missing; add it", field
    if kind == "value_error":
        reason = str(context.get("error", first["msg"]))
        return f"{field}: {reason}" if field else reason, field
    allowed = first["msg"][:1].lower() + first["msg"][1:]
    return f"{field} is {value}; {_bounds(parts, models) or allowed}", field


def _model_of(parts: tuple, models: Models) -> type[BaseModel]:
    return models.get(parts[0], models[""]) if len(parts) > 1 else models[""]


def _bounds(parts: tuple, models: Models) -> str:
    """The numeric range of a field in words, or an empty string where it has none."""
    names = [p for p in parts if isinstance(p, str)]
    info = _model_of(parts, models).model_fields.get(names[-1]) if names else None
    if info is None or info.annotation not in (int, float, int | None, float | None):
        return ""
    found = {}
    for item in info.metadata:
        for key in ("ge", "gt", "le", "lt"):
            if getattr(item, key, None) is not None:
                found[key] = getattr(item, key)
    low = found.get("ge", found.get("gt"))
    high = found.get("le", found.get("lt"))
    if low is None or high is None:
        return ""
    kind = "a number" if info.annotation in (float, float | None) else "a whole number"
    above = "more than " if "gt" in found else ""
    return f"allowed: {kind} from {above}{low} to {high}"


def _nearest(parts: tuple, models: Models) -> str:
    names = list(_model_of(parts, models).model_fields)
    close = difflib.get_close_matches(str(parts[-1]), names, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _shorten(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
