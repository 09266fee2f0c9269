"""Tokens of an answer to text, as they come: never half a character, never a stop string.

What was given out is always a prefix of the final text. Held back is only what may still change: bytes of an unfinished
UTF-8 character, and the longest tail that could begin a stop string. Where a stop string ends first, the text ends
before it. The result does not depend on how the text was cut into tokens.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from engine.model.tokenizer import ChatTokenizer


class TextStream:
    """The text of one request. ``text`` is all that was given out so far; ``stopped`` tells that a stop string came."""

    def __init__(self, tokenizer: ChatTokenizer, stop: Sequence[str] = ()) -> None:
        assert all(stop), "an empty stop string would stop everything"
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_start = tokenizer.strips_first_space
        self._held = ""
        self._parts: list[str] = []
        self._finished = False
        self.stopped = False

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def push(self, token_id: int) -> str:
        """The text this token adds that can no longer change; empty after a stop. Effect: advances the stream."""
        assert not self._finished, "nothing comes after finish()"
        data = self._tokenizer.token_bytes(token_id)
        if self._at_start and data:
            data, self._at_start = data.removeprefix(b" "), False
        return self._emit(self._decoder.decode(data))

    def finish(self) -> str:
        """What was still held back; an unfinished character becomes one U+FFFD. Effect: ends the stream."""
        if self._finished:
            return ""
        given = self._emit(self._decoder.decode(b"", final=True))
        if not self.stopped:
            given += self._give(self._held)
            self._held = ""
        self._finished = True
        return given

    def _emit(self, new: str) -> str:
        """Add decoded characters; give out what neither is nor could begin a stop string."""
        if self.stopped:
            return ""
        self._held += new
        match = self._first_match()
        if match is not None:
            self.stopped = True
            given, self._held = self._held[:match], ""
            return self._give(given)
        keep = self._tail_that_could_stop()
        given = self._held[: len(self._held) - keep]
        self._held = self._held[len(given) :]
        return self._give(given)

    def _give(self, text: str) -> str:
        if text:
            self._parts.append(text)
        return text

    def _first_match(self) -> int | None:
        """Where the stop string that is complete first begins; of two that end together, the longer one."""
        found = ((self._held.find(stop), stop) for stop in self._stop)
        ends = [(start + len(stop), start) for start, stop in found if start >= 0]
        return min(ends)[1] if ends else None

    def _tail_that_could_stop(self) -> int:
        """Length of the longest tail of the held text that is a proper beginning of a stop string."""
        longest = min(len(self._held), max(map(len, self._stop), default=1) - 1)
        for length in range(longest, 0, -1):
            tail = self._held[-length:]
            if any(len(stop) > length and stop.startswith(tail) for stop in self._stop):
                return length
        return 0
