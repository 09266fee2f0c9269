"""The page parts of the lesson on training and inference: its two settings, and the pictures of its Run.

Writing, reading and training are drawn side by side from one Run. Times are measured; FLOPs and bytes are counted from
shapes, so they carry the badge of a model. Colours: writing is decode, reading is prefill, training has its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from lessons.training_inference.facts import ThreeWays, Way
from lessons.training_inference.scenarios import DEFAULT_LENGTH, LENGTHS, STARTS
from pages._ui import charts, compare, jobs, links, palette, session
from pages._ui.badges import badge, note, provenance
from pages._ui.charts import frame
from pages._ui.i18n import language, t
from pages._ui.player import timeline_player
from pages._ui.units import byte_count, flop_count, number, seconds

_NS = "training_inference"
START = links.ChoiceSetting("ti_start", "1", tuple(str(i) for i in range(1, len(STARTS) + 1)))
LENGTH = links.IntSetting("ti_length", DEFAULT_LENGTH, LENGTHS[0], LENGTHS[-1], LENGTHS)
SETTINGS = (START, LENGTH)
_COLOURS = {"write": palette.DECODE, "read": palette.PREFILL, "train": palette.PURPLE}
_SHOWN_CHARACTERS = 1_200


def settings() -> tuple[str, int]:
    """Draw the two inputs. Returns how the text begins and how many tokens it gets, checked."""
    links.restore(SETTINGS)
    links.show_notices(SETTINGS)
    st.segmented_control(
        t(f"{_NS}.start"),
        options=START.choices,
        format_func=lambda choice: STARTS[int(choice) - 1],
        key=START.key,
        required=True,
        wrap=True,
        help=t(f"{_NS}.start_help"),
    )
    st.select_slider(
        t(f"{_NS}.length"),
        options=LENGTHS,
        format_func=lambda length: t(f"{_NS}.length_value", n=length),
        key=LENGTH.key,
        help=t(f"{_NS}.length_help"),
    )
    chosen = links.publish(SETTINGS)
    return STARTS[int(chosen[START.key]) - 1], chosen[LENGTH.key]


def measuring(view: jobs.View) -> None:
    """While the run goes on: say so when all tokens are there and the training step is being measured."""
    if view.status is not None and view.status.num_tokens >= view.status.total_tokens:
        st.markdown(f":material/hourglass_top: {t(f'{_NS}.measuring')}")


# ------------------------------------------------------------------------------------------------- pictures
def draw(found: ThreeWays) -> None:
    """All pictures in reading order."""
    text(found)
    timeline(found)
    times(found)
    intensities(found)


def text(found: ThreeWays) -> None:
    """What was written, read and learned from; and what came next when it was read."""
    spoken = session.store().texts(found.run.run_id)
    written, read_on = spoken.texts.get("write", ""), spoken.texts.get("read", "")
    st.subheader(t(f"{_NS}.text"), anchor=False)
    st.code(f"{_beginning(found)}{written}"[:_SHOWN_CHARACTERS] or " ", language=None, wrap_lines=True)
    note(t(f"{_NS}.text_note", n=found.num_tokens, start=found.start, written=found.write.num_tokens))
    if read_on:
        st.code(read_on, language=None)
        note(t(f"{_NS}.read_note"))


def _beginning(found: ThreeWays) -> str:
    return str(found.run.header.scenario["requests"][0].get("prompt") or "")


def timeline(found: ThreeWays) -> None:
    """The Run on its clock: many small steps, then one large one. The training step follows outside of it."""
    st.subheader(t(f"{_NS}.timeline"), anchor=False)
    pieces = session.store().texts(found.run.run_id).pieces or None
    names = {name: t(f"{_NS}.row_{name}") for name in ("write", "read")}
    timeline_player(
        [(t("common.policy_run"), found.run)], lang=language(), key="ti_player", texts=[pieces], names=names
    )
    provenance(found.run)


def times(found: ThreeWays) -> None:
    lang = language()
    names, ways = _named(found), list(found.ways.values())
    figure = _bars(
        names,
        [way.seconds for way in ways],
        [seconds(way.seconds, lang) for way in ways],
        t(f"{_NS}.x_time"),
    )
    if found.write.modelled_s is not None:
        figure.add_scatter(
            x=[way.modelled_s for way in ways],
            y=names,
            mode="markers",
            name=t(f"{_NS}.modelled"),
            marker={"symbol": "diamond-open", "size": 15, "color": palette.MODEL, "line": {"width": 3}},
            hovertemplate="%{y}: %{x:.3g} s<extra></extra>",
            showlegend=True,
        )
    table = pd.DataFrame(
        {
            t(f"{_NS}.col_way"): names,
            t(f"{_NS}.col_passes"): [_passes(name, way) for name, way in found.ways.items()],
            t(f"{_NS}.col_tokens"): [way.num_tokens for way in ways],
            t(f"{_NS}.col_ms"): [round(1e3 * way.seconds, 1) for way in ways],
            t(f"{_NS}.col_ms_per_token"): [round(1e3 * way.seconds / way.num_tokens, 2) for way in ways],
            t(f"{_NS}.col_modelled"): [None if w.modelled_s is None else round(1e3 * w.modelled_s, 1) for w in ways],
        }
    )
    charts.show(
        figure,
        key="ti_times",
        title=t(f"{_NS}.times", n=found.num_tokens),
        alt=t(
            f"{_NS}.times_alt",
            write=seconds(found.write.seconds, lang),
            read=seconds(found.read.seconds, lang),
            train=seconds(found.train.seconds, lang),
        ),
        table=table,
        provenance=lambda: provenance(found.run, modelled=found.write.modelled_s is not None),
    )


def intensities(found: ThreeWays) -> None:
    """FLOP per byte of the three, on a logarithmic axis, with the ridge point of this device where it is known."""
    lang, device = language(), found.run.header.device
    names, ways = _named(found), list(found.ways.values())
    values = [way.intensity for way in ways]
    figure = _bars(names, values, [number(value, lang) for value in values], t(f"{_NS}.x_intensity"))
    low = min([*values, 1.0]) / 2
    figure.update_xaxes(type="log", range=_log_range(low, max(values) * 4), dtick=1)
    figure.update_traces(base=low, selector={"type": "bar"})
    figure.data[0].x = [value - low for value in values]  # on a logarithmic axis a bar has to begin somewhere
    ridge = None
    if device.read_gbps and device.matmul_tflops:
        ridge = device.matmul_tflops * 1e3 / device.read_gbps
        figure.add_vline(x=ridge, line={"color": palette.MODEL, "width": 3, "dash": "dash"})
        figure.add_annotation(
            x=_log10(ridge),
            xref="x",
            y=1.02,
            yref="paper",
            yanchor="bottom",
            text=t(f"{_NS}.ridge", ridge=number(ridge, lang)),
            showarrow=False,
            font={"size": 15},
        )
    table = pd.DataFrame(
        {
            t(f"{_NS}.col_way"): names,
            t(f"{_NS}.col_flops"): [way.flops for way in ways],
            t(f"{_NS}.col_bytes"): [way.num_bytes for way in ways],
            t(f"{_NS}.col_intensity"): [round(value, 3) for value in values],
        }
    )
    charts.show(
        figure,
        key="ti_intensity",
        title=t(f"{_NS}.intensities"),
        alt=t(
            f"{_NS}.intensities_alt",
            write=number(values[0], lang),
            read=number(values[1], lang),
            train=number(values[2], lang),
            ridge=number(ridge, lang),
        ),
        table=table,
        provenance=lambda: _counted(found),
    )


def _counted(found: ThreeWays) -> None:
    """FLOPs and bytes follow from shapes; only what training keeps was measured, and so was the ridge point."""
    note(f"{badge('modelled')} {t(f'{_NS}.counted')}")
    provenance(found.run)


def _named(found: ThreeWays) -> list[str]:
    return [t(f"{_NS}.way_{name}") for name in found.ways]


def _passes(name: str, way: Way) -> str:
    return t(f"{_NS}.passes_train") if name == "train" else str(way.num_passes)


def _bars(names: Sequence[str], values: Sequence[float], texts: Sequence[str], x: str) -> go.Figure:
    """Horizontal bars, the first on top, each with its value written on it."""
    figure = go.Figure()
    figure.add_bar(
        x=list(values),
        y=list(names),
        orientation="h",
        marker={"color": list(_COLOURS.values()), "pattern": {"shape": ["", "", "/"], "solidity": 0.4}},
        text=[f"{'':3}{text}" for text in texts],  # clear of the modelled mark, which is often at the bar's end
        textposition="outside",
        textfont={"size": 16},
        cliponaxis=False,
        hovertemplate="%{y}: %{text}<extra></extra>",
        showlegend=False,
    )
    frame(figure, height=290, x=x, y="")
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(range=[0, max(values) * 1.65])
    return figure


def _log10(value: float) -> float:
    return math.log10(value)


def _log_range(low: float, high: float) -> list[float]:
    return [_log10(low), _log10(high)]


# ------------------------------------------------------------------------------------------------- comparison
def comparison(found: ThreeWays) -> None:
    """The three side by side in everything that counts, then measured beside modelled times with their formulas."""
    _side_by_side(found)
    lang, device = language(), found.run.header.device
    rows = [
        compare.Row(
            t(f"{_NS}.way_{name}"),
            way.seconds,
            way.modelled_s,
            seconds(way.seconds, lang),
            seconds(way.modelled_s, lang),
            t(
                f"{_NS}.formula_{name}",
                passes=way.num_passes,
                bytes=byte_count(way.num_bytes, lang),
                flops=flop_count(way.flops, lang),
                read=number(device.read_gbps, lang),
                rate=number(device.matmul_tflops, lang),
                weights=byte_count(found.step.weight_bytes, lang),
                gradients=byte_count(found.step.gradient_bytes, lang),
                kept=byte_count(found.step.activation_bytes, lang),
                result=seconds(way.modelled_s, lang),
            ),
        )
        for name, way in found.ways.items()
    ]
    compare.table(rows, found.run, key="ti_compare")
    st.markdown(t(f"{_NS}.compare_note"))


def _side_by_side(found: ThreeWays) -> None:
    lang = language()
    measured, modelled = badge("measured"), badge("modelled")
    columns: dict[str, list[str]] = {
        t(f"{_NS}.col_quantity"): [
            t(f"{_NS}.col_passes"),
            f"{t(f'{_NS}.row_time')} {measured}",
            f"{t(f'{_NS}.row_per_token')} {measured}",
            f"FLOP {modelled}",
            f"{t(f'{_NS}.row_bytes')} {modelled}",
            f"{t(f'{_NS}.row_intensity')} {modelled}",
        ]
    }
    for name, way in found.ways.items():
        columns[t(f"{_NS}.way_{name}")] = [
            _passes(name, way),
            seconds(way.seconds, lang),
            seconds(way.seconds / way.num_tokens, lang),
            flop_count(way.flops, lang),
            byte_count(way.num_bytes, lang),
            number(way.intensity, lang),
        ]
    st.table(pd.DataFrame(columns), hide_index=True, border="horizontal", alt=t(f"{_NS}.table_alt"))
    provenance(found.run, modelled=True)
