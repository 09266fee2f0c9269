"""Words that stand on a page and in a report alike: a catalogue per language, looked up when something is drawn.

``text/<lang>/<namespace>.yaml`` holds the strings of what both draw: the player and the report. The pages add their own
(``pages._ui.i18n``). Pure but for reading the files once. A missing key is a defect: it raises, and the tests hold both
languages to the same keys and placeholders.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import yaml

LANGUAGES = ("en", "zh")
TEXT_DIR = Path(__file__).parent / "text"


def read_texts(folder: Path, lang: str) -> dict[str, str]:
    """All strings of one language under ``folder`` by ``namespace.key``."""
    strings: dict[str, str] = {}
    for path in sorted((folder / lang).glob("*.yaml")):
        _flatten(path.stem, yaml.safe_load(path.read_text(encoding="utf-8")) or {}, strings)
    return strings


def _flatten(prefix: str, node: Mapping, into: dict[str, str]) -> None:
    for key, value in node.items():
        name = f"{prefix}.{key}"
        if isinstance(value, Mapping):
            _flatten(name, value, into)
        else:
            into[name] = str(value)


@lru_cache(maxsize=len(LANGUAGES))
def shared_texts(lang: str) -> Mapping[str, str]:
    """The strings of the player and the report."""
    return MappingProxyType(read_texts(TEXT_DIR, lang))


def say(lang: str, key: str, /, **values: object) -> str:
    """A shared string with its ``{placeholders}`` filled. Raises: KeyError for an unknown key."""
    text = shared_texts(lang)[key]
    return text.format(**values) if values else text


def escape_markdown(text: str) -> str:
    """``text`` with Markdown's special characters disarmed, for names that come from a machine or a person. Pure."""
    return "".join("\\" + c if c in "\\`*_{}[]()<>#+-.!|~$:" else c for c in text.replace("\n", " "))
