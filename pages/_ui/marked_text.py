"""An answer as text from the pieces of its tokens, with a mark around one of them: where two answers part."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LOOSE = re.compile(r"<0x([89A-F][0-9A-F])>")


def marked(pieces: Sequence[str], place: int) -> str:
    """All pieces as one text, the one at ``place`` between ⟦ and ⟧. Pure.

    A token may hold a part of a character only; its piece then names the bytes, as <0xE4>. They are put together
    again, and the mark goes around the whole character.
    """
    data = [_bytes(piece) for piece in pieces]
    whole = b"".join(data)
    begin = len(b"".join(data[:place]))
    end = begin + len(data[place])
    while _goes_on(whole, begin):
        begin -= 1
    while _goes_on(whole, end):
        end += 1
    parts = [whole[:begin], whole[begin:end], whole[end:]]
    before, at, after = (part.decode("utf-8", errors="replace") for part in parts)
    return f"{before}⟦{at}⟧{after}"


def _bytes(piece: str) -> bytes:
    """The bytes behind a piece: those named in it as themselves, the rest as UTF-8."""
    found = _LOOSE.split(piece)  # text, byte, text, byte, ..., text
    return b"".join(bytes.fromhex(part) if i % 2 else part.encode("utf-8") for i, part in enumerate(found))


def _goes_on(data: bytes, position: int) -> bool:
    """Whether the byte there continues a character."""
    return 0 < position < len(data) and 0x80 <= data[position] < 0xC0
