"""The scenario of the playground by form and by JSON, each in step with the other.

The JSON text is what counts: a form field writes into it, and a text that is a scenario fills the form. While the text
is not one, the form is locked, so that nothing typed is lost, and one sentence says what is wrong. A short link carries
the scenario. Nothing runs here; the engine checks everything again.
"""

from __future__ import annotations

import json
from typing import Any

import streamlit as st

from engine.lab import scenario_link
from engine.lab.scenario import DEFAULT_MODEL, Limits, Scenario, ScenarioError, Speculation
from lessons import scenarios
from pages._ui import links, playground_rows, session
from pages._ui.badges import escape, note
from pages._ui.engine_words import said
from pages._ui.i18n import language, t

_NS = "playground"
TEXT, LINKED = "pg_json", "_pg_linked"
_DATA, _TYPED, _TABLE = "_pg_data", "_pg_typed", "_pg_table"  # last valid scenario, text, version of the table
POLICIES = ("static", "orca", "paged", "chunked", "cache_aware", "shortest_first")
LINK_CHARACTERS = 1_500
OFF = "off"
CHOICES: dict[str, tuple[str, ...]] = {
    "policy": POLICIES,
    "prefix_cache": ("none", "hash", "radix"),
    "kv_cache": ("keep", "none"),
    "dtype": ("float32", "bfloat16", "float16"),
    "weights": (OFF, "int8", "int4"),
    "kv_dtype": (OFF, "int8", "int4"),
}
LIMITS = ("max_requests", "max_batch_tokens", "num_blocks", "prefix_cache", "kv_cache")
STARTS = ("one", "abcd", "mixed", "shared", "tight")


class _LinkSetting(links.TextSetting):
    """The scenario of a link; one that cannot be read is named like any other bad value."""

    def parse(self, raw: str) -> str | None:
        try:
            scenario_link.decode(raw)
        except ScenarioError:
            return None
        return raw

    def allowed(self) -> str:
        return t(f"{_NS}.link_allowed")


LINK = _LinkSetting("pg", "", LINK_CHARACTERS)


# ------------------------------------------------------------------------------------------------- state
def prepare() -> None:
    """Fill the fields before they are drawn: from the link if it says something new, else as they were left."""
    links.restore([LINK])
    linked = st.session_state[LINK.key]
    if linked and linked != st.session_state.get(LINKED):
        st.session_state[LINKED] = linked
        load(scenario_link.decode(linked).model_dump(mode="json", exclude_defaults=True))
    elif _DATA not in st.session_state:
        load(start("abcd", language()))
    elif TEXT not in st.session_state:  # back from another page: its fields have been forgotten
        typed = st.session_state[_TYPED]
        load(st.session_state[_DATA])
        st.session_state[TEXT] = st.session_state[_TYPED] = typed


def load(data: dict[str, Any], text: str | None = None) -> None:
    """Effect: this scenario in the form, and as JSON unless ``text`` already says it. Call before the fields."""
    state = st.session_state
    state[_DATA] = data
    state[TEXT] = state[_TYPED] = _pretty(data) if text is None else text
    state[_TABLE] = state.get(_TABLE, 0) + 1
    limits = {name: data.get("limits", {}).get(name, Limits.model_fields[name].default) for name in LIMITS}
    values = {name: Scenario.model_fields[name].default for name in ("policy", "dtype", "block_size", "seed")}
    values |= {name: data[name] for name in values if name in data} | limits
    for name in ("weights", "kv_dtype"):
        values[name] = data.get(name) or OFF
    values["model"] = data.get("model", DEFAULT_MODEL)
    drafts = Speculation.model_fields["num_draft_tokens"].default
    values["drafts"] = data["speculation"].get("num_draft_tokens", drafts) if data.get("speculation") else 0
    for name, value in values.items():
        state[f"pg_{name}"] = value


def _pretty(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, indent=2)


def current() -> tuple[Scenario | None, str]:
    """The scenario of the JSON text, or None and what is wrong with it, in one sentence."""
    try:
        return Scenario.parse(json.loads(st.session_state[_TYPED])), ""
    except json.JSONDecodeError as error:
        return None, t(f"{_NS}.not_json", line=error.lineno, column=error.colno, why=said(error.msg))
    except RecursionError:
        return None, t(f"{_NS}.too_deep")
    except ScenarioError as error:
        return None, t(f"{_NS}.not_scenario", why=said(str(error)))


def publish() -> None:
    """Write the scenario into the link, if it is one and short enough. Effect: says so where it is too long."""
    scenario, _ = current()
    text = scenario_link.encode(scenario) if scenario is not None else ""
    if len(text) > LINK_CHARACTERS:
        note(f":material/link_off: {t(f'{_NS}.link_too_long', limit=LINK_CHARACTERS)}")
        text = ""
    st.session_state[LINK.key] = st.session_state[LINKED] = text
    links.publish([LINK])


# ------------------------------------------------------------------------------------------------- edits
def _from_text() -> None:
    """The learner has typed JSON."""
    text = st.session_state[_TYPED] = st.session_state[TEXT]
    scenario, _ = current()
    if scenario is not None:
        load(scenario.model_dump(mode="json", exclude_defaults=True), text)


def _from_form() -> None:
    """The learner has changed a field: only what differs from the defaults stands in the JSON."""
    state = st.session_state
    data = dict(state[_DATA])
    limits = {name: state[f"pg_{name}"] for name in LIMITS}
    drafts = state["pg_drafts"]
    values: dict[str, Any] = {name: state[f"pg_{name}"] for name in ("model", "policy", "dtype", "block_size", "seed")}
    values["limits"] = {k: v for k, v in limits.items() if v != Limits.model_fields[k].default}
    values |= {name: None if state[f"pg_{name}"] == OFF else state[f"pg_{name}"] for name in ("weights", "kv_dtype")}
    values["speculation"] = {**(data.get("speculation") or {}), "num_draft_tokens": drafts} if drafts else None
    for name, value in values.items():
        default = Scenario.model_fields[name].default
        if value in (None, "", {}) or value == default:
            data.pop(name, None)
        else:
            data[name] = value
    _write(data)


def _from_table() -> None:
    """The learner has edited, added or deleted a request. The table keeps its edits; they apply to its first rows."""
    state = st.session_state
    first = state["_pg_first_rows"]
    data = {**state[_DATA], "requests": playground_rows.edited(first, state[f"pg_requests_{state[_TABLE]}"])}
    _write(data)


def _write(data: dict[str, Any]) -> None:
    ordered = {name: data[name] for name in Scenario.model_fields if name in data}
    st.session_state[_DATA] = ordered
    st.session_state[TEXT] = st.session_state[_TYPED] = _pretty(ordered)


def _start(name: str) -> None:
    load(start(name, language()))


def _make() -> None:
    state = st.session_state
    prompt = scenarios.SUGGESTED_PROMPTS[language()][0]
    sizes = (state[f"pg_make_{name}"] for name in ("count", "gap", "prompt", "output"))
    count, gap_s, prompt_tokens, max_tokens = sizes
    load({**state[_DATA], "requests": playground_rows.made(count, gap_s, prompt, prompt_tokens, max_tokens)})


def start(name: str, lang: str) -> dict[str, Any]:
    """A scenario to begin with. Pure."""
    prompt = scenarios.SUGGESTED_PROMPTS[lang][0]
    if name in ("abcd", "mixed"):
        made = scenarios.batching(name, "chunked", lang=lang).model_dump(mode="json", exclude_defaults=True)
        made.pop("name", None)
        return made
    if name == "one":
        return {"requests": [{"request_id": "you", "prompt": prompt, "chat": True, "max_tokens": 64}]}
    if name == "shared":
        first = {"request_id": "r1", "prompt": prompt, "num_prompt_tokens": 96, "max_tokens": 8, "ignore_eos": True}
        rest = [
            {"request_id": f"r{n}", "follows": "r1", "prompt": f" {n}", "max_tokens": 12, "ignore_eos": True}
            for n in range(2, 6)
        ]
        limits = {"max_requests": 4, "prefix_cache": "radix"}
        return {"policy": "cache_aware", "limits": limits, "requests": [first, *rest]}
    limits = {"max_requests": 4, "num_blocks": 10}
    return {"policy": "paged", "limits": limits, "requests": playground_rows.made(4, 0.0, prompt, 24, 40)}


# ------------------------------------------------------------------------------------------------- drawing
def draw() -> None:
    """The form and the JSON, side by side in two tabs. Effect: widgets."""
    links.show_notices([LINK])
    scenario, wrong = current()
    note(t(f"{_NS}.starts"))
    with st.container(horizontal=True, gap="small"):
        for name in STARTS:
            st.button(t(f"{_NS}.start_{name}"), key=f"pg_start_{name}", on_click=_start, args=(name,))
    by_form, by_json = st.tabs([t(f"{_NS}.form"), t(f"{_NS}.json")])
    with by_form:
        _form(locked=not _fits_form())
    with by_json:
        note(t(f"{_NS}.json_hint"))
        st.text_area(t(f"{_NS}.json_label"), key=TEXT, height=420, on_change=_from_text)
    slot = st.container()  # always there, so that a sentence that comes does not rebuild what follows
    if scenario is None:
        slot.error(wrong, icon=":material/error:")


def _fits_form() -> bool:
    """Whether the form shows what the text says. A form's own bad value is no reason to lock it."""
    return st.session_state[_TYPED] == _pretty(st.session_state[_DATA]) or current()[0] is not None


def _form(locked: bool) -> None:
    if locked:
        st.warning(t(f"{_NS}.form_locked"), icon=":material/lock:")
        st.button(t(f"{_NS}.back_to_form"), key="pg_back", icon=":material/undo:", on_click=_back)
    shared = {"on_change": _from_form, "disabled": locked}
    with st.grid(2, min_column_width=320):
        _model(shared)
        _choice("policy", shared)
    with st.grid(4, min_column_width=180):
        _number("max_requests", 1, 256, shared)
        _number("max_batch_tokens", 1, 8_192, shared)
        _number("num_blocks", 1, 16_384, shared)
        _choice("prefix_cache", shared)
    with st.expander(t(f"{_NS}.more"), icon=":material/tune:"), st.grid(3, min_column_width=220):
        for name in ("dtype", "weights", "kv_dtype", "kv_cache"):
            _choice(name, shared)
        _number("block_size", 1, 256, shared)
        _number("drafts", 0, 16, shared)
        _number("seed", 0, 2**31 - 1, shared)
    _requests(locked)
    hidden = playground_rows.not_in_the_form(st.session_state[_DATA])
    if hidden:
        note(f":material/info: {t(f'{_NS}.hidden', fields=escape(', '.join(hidden[:8])))}")


def _back() -> None:
    load(st.session_state[_DATA])


def _model(shared: dict[str, Any]) -> None:
    about = session.device() or {}
    known = [model["name"] for model in about.get("models") or ()] or [DEFAULT_MODEL]
    chosen = st.session_state["pg_model"]
    options = known if chosen in known else [*known, chosen]
    st.selectbox(
        t(f"{_NS}.model"), options, key="pg_model", accept_new_options=True, help=t(f"{_NS}.model_help"), **shared
    )


def _choice(name: str, shared: dict[str, Any]) -> None:
    st.selectbox(
        t(f"{_NS}.{name}"),
        CHOICES[name],
        key=f"pg_{name}",
        format_func=option_words(name).__getitem__,
        help=t(f"{_NS}.{name}_help"),
        **shared,
    )


def option_words(name: str) -> dict[str, str]:
    """The ids a field offers, with what they mean in words where that is needed. Pure but for the language."""
    if name == "policy":
        return {value: f"{value} – {t(f'{_NS}.policy_{value}')}" for value in POLICIES}
    said = {OFF: t(f"{_NS}.as_is"), "none": t(f"{_NS}.without"), "keep": t(f"{_NS}.kept")}
    return {value: said.get(value, value) for value in CHOICES[name]}


def _number(name: str, low: int, high: int, shared: dict[str, Any]) -> None:
    st.number_input(t(f"{_NS}.{name}"), low, high, step=1, key=f"pg_{name}", help=t(f"{_NS}.{name}_help"), **shared)


def _requests(locked: bool) -> None:
    state = st.session_state
    note(t(f"{_NS}.requests"))
    if state.get("_pg_first_version") != state[_TABLE]:
        state["_pg_first_version"], state["_pg_first_rows"] = state[_TABLE], state[_DATA].get("requests", [])
    with st.expander(t(f"{_NS}.make"), icon=":material/playlist_add:"):
        with st.grid(4, min_column_width=150):
            sizes = (("count", 1, 64, 6), ("gap", 0.0, 60.0, 0.2), ("prompt", 1, 1_024, 32), ("output", 1, 512, 24))
            for name, low, high, value in sizes:
                state.setdefault(f"pg_make_{name}", value)
                st.number_input(t(f"{_NS}.make_{name}"), low, high, key=f"pg_make_{name}", disabled=locked)
        st.button(t(f"{_NS}.make_now"), key="pg_make", on_click=_make, disabled=locked)
    wide = {"prompt": st.column_config.TextColumn(t(f"{_NS}.col_prompt"), width=300)}
    names = {name: t(f"{_NS}.col_{name}") for name in playground_rows.COLUMNS if name != "prompt"}
    st.data_editor(
        playground_rows.frame(state["_pg_first_rows"]),
        num_rows="dynamic",
        hide_index=True,
        key=f"pg_requests_{state[_TABLE]}",
        on_change=_from_table,
        disabled=locked,
        column_config={**names, **wide},
        placeholder="–",
        alt=t(f"{_NS}.requests_alt"),
    )
