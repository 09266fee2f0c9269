"""One visual language: Okabe-Ito hues and patterns, the same on every page, never colour alone.

prefill = solid blue, decode = orange, padding = grey hatch, recompute = blue hatch, waiting = hollow. Ceilings are
lines, measured points filled, modelled points hollow. Axis and text colours are left to the theme: both modes work.
"""

from __future__ import annotations

BLUE = "#0072B2"
ORANGE = "#E69F00"
VERMILION = "#D55E00"
GREEN = "#009E73"
SKY = "#56B4E9"
PURPLE = "#CC79A7"
GREY = "#8A8A8A"

PREFILL = BLUE
DECODE = ORANGE
PADDING = GREY
MODEL = GREEN  # every modelled line or hollow point

STATIC = PURPLE  # the two policies of the batching lesson; static is hatched as well
CONTINUOUS = SKY

HATCH = "/"
_INK = {"light": "#31333F", "dark": "#E8E8EC"}
_PAPER = {"light": "rgba(255, 255, 255, 0.85)", "dark": "rgba(23, 22, 20, 0.85)"}


def ink(theme: str | None) -> str:
    """Colour of axis text: darker than the theme's own, because charts are read from the back row. Pure."""
    return _INK.get(theme or "light", _INK["light"])


def paper(theme: str | None) -> str:
    """What stands behind words that a line would otherwise go through: the page's own colour, nearly opaque. Pure."""
    return _PAPER["dark" if theme == "dark" else "light"]
