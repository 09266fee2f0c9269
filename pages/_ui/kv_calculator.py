"""The KV calculator: the cache of any model with other KV heads and formats, and how many requests fit a card.

All numbers are modelled from published shapes and from the engine's own formula; the memory of a card is its maker's
word. Scales of quantized formats are left out and said to be. Three knobs: the model, the positions, the card.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from engine.lab import catalogue
from engine.lab.records import ModelInfo
from engine.lab.work import (
    bytes_per_element,
    kv_bytes_per_token,
    kv_cache_bytes,
    kv_outgrows_weights_at,
    num_requests_that_fit,
    stored_bytes_per_element,
    with_kv_heads,
)
from pages._ui import charts, links, palette, session
from pages._ui.badges import badge, escape, note
from pages._ui.charts import _byte_unit, frame
from pages._ui.i18n import language, t
from pages._ui.units import byte_count, number

_NS = "kv_calculator"
HERE = "here"  # the model at hand, in place of one of the catalogue
POSITIONS = tuple(2**power for power in range(9, 18))  # 512 to 131 072
FORMATS = (("bfloat16", 16), ("int8", 8), ("int4", 4))
WEIGHTS = "bfloat16"
RESERVED_GB = 2.0  # activations and the rest, as the source lesson takes it
CARDS = tuple(device.id for device in catalogue.devices() if device.memory_gb and device.kind == "gpu")
MODEL = links.ChoiceSetting("kv_model", "llama-2-7b", (HERE, *(model.id for model in catalogue.models())))
LENGTH = links.IntSetting("kv_positions", 2_048, POSITIONS[0], POSITIONS[-1], POSITIONS)
CARD = links.ChoiceSetting("kv_card", "rtx-4090" if "rtx-4090" in CARDS else CARDS[0], CARDS)
SETTINGS = (MODEL, LENGTH, CARD)


@dataclass(frozen=True)
class Variant:
    """A model with so many KV heads. ``built``: as it was published."""

    kind: str  # mha | gqa | mqa
    built: bool
    model: ModelInfo

    @property
    def name(self) -> str:
        heads = t(f"{_NS}.{self.kind}", heads=self.model.num_kv_heads)
        return t(f"{_NS}.as_built", name=heads) if self.built else heads


def variants(model: ModelInfo) -> list[Variant]:
    """MHA, the model's own, MQA: without doubles, most KV heads first. Pure."""
    counts = sorted({model.num_heads, model.num_kv_heads, 1}, reverse=True)
    kinds = {model.num_heads: "mha", 1: "mqa"}
    return [Variant(kinds.get(n, "gqa"), n == model.num_kv_heads, with_kv_heads(model, n)) for n in counts]


def draw(at_hand: ModelInfo | None) -> None:
    """The whole calculator. ``at_hand``: the model of the learner's Run, None before the first one."""
    st.subheader(t(f"{_NS}.title"), anchor=False)
    if at_hand is None:
        about = (session.device() or {}).get("default_model")
        at_hand = ModelInfo.model_validate(about) if about else None
    st.fragment(_draw)(at_hand)


def _draw(at_hand: ModelInfo | None) -> None:
    links.restore(SETTINGS)
    links.show_notices(SETTINGS)
    left, middle, right = st.columns(3)
    with left:
        st.selectbox(
            t(f"{_NS}.model"), MODEL.choices, format_func=lambda name: _model_name(name, at_hand), key=MODEL.key
        )
    with middle:
        st.select_slider(t(f"{_NS}.positions"), POSITIONS, format_func=lambda n: f"{n:,}", key=LENGTH.key)
    with right:
        st.selectbox(t(f"{_NS}.card"), CARDS, format_func=_card_name, key=CARD.key)
    chosen = links.publish(SETTINGS)
    model, context = _model(chosen[MODEL.key], at_hand)
    if model is None:
        st.info(t(f"{_NS}.no_model"), icon=":material/hourglass_top:")
        return
    positions = chosen[LENGTH.key]
    if context is not None and positions > context:
        note(f":material/info: {t(f'{_NS}.beyond', n=f'{context:,}')}")
    _formula(model, positions)
    _sizes(model, positions)
    _growth(model, positions)
    _fitting(model, positions, catalogue.device(chosen[CARD.key]))


def _model_name(name: str, at_hand: ModelInfo | None) -> str:
    if name != HERE:
        return catalogue.model(name).name
    return t(f"{_NS}.here", name=at_hand.name if at_hand else "–")


def _card_name(card_id: str) -> str:
    device = catalogue.device(card_id)
    return f"{device.name}, {device.memory_gb.value:g} GB"


def _model(name: str, at_hand: ModelInfo | None) -> tuple[ModelInfo | None, int | None]:
    """The shape in 16-bit weights, and the longest context it was made for where the catalogue says so."""
    if name != HERE:
        entry = catalogue.model(name)
        return entry.info(WEIGHTS), entry.context
    if at_hand is None:
        return None, None
    scale = bytes_per_element(WEIGHTS) / stored_bytes_per_element(at_hand)
    context = (at_hand.model_extra or {}).get("max_positions")
    model = at_hand.model_copy(update={"weight_bytes": round(at_hand.weight_bytes * scale)})
    return model, context if isinstance(context, int) else None


def _formula(model: ModelInfo, positions: int) -> None:
    lang, size = language(), bytes_per_element(WEIGHTS)
    st.markdown(
        t(
            f"{_NS}.formula",
            layers=model.num_layers,
            heads=model.num_kv_heads,
            dim=model.head_dim,
            size=number(size, lang),
            per_position=f"{int(kv_bytes_per_token(model, size)):,}",
            positions=f"{positions:,}",
            result=byte_count(kv_cache_bytes(model, positions, size), lang),
        )
        + f" {badge('modelled')}"
    )


def _sizes(model: ModelInfo, positions: int) -> None:
    """One request: attention variants down, formats across."""
    lang = language()
    columns = {t(f"{_NS}.col_heads"): [variant.name for variant in variants(model)]}
    for dtype, bits in FORMATS:
        size = bytes_per_element(dtype)
        columns[t(f"{_NS}.col_bits", n=bits)] = [
            byte_count(kv_cache_bytes(variant.model, positions, size), lang) for variant in variants(model)
        ]
    st.markdown(f"**{t(f'{_NS}.sizes', n=f'{positions:,}')}** {badge('modelled')}")
    st.table(pd.DataFrame(columns), hide_index=True, border="horizontal", alt=t(f"{_NS}.sizes_alt"))
    note(t(f"{_NS}.sizes_note"))


def _growth(model: ModelInfo, positions: int) -> None:
    """KV bytes over positions on logarithmic axes, and the line of the weights that they cross."""
    lang, size = language(), bytes_per_element(WEIGHTS)
    shown = variants(model)
    unit, unit_name = _byte_unit(max(float(model.weight_bytes), kv_cache_bytes(shown[0].model, POSITIONS[-1], size)))
    figure, dashes = go.Figure(), ("solid", "dash", "dot")
    crossings = [kv_outgrows_weights_at(variant.model, size) for variant in shown]
    for variant, dash, crossing in zip(shown, dashes, crossings, strict=False):
        figure.add_scatter(
            x=list(POSITIONS),
            y=[kv_cache_bytes(variant.model, n, size) / unit for n in POSITIONS],
            mode="lines",
            name=variant.name,
            line={"color": palette.MODEL, "width": 4 if variant.built else 2, "dash": dash},
            hovertemplate="%{x}: %{y:.3g} " + unit_name + f"<extra>{escape(variant.name)}</extra>",
        )
        if crossing > POSITIONS[-1]:
            continue
        figure.add_scatter(
            x=[crossing],
            y=[kv_cache_bytes(variant.model, crossing, size) / unit],
            mode="markers+text",
            text=[f"{crossing:,}"],
            textposition="top left",
            textfont={"size": 15},
            marker={"symbol": "circle-open", "size": 13, "color": palette.VERMILION, "line": {"width": 3}},
            showlegend=False,
            hovertemplate=f"{crossing:,}<extra></extra>",
        )
    figure.add_hline(y=model.weight_bytes / unit, line={"color": palette.PURPLE, "width": 3})
    figure.add_annotation(
        x=0.01,
        xref="paper",
        xanchor="left",
        y=math.log10(model.weight_bytes / unit),
        yanchor="bottom",
        text=t(f"{_NS}.weights", size=byte_count(model.weight_bytes, lang)),
        showarrow=False,
        font={"size": 15},
        bgcolor=palette.paper(st.context.theme.type),
    )
    figure.add_vline(x=positions, line={"color": palette.GREY, "width": 1.5, "dash": "dot"})
    frame(figure, height=400, x=t(f"{_NS}.x_positions"), y=t(f"{_NS}.y_bytes", unit=unit_name))
    ends = [math.log10(POSITIONS[0] * 0.9), math.log10(POSITIONS[-1] * 1.25)]
    figure.update_xaxes(
        type="log", range=ends, tickvals=list(POSITIONS[::2]), ticktext=[f"{n:,}" for n in POSITIONS[::2]]
    )
    figure.update_yaxes(type="log", dtick=1)
    table = pd.DataFrame({t(f"{_NS}.x_positions"): POSITIONS})
    for variant in shown:
        table[variant.name] = [kv_cache_bytes(variant.model, n, size) for n in POSITIONS]
    parts = [
        t(f"{_NS}.from", name=variant.name, n=f"{crossing:,}")
        for variant, crossing in zip(shown, crossings, strict=True)
    ]
    sentence = t(
        f"{_NS}.outgrows",
        model=escape(model.name),
        weights=byte_count(model.weight_bytes, lang),
        list=t(f"{_NS}.semicolon").join(parts),
    )
    charts.show(
        figure,
        key="kv_curve",
        title=t(f"{_NS}.curve"),
        alt=t(f"{_NS}.curve_alt", sentence=sentence),
        table=table,
        provenance=lambda: note(f"{badge('modelled')} {sentence} {t(f'{_NS}.curve_note')}"),
    )


def _fitting(model: ModelInfo, positions: int, card: catalogue.Device) -> None:
    """How many requests of this length fit the card beside the weights."""
    memory = card.memory_gb
    columns = {t(f"{_NS}.col_heads"): [variant.name for variant in variants(model)]}
    for dtype, bits in FORMATS:
        size = bytes_per_element(dtype)
        columns[t(f"{_NS}.col_bits", n=bits)] = [
            f"{num_requests_that_fit(v.model, memory.value * 1e9, positions, size, RESERVED_GB * 1e9):,}"
            for v in variants(model)
        ]
    st.markdown(f"**{t(f'{_NS}.fit', card=escape(card.name), n=f'{positions:,}')}** {badge('modelled')}")
    st.table(pd.DataFrame(columns), hide_index=True, border="horizontal", alt=t(f"{_NS}.fit_alt"))
    source = t(f"{_NS}.card_source", memory=f"{memory.value:g}", source=escape(memory.source))
    note(f"{badge('spec')} {source}  \n{t(f'{_NS}.fit_note', reserved=f'{RESERVED_GB:g}')}")
