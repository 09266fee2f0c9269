"""The timeline player without a page around it: its script, its style, its data, and the same content in words.

A page mounts it as a component (``pages._ui.player``), a report as a part of its one file (``engine.lab.report``). The
JavaScript is plain and lies in ``js/``: its files are one module, joined in the order of their numbers. It exports one
function, which takes ``{parentElement, data}`` and draws into the ``.player`` inside that element.
"""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent
MOUNT = '<div class="player">\n</div>'  # a line break inside: Streamlit would take a one-line string for a path


def script() -> str:
    """The player as one module. It holds no ``</script``, so it may stand inside a page."""
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((_FOLDER / "js").glob("*.js")))


def stylesheet() -> str:
    """Its CSS. Colours and font are the ``--st-*`` variables of whoever mounts it."""
    return (_FOLDER / "player.css").read_text(encoding="utf-8")
