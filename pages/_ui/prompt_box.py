"""The settings of the prefill-and-decode lesson: a prompt, its length, the output's length; nothing more.

It decides the limits a learner sees and says in one sentence what is wrong with a prompt before the engine would; the
engine checks everything again. All three settings travel in the link.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from engine.server.client import EngineRefused, EngineUnavailable
from lessons.scenarios import OUTPUT_TOKENS_RANGE, SUGGESTED_PROMPTS
from pages._ui import links, session
from pages._ui.badges import note
from pages._ui.i18n import language, t

MAX_CHARACTERS = 1_000
MAX_POSITIONS = 1_024  # the prompt is computed in one step of at most so many tokens
LENGTHS = (0, 8, 16, 32, 64, 128, 256, 512)  # 0 = as written

PROMPT = links.TextSetting("pd_prompt", SUGGESTED_PROMPTS["en"][0], MAX_CHARACTERS)
LENGTH = links.IntSetting("pd_length", 0, 0, 512, LENGTHS)
OUTPUT = links.IntSetting("pd_output", 64, *OUTPUT_TOKENS_RANGE)
SETTINGS = (PROMPT, LENGTH, OUTPUT)


def settings() -> dict[str, Any]:
    """Draw the inputs. Returns the three values by key, checked."""
    lang = language()
    fresh = PROMPT.key not in st.session_state and PROMPT.key not in st.query_params
    links.restore(SETTINGS)
    if fresh and st.session_state[PROMPT.key] == PROMPT.default:
        st.session_state[PROMPT.key] = SUGGESTED_PROMPTS[lang][0]
    links.show_notices(SETTINGS)
    prompts = SUGGESTED_PROMPTS[lang]
    note(t("prefill_decode.suggested"))
    with st.container(horizontal=True, gap="small"):
        for index, prompt in enumerate(prompts):
            st.button(prompt, key=f"pd_suggestion_{index}", on_click=_take_suggestion, args=(prompt,), wrap=True)
    st.text_area(t("prefill_decode.prompt"), key=PROMPT.key, height=100, help=t("prefill_decode.prompt_help"))
    left, right = st.columns(2)
    with left:
        st.select_slider(
            t("prefill_decode.prompt_tokens"),
            options=LENGTHS,
            format_func=_length_word,
            key=LENGTH.key,
            help=t("prefill_decode.prompt_tokens_help"),
        )
    with right:
        st.slider(
            t("prefill_decode.output_tokens"),
            min_value=OUTPUT.minimum,
            max_value=OUTPUT.maximum,
            key=OUTPUT.key,
            help=t("prefill_decode.output_tokens_help"),
        )
    return links.publish(SETTINGS)


def problem(values: dict[str, Any]) -> str | None:
    """What keeps this prompt from being run, in one sentence; shows the token count where the engine can be asked."""
    prompt, length, output = values[PROMPT.key], values[LENGTH.key], values[OUTPUT.key]
    slot = st.container()  # always there, so that the count's coming does not rebuild the form below it
    if not prompt.strip():
        return t("prefill_decode.empty")
    if len(prompt) > MAX_CHARACTERS:
        return t("prefill_decode.too_long", n=f"{len(prompt):,}", limit=f"{MAX_CHARACTERS:,}")
    count = _count_tokens(prompt, length == 0) if session.engine_state().ready else None
    if count is None:
        return None
    if length:
        with slot:
            note(t("prefill_decode.counted_fixed", n=count, target=length))
        return None
    with slot:
        note(t("prefill_decode.counted", n=count))
    if count + output > MAX_POSITIONS:
        return t("prefill_decode.too_many_tokens", n=count, limit=MAX_POSITIONS)
    return None


def _length_word(length: int) -> str:
    return t("prefill_decode.prompt_tokens_value", n=length) if length else t("prefill_decode.prompt_as_written")


def _take_suggestion(prompt: str) -> None:
    st.session_state[PROMPT.key] = prompt


@st.cache_data(max_entries=256, ttl=600, show_spinner=False)
def _count_tokens(prompt: str, chat: bool) -> int | None:
    try:
        return session.client().tokenize(prompt, chat=chat).num_tokens
    except (EngineUnavailable, EngineRefused):
        return None
