"""A code by which a learner goes on in another browser, on another device or after the cookies are gone.

It decides what a code looks like: twelve letters and digits that cannot be mistaken for each other, 59 random bits. Who
has the code has the learner's records, so it is shown to nobody but the learner; it is not the id of the cookie.
"""

from __future__ import annotations

import secrets

from lessons.store import Store

_ALPHABET = "23456789ABCDEFGHJKMNPQRSTUVWXYZ"
_LENGTH = 12
_GROUP = 4
_KEY = "learner_code"
_CONTINUES = "continues"  # preference of a browser's own learner: whose records it goes on with


def code_of(store: Store, learner: str) -> str:
    """The learner's code, as it is shown; made the first time. Effect: stored."""
    kept = store.preference(learner, _KEY)
    if kept is None:
        kept = "".join(secrets.choice(_ALPHABET) for _ in range(_LENGTH))
        store.set_preference(learner, _KEY, kept)
    return "-".join(kept[i : i + _GROUP] for i in range(0, _LENGTH, _GROUP))


def owner(store: Store, code: str) -> str | None:
    """The learner who has this code, however it was typed; None for a code that nobody has."""
    plain = "".join(c for c in code.upper() if c.isalnum())
    if len(plain) != _LENGTH or set(plain) - set(_ALPHABET):
        return None
    return store.learner_with(_KEY, plain)


def go_on_as(store: Store, browser: str, learner: str | None) -> None:
    """Effect: the browser whose own learner is ``browser`` goes on with the records of ``learner``; None: its own."""
    store.set_preference(browser, _CONTINUES, learner if learner and learner != browser else "")


def goes_on_as(store: Store, browser: str) -> str:
    """Whose records the browser goes on with: usually its own."""
    return store.preference(browser, _CONTINUES) or browser
