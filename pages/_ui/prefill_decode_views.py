"""The pictures of the prefill-and-decode lesson, drawn from one Run: the answer, latencies, rates and the KV cache.

Each figure stands with its alternative text, table and provenance (``charts.show``). Model output is plain text.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from engine.lab.records import Run
from pages._ui import charts, compare
from pages._ui.badges import badge, note, provenance
from pages._ui.i18n import language, t
from pages._ui.units import byte_count, flop_count, milliseconds, number
from pages._ui.views import OneRequest

_NS = "prefill_decode"


def draw(run: Run, view: OneRequest, text: str, pieces: Sequence[str]) -> None:
    """All pictures in reading order."""
    answer(view, text, pieces)
    latencies(run, view, pieces)
    if view.decode_tps is not None:
        rates(run, view)
    kv_cache(run, view)


def answer(view: OneRequest, text: str, pieces: Sequence[str]) -> None:
    st.subheader(t(f"{_NS}.answer"), anchor=False)
    split = bool(pieces) and st.toggle(t(f"{_NS}.answer_pieces"), key="pd_pieces")
    st.code("│".join(pieces) if split else text or " ", language=None, wrap_lines=True)
    if view.finish_reason in ("stop", "length"):
        note(t(f"{_NS}.answer_finished_{view.finish_reason}", n=view.num_output_tokens))


def latencies(run: Run, view: OneRequest, pieces: Sequence[str]) -> None:
    lang = language()
    gaps, ttft = view.gaps_ms, milliseconds(view.ttft_ms, lang)
    words = {
        "ttft": t(f"{_NS}.latency_ttft"),
        "ttft_value": ttft,
        "gap": t(f"{_NS}.latency_gap"),
        "decode": t(f"{_NS}.latency_decode"),
        "model": t(f"{_NS}.latency_model"),
        "x_token": t(f"{_NS}.x_token"),
        "y_ms": t(f"{_NS}.y_ms"),
        "x_time": t(f"{_NS}.x_time"),
        "hover_gap": "%{x}: %{y:.3g} ms<extra></extra>",
        "hover_ttft": "TTFT: %{customdata:.3g} ms<extra></extra>",
        "hover_ttft_line": f"{t(f'{_NS}.latency_ttft')}: {ttft}<extra></extra>",
        "hover_decode_line": f"{t(f'{_NS}.rate_decode')}: {milliseconds(sum(gaps), lang)}<extra></extra>",
    }
    table = pd.DataFrame(
        {
            t(f"{_NS}.col_token"): range(1, len(gaps) + 2),
            t(f"{_NS}.col_text"): [*pieces, *[""] * (len(gaps) + 1)][: len(gaps) + 1],
            t(f"{_NS}.col_kind"): [t(f"{_NS}.kind_prefill"), *[t(f"{_NS}.kind_decode")] * len(gaps)],
            t(f"{_NS}.col_ms"): [round(view.ttft_ms, 2), *(round(g, 2) for g in gaps)],
        }
    )
    alt = t(
        f"{_NS}.latency_alt",
        n=len(gaps) + 1,
        ttft=ttft,
        tpot=milliseconds(view.tpot_ms, lang),
        longest=milliseconds(max(gaps, default=None), lang),
    )
    charts.show(
        charts.token_latencies(view.ttft_ms, gaps, words, view.modelled_tpot_ms),
        key="pd_latency",
        title=t(f"{_NS}.latencies"),
        alt=alt,
        table=table,
        provenance=lambda: provenance(run, modelled=view.modelled_tpot_ms is not None),
    )


def rates(run: Run, view: OneRequest) -> None:
    lang = language()
    prefill, decode = number(view.prefill_tps, lang), number(view.decode_tps, lang)
    labels = {
        "prefill": t(f"{_NS}.rate_prefill"),
        "decode": t(f"{_NS}.rate_decode"),
        "prefill_value": t(f"{_NS}.rate_value", n=prefill),
        "decode_value": t(f"{_NS}.rate_value", n=decode),
    }
    table = pd.DataFrame(
        {
            t(f"{_NS}.col_phase"): [labels["prefill"], labels["decode"]],
            t(f"{_NS}.col_tokens"): [view.num_prompt_tokens, len(view.gaps_ms)],
            t(f"{_NS}.col_time"): [round(view.prefill_ms, 1), round(sum(view.gaps_ms), 1)],
            t(f"{_NS}.col_rate"): [round(view.prefill_tps, 1), round(view.decode_tps, 1)],
        }
    )
    charts.show(
        charts.two_rates(view.prefill_tps, view.decode_tps, labels, t(f"{_NS}.rates_x")),
        key="pd_rates",
        title=t(f"{_NS}.rates"),
        alt=t(f"{_NS}.rates_alt", prefill=prefill, decode=decode),
        table=table,
        provenance=lambda: provenance(run),
    )
    ratio = number(view.prefill_tps / view.decode_tps, lang)
    st.markdown(f"{t(f'{_NS}.rates_sentence', ratio=ratio)} {badge('measured')}")


def kv_cache(run: Run, view: OneRequest) -> None:
    lang = language()
    pool, formula = view.pool_bytes, view.formula_bytes
    words = {name: t(f"{_NS}.kv_{name}") for name in ("pool", "formula", "x", "y")}
    table = pd.DataFrame(
        {
            t(f"{_NS}.col_positions"): view.positions,
            t(f"{_NS}.col_blocks"): view.held_blocks,
            t(f"{_NS}.col_pool"): [int(b) for b in pool],
            t(f"{_NS}.col_formula"): [int(b) for b in formula],
        }
    )
    charts.show(
        charts.kv_growth(view.positions, pool, formula, words),
        key="pd_kv",
        title=t(f"{_NS}.kv"),
        alt=t(
            f"{_NS}.kv_alt",
            blocks=len(set(view.held_blocks)),
            pool=byte_count(pool[-1], lang),
            formula=byte_count(formula[-1], lang),
        ),
        table=table,
        provenance=lambda: provenance(run, modelled=True),
    )
    sentence = t(
        f"{_NS}.kv_sentence",
        block_size=view.block_size,
        block_bytes=byte_count(view.block_bytes, lang),
        position_bytes=byte_count(view.bytes_per_position, lang),
    )
    st.markdown(f"{sentence} {badge('modelled')}")


# ------------------------------------------------------------------------------------------------- comparison
def comparison(run: Run, view: OneRequest) -> None:
    """TPOT, TTFT and the KV cache: measured beside modelled, formulas with this run's numbers."""
    lang, header = language(), run.header
    model, device = header.model, header.device
    read, rate = number(device.read_gbps, lang), number(device.matmul_tflops, lang)
    rows = []
    if view.tpot_ms is not None:
        rows.append(
            compare.Row(
                t(f"{_NS}.row_tpot"),
                view.tpot_ms,
                view.modelled_tpot_ms,
                milliseconds(view.tpot_ms, lang),
                milliseconds(view.modelled_tpot_ms, lang),
                t(
                    f"{_NS}.formula_tpot",
                    weights=byte_count(model.weight_bytes, lang),
                    read=read,
                    result=milliseconds(view.modelled_tpot_ms, lang),
                ),
            )
        )
    rows.append(
        compare.Row(
            t(f"{_NS}.row_ttft"),
            view.ttft_ms,
            view.modelled_ttft_ms,
            milliseconds(view.ttft_ms, lang),
            milliseconds(view.modelled_ttft_ms, lang),
            t(
                f"{_NS}.formula_ttft",
                tokens=view.num_prompt_tokens,
                flops=flop_count(view.prompt_flops, lang),
                rate=rate,
                result=milliseconds(view.modelled_ttft_ms, lang),
            ),
        )
    )
    rows.append(
        compare.Row(
            t(f"{_NS}.row_kv"),
            view.pool_bytes[-1],
            view.formula_bytes[-1],
            byte_count(view.pool_bytes[-1], lang),
            byte_count(view.formula_bytes[-1], lang),
            t(
                f"{_NS}.formula_kv",
                layers=model.num_layers,
                heads=model.num_kv_heads,
                dim=model.head_dim,
                dtype=header.kv_dtype,
                positions=view.positions[-1],
                per_position=byte_count(view.bytes_per_position, lang),
                result=byte_count(view.formula_bytes[-1], lang),
            ),
        )
    )
    compare.table(rows, run, key="pd_compare")
    st.markdown(t(f"{_NS}.compare_note"))
