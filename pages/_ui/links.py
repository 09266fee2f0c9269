"""The settings of a page travel in its link: read once from the query string, written back when they change.

Streamlit's own ``bind="query-params"`` puts the *shown* label of an option into the link, so a Chinese link would mean
nothing on an English page. Here a link carries ids and numbers only. A value that makes no sense falls back to the
default and is reported in one sentence; nothing from a link is ever used unparsed. Invariant: opening the link of a
page in a fresh browser gives the same settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from pages._ui.i18n import t

_WRITTEN = "_link_written"  # what this session last put into (or took from) the query string, per key
_VALUES = "_link_values"  # last value per key, so that a page switch does not reset the settings
_NOTICES = "_link_notices"


@dataclass(frozen=True)
class IntSetting:
    """A whole number in [minimum, maximum]; with ``choices`` only those."""

    key: str
    default: int
    minimum: int
    maximum: int
    choices: tuple[int, ...] = ()

    def parse(self, raw: str) -> int | None:
        """The value of ``raw``, or None when it is not allowed. Pure."""
        text = raw.strip()
        if not text.isascii() or not text.isdigit() or len(text) > 9:
            return None
        return self.valid(int(text))

    def valid(self, value: Any) -> int | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        allowed = value in self.choices if self.choices else self.minimum <= value <= self.maximum
        return value if allowed else None

    def allowed(self) -> str:
        if self.choices:
            return ", ".join(str(c) for c in self.choices)
        return t("common.link_range", low=self.minimum, high=self.maximum)


@dataclass(frozen=True)
class ChoiceSetting:
    """One of a few ids."""

    key: str
    default: str
    choices: tuple[str, ...]

    def parse(self, raw: str) -> str | None:
        return self.valid(raw.strip())

    def valid(self, value: Any) -> str | None:
        return value if value in self.choices else None

    def allowed(self) -> str:
        return ", ".join(self.choices)


@dataclass(frozen=True)
class TextSetting:
    """Free text. Longer than ``link_limit`` it stays out of the link: servers refuse very long addresses."""

    key: str
    default: str
    link_limit: int = 1_000

    def parse(self, raw: str) -> str | None:
        return raw if len(raw) <= self.link_limit else None

    def valid(self, value: Any) -> str | None:
        return value if isinstance(value, str) else None

    def allowed(self) -> str:
        return t("common.link_text", limit=self.link_limit)


Setting = IntSetting | ChoiceSetting | TextSetting


def restore(settings: Sequence[Setting]) -> None:
    """Put the value of each setting where its widget (same key) will find it. Call before the widgets are made.

    Order: a link that says something new, else what the session had, else the default.
    Effect: fills ``st.session_state``; a nonsense value leaves a notice for ``show_notices``.
    """
    written, values = st.session_state.setdefault(_WRITTEN, {}), st.session_state.setdefault(_VALUES, {})
    for setting in settings:
        raw = st.query_params.get(setting.key)
        if raw is not None and raw != written.get(setting.key):
            written[setting.key] = raw
            value = setting.parse(raw)
            if value is None:  # out of the address at once: some widgets, and what they publish, come only after a run
                _remember_notice(setting, raw)
                del st.query_params[setting.key], written[setting.key]
            st.session_state[setting.key] = setting.default if value is None else value
        elif setting.valid(st.session_state.get(setting.key)) is None:
            st.session_state[setting.key] = values.get(setting.key, setting.default)
        elif setting.key in values and st.session_state[setting.key] != values[setting.key]:
            st.session_state.get(_NOTICES, {}).pop(setting.key, None)  # the learner has changed it since


def publish(settings: Sequence[Setting]) -> dict[str, Any]:
    """Write the settings into the address and return them, checked again. Call after the widgets.

    Defaults stay out of the address, so that an untouched page has a clean one.
    """
    written, values = st.session_state[_WRITTEN], st.session_state[_VALUES]
    result: dict[str, Any] = {}
    for setting in settings:
        value = setting.valid(st.session_state.get(setting.key))
        value = setting.default if value is None else value
        result[setting.key] = value
        values[setting.key] = value
        shown = None if value == setting.default else str(value)
        if isinstance(setting, TextSetting) and shown is not None and len(shown) > setting.link_limit:
            shown = None
        if shown is None:
            st.query_params.pop(setting.key, None)
            written.pop(setting.key, None)
        else:
            if st.query_params.get(setting.key) != shown:
                st.query_params[setting.key] = shown
            written[setting.key] = shown
    return result


def show_notices(settings: Sequence[Setting]) -> None:
    """One warning per setting that the link got wrong, until the learner changes that setting."""
    notices = st.session_state.get(_NOTICES, {})
    with st.container():
        for setting in settings:
            if setting.key in notices:
                default = str(setting.default)
                st.warning(
                    t(
                        "common.link_nonsense" if default else "common.link_nonsense_dropped",
                        key=setting.key,
                        value=notices[setting.key],
                        allowed=setting.allowed(),
                        default=default,
                    ),
                    icon=":material/link_off:",
                )


def _remember_notice(setting: Setting, raw: str) -> None:
    # The value came from outside: shorten it and keep Markdown from reading anything into it.
    shown = "".join(c for c in raw[:24] if c.isalnum() or c in " .,_-+") or "?"
    st.session_state.setdefault(_NOTICES, {})[setting.key] = shown + ("…" if len(raw) > 24 else "")
