"""The page parts of the KV cache lesson: its three settings, the live view, and the pictures of its two Runs.

The memory pictures come from the block pool's own events, the formula stands beside them. Times of both Runs are drawn
on one axis; what the roofline says is hollow. Nothing here computes a definition: ``engine.lab`` and the lesson do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from engine.lab.kv_use import KvUse
from engine.lab.records import ModelInfo
from engine.lab.scenario import Scenario
from engine.lab.work import bytes_per_element, kv_bytes_per_token
from lessons.kv_cache.facts import Pair, Side, position_bytes
from lessons.kv_cache.scenarios import BLOCK_SIZES, DEFAULT_SIZES, OUTPUT_RANGE, PROMPT_LENGTHS
from pages._ui import block_map, charts, compare, jobs, links, palette, session
from pages._ui.badges import badge, escape, note, provenance
from pages._ui.charts import frame
from pages._ui.i18n import language, t
from pages._ui.units import byte_count, factor, flop_count, milliseconds, number

_NS = "kv_cache"
PROMPT = links.IntSetting("kv_prompt", DEFAULT_SIZES[0], PROMPT_LENGTHS[0], PROMPT_LENGTHS[-1], PROMPT_LENGTHS)
OUTPUT = links.IntSetting("kv_output", DEFAULT_SIZES[1], *OUTPUT_RANGE)
BLOCK = links.IntSetting("kv_block", DEFAULT_SIZES[2], BLOCK_SIZES[0], BLOCK_SIZES[-1], BLOCK_SIZES)
SETTINGS = (PROMPT, OUTPUT, BLOCK)
CACHED, UNCACHED = palette.DECODE, palette.SKY


def settings() -> dict[str, int]:
    """Draw the three inputs. Returns their values, checked."""
    links.restore(SETTINGS)
    links.show_notices(SETTINGS)
    left, middle, right = st.columns(3)
    with left:
        st.select_slider(t(f"{_NS}.prompt"), options=PROMPT_LENGTHS, format_func=_tokens, key=PROMPT.key)
    with middle:
        st.slider(t(f"{_NS}.output"), OUTPUT.minimum, OUTPUT.maximum, key=OUTPUT.key)
    with right:
        st.select_slider(
            t(f"{_NS}.block"),
            options=BLOCK_SIZES,
            format_func=lambda size: t(f"{_NS}.block_value", n=size),
            key=BLOCK.key,
            help=t(f"{_NS}.block_help"),
        )
    chosen = links.publish(SETTINGS)
    return {"prompt": chosen[PROMPT.key], "output": chosen[OUTPUT.key], "block_size": chosen[BLOCK.key]}


def _tokens(count: int) -> str:
    return t(f"{_NS}.tokens", n=count)


def model_line() -> None:
    """The shape of the model that will run, which the prediction needs. Nothing while the engine is not there."""
    about = (session.device() or {}).get("default_model")
    if not about:
        return
    model = ModelInfo.model_validate(about)
    line = t(
        f"{_NS}.model_line",
        name=escape(model.name),
        layers=model.num_layers,
        heads=model.num_heads,
        kv_heads=model.num_kv_heads,
        dim=model.head_dim,
    )
    note(f"{badge('spec')} {line}")


# ------------------------------------------------------------------------------------------------- while it runs
def live(view: jobs.View) -> None:
    """The pool as it fills, as text and boxes: a figure every half second would cost the run its quiet."""
    scenario = Scenario.parse(view.job.parts[view.job.index]["scenario"])
    steps = list(view.steps)
    if not steps or not any(step.scheduled for step in steps):
        return
    last = next(step for step in reversed(steps) if step.scheduled)
    row = last.scheduled[-1]
    positions = row.start + row.num_tokens
    found = block_map.cells(scenario.limits.num_blocks, scenario.block_size, steps)
    slots = len(block_map.in_use(found)) * scenario.block_size
    values: dict[str, Any] = {
        "positions": positions,
        "computed": last.work.tokens,
        "blocks": slots // scenario.block_size,
    }
    st.markdown(t(f"{_NS}.live_{view.job.label}", **values))
    about = (session.device() or {}).get("default_model")
    if about:
        lang = language()
        per_position = kv_bytes_per_token(ModelInfo.model_validate(about), bytes_per_element(scenario.dtype))
        pool, formula = byte_count(slots * per_position, lang), byte_count(positions * per_position, lang)
        st.markdown(
            t(f"{_NS}.live_bytes", pool=pool, formula=formula, measured=badge("measured"), modelled=badge("modelled"))
        )
    alt = t(f"{_NS}.map_alt", **_map_words(found, scenario.block_size))
    block_map.draw(found, scenario.block_size, alt=alt, key=f"kv_live_{view.job.label}", with_table=False)


def _map_words(found: list[block_map.Cell], block_size: int) -> dict[str, int]:
    used = block_map.in_use(found)
    filled = sum(cell.filled for cell in used)
    slots = len(used) * block_size
    return {"used": len(used), "total": len(found), "filled": filled, "slots": slots, "empty": slots - filled}


# ------------------------------------------------------------------------------------------------- pictures
def draw(found: Pair) -> None:
    """All pictures in reading order."""
    answer(found)
    times(found)
    growth(found.cached)
    st.fragment(blocks)(found.cached)


def answer(found: Pair) -> None:
    """What the model said, and whether both runs said the same."""
    st.subheader(t(f"{_NS}.answer"), anchor=False)
    spoken = [session.store().texts(s.run.run_id).texts.get("you", "") for s in (found.cached, found.uncached)]
    st.code(spoken[0] or " ", language=None, wrap_lines=True)
    if found.same_tokens == found.cached.record.num_output_tokens:
        note(t(f"{_NS}.same", n=found.same_tokens))
        return
    st.code(spoken[1] or " ", language=None, wrap_lines=True)
    note(t(f"{_NS}.not_same", n=found.same_tokens))


def times(found: Pair) -> None:
    """Time per token of both runs. The first token of each, which takes the whole prompt, is in the table only."""
    lang = language()
    figure = go.Figure()
    for name, side, colour, symbol in (
        ("cached", found.cached, CACHED, "circle"),
        ("uncached", found.uncached, UNCACHED, "square"),
    ):
        numbers = list(range(2, len(side.times_ms) + 1))
        figure.add_scatter(
            x=numbers,
            y=side.times_ms[1:],
            mode="lines+markers",
            name=t(f"{_NS}.part_{name}"),
            line={"color": colour, "width": 2},
            marker={"symbol": symbol, "size": 8},
            hovertemplate="%{x}: %{y:.3g} ms<extra>" + t(f"{_NS}.part_{name}") + "</extra>",
        )
        if side.modelled_ms is not None:
            figure.add_scatter(
                x=numbers,
                y=side.modelled_ms[1:],
                mode="lines",
                name=t(f"{_NS}.modelled_{name}"),
                line={"color": palette.MODEL, "width": 2.5, "dash": "dash" if name == "cached" else "dot"},
                hovertemplate="%{x}: %{y:.3g} ms<extra>" + t(f"{_NS}.modelled_{name}") + "</extra>",
            )
    frame(figure, height=400, x=t(f"{_NS}.x_token"), y=t(f"{_NS}.y_ms"))
    figure.update_yaxes(rangemode="tozero")
    charts.show(
        figure,
        key="kv_times",
        title=t(f"{_NS}.times"),
        alt=t(
            f"{_NS}.times_alt",
            cached_early=milliseconds(found.cached.early_ms, lang),
            cached_late=milliseconds(found.cached.late_ms, lang),
            uncached_early=milliseconds(found.uncached.early_ms, lang),
            uncached_late=milliseconds(found.uncached.late_ms, lang),
        ),
        table=_times_table(found),
        provenance=lambda: _both_runs(found),
    )


def _both_runs(found: Pair) -> None:
    note(t(f"{_NS}.first_left_out"))
    provenance(found.cached.run, found.uncached.run, modelled=found.cached.modelled_ms is not None)


def _times_table(found: Pair) -> pd.DataFrame:
    count = len(found.cached.steps)
    columns: dict[str, list[Any]] = {t(f"{_NS}.col_token"): list(range(1, count + 1))}
    for name, side in (("cached", found.cached), ("uncached", found.uncached)):
        columns[f"{t(f'{_NS}.part_{name}')} (ms)"] = [round(ms, 2) for ms in side.times_ms]
        columns[t(f"{_NS}.col_computed_{name}")] = [step.work.tokens for step in side.steps]
        if side.modelled_ms is not None:
            columns[f"{t(f'{_NS}.modelled_{name}')} (ms)"] = [round(ms, 2) for ms in side.modelled_ms]
    return pd.DataFrame({name: values[:count] for name, values in columns.items()})


def growth(cached: Side) -> None:
    """Bytes in the cache after each token: what the pool holds, in whole blocks, and what the formula asks for."""
    lang, per_position = language(), position_bytes(cached.run)
    positions = [use.num_tokens for use in cached.held]
    pool = [use.reserved_bytes for use in cached.held]
    formula = [position * per_position for position in positions]
    words = {name: t(f"{_NS}.growth_{name}") for name in ("pool", "formula", "x", "y")}
    table = pd.DataFrame(
        {
            t(f"{_NS}.col_token"): range(1, len(positions) + 1),
            t(f"{_NS}.growth_x"): positions,
            t(f"{_NS}.col_blocks"): [use.num_blocks for use in cached.held],
            t(f"{_NS}.col_pool"): pool,
            t(f"{_NS}.col_formula"): [int(value) for value in formula],
        }
    )
    charts.show(
        charts.kv_growth(positions, pool, formula, words),
        key="kv_growth",
        title=t(f"{_NS}.growth"),
        alt=t(
            f"{_NS}.growth_alt",
            steps=len({use.num_blocks for use in cached.held}),
            pool=byte_count(pool[-1], lang),
            formula=byte_count(formula[-1], lang),
        ),
        table=table,
        provenance=lambda: provenance(cached.run, modelled=True),
    )


def blocks(cached: Side) -> None:
    """The block map after a token that the learner chooses. A fragment: moving the slider redraws nothing else."""
    header, count = cached.run.header, len(cached.steps)
    st.subheader(t(f"{_NS}.map"), anchor=False)
    chosen = st.slider(t(f"{_NS}.map_token"), 1, count, value=max(count - 1, 1), key="kv_map_token")
    last = cached.steps[chosen - 1].step
    found = block_map.cells(
        header.num_blocks, header.block_size, [step for step in cached.run.steps if step.step <= last]
    )
    words = _map_words(found, header.block_size)
    given_back = not block_map.in_use(found)
    sentence = t(f"{_NS}.map_done", total=len(found)) if given_back else t(f"{_NS}.map_alt", **words)
    st.markdown(f"{sentence} {badge('measured')}")
    mine = [replace(cell, users=tuple(t(f"{_NS}.you") for _ in cell.users)) for cell in found]  # one request: yours
    block_map.draw(mine, header.block_size, alt=sentence, key="kv_map")
    provenance(cached.run)


# ------------------------------------------------------------------------------------------------- comparison
def comparison(found: Pair) -> None:
    """Bytes, time per token with the cache, and time of the last token without it: measured beside modelled."""
    cached, uncached = found.cached, found.uncached
    rows = [_bytes_row(cached), _late_row("cached", cached), _late_row("uncached", uncached), _slowdown_row(found)]
    compare.table(rows, cached.run, uncached.run, key="kv_compare")
    st.markdown(t(f"{_NS}.compare_note"))


def _bytes_row(cached: Side) -> compare.Row:
    lang, header, last = language(), cached.run.header, cached.held[-1]
    model, formula = header.model, last.num_tokens * position_bytes(cached.run)
    return compare.Row(
        t(f"{_NS}.row_bytes"),
        last.reserved_bytes,
        formula,
        byte_count(last.reserved_bytes, lang),
        byte_count(formula, lang),
        t(
            f"{_NS}.formula_bytes",
            layers=model.num_layers,
            heads=model.num_kv_heads,
            dim=model.head_dim,
            dtype=header.kv_dtype,
            positions=last.num_tokens,
            result=byte_count(formula, lang),
            blocks=last.num_blocks,
            block_size=header.block_size,
            empty=_empty(last, header.block_size),
        ),
    )


def _empty(use: KvUse, block_size: int) -> int:
    return use.num_blocks * block_size - use.num_tokens


def _late_row(name: str, side: Side) -> compare.Row:
    """The last tokens of one run. Measured: the median of a few; modelled: the roofline of the very last."""
    lang, device, work = language(), side.run.header.device, side.steps[-1].work
    modelled = side.modelled_ms[-1] if side.modelled_ms else None
    return compare.Row(
        t(f"{_NS}.row_{name}"),
        side.late_ms,
        modelled,
        milliseconds(side.late_ms, lang),
        milliseconds(modelled, lang),
        t(
            f"{_NS}.formula_late",
            tokens=work.tokens,
            bytes=byte_count(work.weight_bytes + work.kv_read_bytes + work.kv_write_bytes, lang),
            read=number(device.read_gbps, lang),
            flops=flop_count(work.flops, lang),
            rate=number(device.matmul_tflops, lang),
            result=milliseconds(modelled, lang),
        ),
    )


def _slowdown_row(found: Pair) -> compare.Row:
    lang, modelled = language(), None
    if found.cached.modelled_ms and found.uncached.modelled_ms:
        modelled = sum(found.uncached.modelled_ms) / sum(found.cached.modelled_ms)
    return compare.Row(
        t(f"{_NS}.row_slowdown"),
        found.slowdown,
        modelled,
        factor(found.slowdown, lang),
        factor(modelled, lang),
        t(f"{_NS}.formula_slowdown", result=factor(modelled, lang)),
    )
