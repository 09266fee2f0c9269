"""Numbers as people read them: three significant digits, a unit, the separators of the reader's language.

Every number on a page or in a report goes through here, so that the same quantity looks the same everywhere. Bytes are
decimal (1 GB = 10^9 bytes). Pure functions; None is drawn as a dash, because an absent measurement is not a zero.
"""

from __future__ import annotations

import math
from decimal import Decimal

from babel.numbers import format_decimal

DASH = "–"
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def number(value: float | None, lang: str, digits: int = 3) -> str:
    """``value`` with ``digits`` significant digits; whole numbers below a million are written out."""
    if value is None or not math.isfinite(value):
        return DASH
    if value == int(value) and abs(value) < 1e6:
        return format_decimal(int(value), locale=lang)
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    shown = round(Decimal(repr(float(value))), places)
    return format_decimal(shown, format="#,##0." + "0" * places if places else "#,##0", locale=lang)


def milliseconds(value: float | None, lang: str) -> str:
    """A duration given in milliseconds: ms below 1 s, else s, else min."""
    if value is None or not math.isfinite(value):
        return DASH
    if abs(value) < 1_000:
        return f"{number(value, lang)} ms"
    if abs(value) < 120_000:
        return f"{number(value / 1_000, lang)} s"
    return f"{number(value / 60_000, lang)} min"


def seconds(value: float | None, lang: str) -> str:
    """A duration given in seconds."""
    return milliseconds(None if value is None else value * 1_000, lang)


def byte_count(value: float | None, lang: str) -> str:
    """Bytes in the largest decimal unit that leaves a number of at least 1."""
    if value is None:
        return DASH
    for size, unit in _BYTES:
        if abs(value) >= size:
            return f"{number(value / size, lang)} {unit}"
    return f"{number(value, lang)} B"


def flop_count(value: float | None, lang: str) -> str:
    """Floating-point operations in the largest fitting unit."""
    if value is None:
        return DASH
    for size, unit in ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP")):
        if abs(value) >= size:
            return f"{number(value / size, lang)} {unit}"
    return f"{number(value, lang)} FLOP"


def percent(share: float | None, lang: str) -> str:
    """A share in 0..1 as per cent; Chinese sets no space before the sign."""
    space = "" if lang == "zh" else " "
    return DASH if share is None or not math.isfinite(share) else f"{number(share * 100, lang)}{space}%"


def factor(value: float | None, lang: str) -> str:
    """A ratio with the multiplication sign: 2.4×."""
    return DASH if value is None or not math.isfinite(value) else f"{number(value, lang)}×"
