"""The requests of a scenario as rows of an editable table, and edits of that table back into requests.

It decides which fields have a column; the others of a request are kept as they are. It validates nothing: what was
typed goes into the scenario, and the scenario says what is wrong with it. Pure functions of plain JSON values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from engine.lab.scenario import RequestSpec

COLUMNS = (
    "request_id",
    "arrival_s",
    "prompt",
    "num_prompt_tokens",
    "max_tokens",
    "ignore_eos",
    "chat",
    "temperature",
    "follows",
)
_WHOLE = ("num_prompt_tokens", "max_tokens")
_DTYPES = {
    "request_id": "object",
    "arrival_s": "float64",
    "prompt": "object",
    "num_prompt_tokens": "Int64",
    "max_tokens": "Int64",
    "ignore_eos": "bool",
    "chat": "bool",
    "temperature": "float64",
    "follows": "object",
}
SCENARIO_FIELDS = (
    "model",
    "policy",
    "limits",
    "dtype",
    "weights",
    "kv_dtype",
    "block_size",
    "seed",
    "speculation",
    "requests",
)
Request = Mapping[str, Any]


def frame(requests: Sequence[Request]) -> pd.DataFrame:
    """The table of the requests, defaults written out. Pure."""
    defaults = {name: RequestSpec.model_fields[name].default for name in COLUMNS}
    rows = [{name: request.get(name, defaults[name]) for name in COLUMNS} for request in requests]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(_DTYPES)


def edited(requests: Sequence[Request], change: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The requests after an edit, as Streamlit's table tells it: ``edited_rows``, ``added_rows``, ``deleted_rows``."""
    found = [dict(request) for request in requests]
    for index, cells in change.get("edited_rows", {}).items():
        found[int(index)] = _with(found[int(index)], cells)
    gone = {int(index) for index in change.get("deleted_rows", ())}
    kept = [request for index, request in enumerate(found) if index not in gone]
    return kept + [_with({}, cells) for cells in change.get("added_rows", ())]


def _with(request: dict[str, Any], cells: Mapping[str, Any]) -> dict[str, Any]:
    """The request with these cells; an emptied one is the default, and is left out. Pure."""
    after = dict(request)
    for name, value in cells.items():
        if name not in COLUMNS:
            continue
        empty = value is None or value == "" or (isinstance(value, float) and math.isnan(value))
        if empty or value == RequestSpec.model_fields[name].default:
            after.pop(name, None)
        else:
            after[name] = int(value) if name in _WHOLE and float(value).is_integer() else value
    return after


def not_in_the_form(data: Mapping[str, Any]) -> list[str]:
    """Fields of a scenario that the form has no place for, by name; they stay as the JSON says. Pure."""
    found = [name for name in data if name not in SCENARIO_FIELDS]
    for index, request in enumerate(data.get("requests", ())):
        found += [f"requests[{index}].{name}" for name in request if name not in COLUMNS]
    return found


def made(count: int, gap_s: float, prompt: str, prompt_tokens: int, max_tokens: int) -> list[dict[str, Any]]:
    """``count`` like requests, one every ``gap_s`` seconds, of exactly these lengths. Pure."""
    return [
        {
            "request_id": f"r{index + 1}",
            **({"arrival_s": round(index * gap_s, 6)} if index and gap_s else {}),
            "prompt": prompt,
            "num_prompt_tokens": prompt_tokens,
            "max_tokens": max_tokens,
            "ignore_eos": True,
        }
        for index in range(count)
    ]
