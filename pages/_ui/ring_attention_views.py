"""The pictures of the ring attention lesson, drawn from two Runs of one prompt: one worker, and a ring.

What is kept, sent and computed is counted by the workers. Times are theirs too; on one machine they share its cores.
"""

from __future__ import annotations

import pandas as pd
import streamlit as st

from engine.lab.ring import num_pairs, prompt_sent_bytes
from engine.lab.work import element_sizes
from lessons.ring_attention.pair import Pair
from pages._ui import charts, compare, session
from pages._ui import ring_attention_charts as figures
from pages._ui.badges import note, provenance
from pages._ui.i18n import language, t
from pages._ui.units import byte_count, factor, milliseconds, number, percent, seconds

_NS = "ring_attention"


def knob_value(name: str, value: int | str) -> str:
    """The words for one value of a knob. Pure but for the language."""
    return t(f"{_NS}.layout_{value}") if name == "layout" else t(f"{_NS}.{name}_value", n=number(value, language()))


def model_line() -> None:
    """What a prediction of bytes needs: the model's shape."""
    model = (session.device() or {}).get("default_model")
    if model:
        values = {k: model[k] for k in ("name", "num_layers", "num_heads", "num_kv_heads", "head_dim")}
        note(f":material/info: {t(f'{_NS}.model_line', **values)}")


def _names(pair: Pair) -> list[str]:
    return [t(f"{_NS}.worker", n=rank) for rank in range(pair.num_workers)]


# ------------------------------------------------------------------------------------------------- one layer
def rounds(pair: Pair) -> None:
    """The rounds of one layer, in the middle of the model: arithmetic and transfers of each worker."""
    names, told = _names(pair), pair.told(pair.ring)
    layer = pair.ring.header.model.num_layers // 2
    spans = [span for span in told.spans if span.layer == layer]
    begin_s = min(span.t_begin_s for span in spans)
    lanes = {
        (rank, op): f"{names[rank]} · {t(f'{_NS}.short_{op}')}"
        for rank in range(pair.num_workers)
        for op in ("compute", "send")
    }
    bars = [
        figures.Span(
            lanes[span.worker, span.op],
            span.op,
            1e3 * (span.t_begin_s - begin_s),
            1e3 * (span.t_end_s - begin_s),
            str(span.source),
            t(
                f"{_NS}.hover_{span.op}",
                worker=span.worker,
                source=span.source,
                bytes=byte_count(span.num_bytes, language()),
            ),
        )
        for span in spans
    ]
    table = pd.DataFrame(
        {
            t(f"{_NS}.col_lane"): [bar.lane for bar in bars],
            t(f"{_NS}.col_source"): [int(bar.label) for bar in bars],
            t(f"{_NS}.col_begin"): [round(bar.begin_ms, 3) for bar in bars],
            t(f"{_NS}.col_end"): [round(bar.end_ms, 3) for bar in bars],
        }
    )
    lang, length_ms = language(), max(bar.end_ms for bar in bars)
    charts.show(
        figures.rounds(
            bars,
            list(lanes.values()),
            {"x": t(f"{_NS}.x_time"), "compute": t(f"{_NS}.op_compute"), "send": t(f"{_NS}.op_send")},
        ),
        key="ra_rounds",
        title=t(f"{_NS}.rounds", layer=layer + 1, layers=pair.ring.header.model.num_layers),
        alt=t(f"{_NS}.rounds_alt", n=pair.num_workers, time=milliseconds(length_ms, lang), layer=layer + 1),
        table=table,
        provenance=lambda: provenance(pair.ring),
    )
    note(t(f"{_NS}.rounds_note"))


# ------------------------------------------------------------------------------------------------- memory
def kept(pair: Pair) -> None:
    """Keys and values of the prompt that each worker keeps, beside one worker alone."""
    lang, told, alone = language(), pair.told(pair.ring), pair.told(pair.alone)
    names = [t(f"{_NS}.part_alone"), *_names(pair)]
    measured = [alone.kv_bytes[0] / 1e6, *(size / 1e6 for size in told.kv_bytes)]
    positions = [pair.length, *(sum(len(r) for r in own) for own in pair.parts)]
    modelled = [count * pair.position_bytes / 1e6 for count in positions]
    table = pd.DataFrame(
        {
            t(f"{_NS}.col_worker"): names,
            t(f"{_NS}.col_positions"): positions,
            t(f"{_NS}.y_kept"): [round(value, 3) for value in measured],
            t(f"{_NS}.col_modelled"): [round(value, 3) for value in modelled],
            t(f"{_NS}.col_buffer"): [0.0, *(round(size / 1e6, 3) for size in told.buffer_bytes)],
        }
    )
    words = {"y": t(f"{_NS}.y_kept"), "measured": t(f"{_NS}.measured"), "modelled": t(f"{_NS}.modelled")}
    charts.show(
        figures.kept(names, measured, modelled, words),
        key="ra_kept",
        title=t(f"{_NS}.kept"),
        alt=t(
            f"{_NS}.kept_alt",
            n=pair.num_workers,
            alone=byte_count(alone.kv_bytes[0], lang),
            most=byte_count(max(told.kv_bytes), lang),
        ),
        table=table,
        provenance=lambda: provenance(pair.alone, pair.ring, modelled=True),
    )


# ------------------------------------------------------------------------------------------------- pairs
def pairs(pair: Pair) -> None:
    """Who computes with whose keys, as shares of all pairs that causal attention needs."""
    names, owned = _names(pair), pair.parts
    total = sum(num_pairs(own, other) for own in owned for other in owned)
    shares = [[100 * num_pairs(own, other) / total for other in owned] for own in owned]
    table = pd.DataFrame({t(f"{_NS}.col_queries"): names} | {
        t(f"{_NS}.col_keys_of", n=rank): [round(row[rank], 2) for row in shares] for rank in range(pair.num_workers)
    })  # fmt: skip
    lang, told = language(), pair.told(pair.ring)
    words = {"x": t(f"{_NS}.x_keys"), "y": t(f"{_NS}.y_queries")}
    charts.show(
        figures.pairs(names, shares, words, lambda value: percent(value / 100, lang)),
        key="ra_pairs",
        title=t(f"{_NS}.pairs"),
        alt=t(
            f"{_NS}.pairs_alt",
            first=percent(told.pairs[0] / sum(told.pairs), lang),
            last=percent(told.pairs[-1] / sum(told.pairs), lang),
        ),
        table=table,
        provenance=lambda: provenance(pair.ring, modelled=True),
    )
    note(t(f"{_NS}.pairs_note", busy=percent(pair.busy, lang)))


# ------------------------------------------------------------------------------------------------- overlap
def overlap(pair: Pair) -> None:
    """How much of the transfers took place beside arithmetic, for each worker."""
    lang, names, found = language(), _names(pair), pair.overlaps
    compute = [1e3 * one.compute_s for one in found]
    hidden = [1e3 * one.hidden_s for one in found]
    exposed = [1e3 * (one.send_s - one.hidden_s) for one in found]
    words = {name: t(f"{_NS}.{name}") for name in ("compute", "hidden", "exposed")}
    table = pd.DataFrame(
        {
            t(f"{_NS}.col_worker"): names,
            f"{words['compute']} (ms)": [round(value, 2) for value in compute],
            f"{words['hidden']} (ms)": [round(value, 2) for value in hidden],
            f"{words['exposed']} (ms)": [round(value, 2) for value in exposed],
        }
    )
    share = sum(hidden) / sum([*hidden, *exposed])
    charts.show(
        figures.overlap(names, compute, hidden, exposed, {**words, "y": t(f"{_NS}.y_overlap")}),
        key="ra_overlap",
        title=t(f"{_NS}.overlap"),
        alt=t(f"{_NS}.overlap_alt", share=percent(share, lang), n=pair.num_workers),
        table=table,
        provenance=lambda: provenance(pair.ring),
    )
    note(t(f"{_NS}.overlap_note"))


# ------------------------------------------------------------------------------------------------- comparison
def comparison(pair: Pair) -> None:
    """Measured beside modelled: bytes kept and sent, the first worker's share, and what the ring gained."""
    lang, told, model = language(), pair.told(pair.ring), pair.ring.header.model
    size = element_sizes(pair.ring.header)[1]
    most = max(sum(len(r) for r in own) for own in pair.parts)
    sent = max(prompt_sent_bytes(model, pair.length, pair.num_workers, pair.layout, size))
    owned = pair.parts
    share = sum(num_pairs(owned[0], other) for other in owned) / (pair.length * (pair.length + 1) // 2)
    gain = pair.prompt_s(pair.alone) / pair.prompt_s(pair.ring)
    rows = [
        compare.Row(
            t(f"{_NS}.row_kept"),
            max(told.kv_bytes),
            most * pair.position_bytes,
            byte_count(max(told.kv_bytes), lang),
            byte_count(most * pair.position_bytes, lang),
            t(f"{_NS}.formula_kept", positions=most, per=byte_count(pair.position_bytes, lang)),
        ),
        compare.Row(
            t(f"{_NS}.row_sent"),
            max(told.sent_bytes),
            sent,
            byte_count(max(told.sent_bytes), lang),
            byte_count(sent, lang),
            t(f"{_NS}.formula_sent", sends=pair.num_workers - 1, result=byte_count(sent, lang)),
        ),
        compare.Row(
            t(f"{_NS}.row_share"),
            told.pairs[0] / sum(told.pairs),
            share,
            percent(told.pairs[0] / sum(told.pairs), lang),
            percent(share, lang),
            t(f"{_NS}.formula_share", tokens=number(pair.length, lang), result=percent(share, lang)),
        ),
        compare.Row(
            t(f"{_NS}.row_gain"),
            gain,
            _threads_ratio(pair),
            factor(gain, lang),
            factor(_threads_ratio(pair), lang),
            t(
                f"{_NS}.formula_gain",
                alone=seconds(pair.prompt_s(pair.alone), lang),
                ring=seconds(pair.prompt_s(pair.ring), lang),
                threads=pair.alone.header.workers[0].threads,
                each=pair.ring.header.workers[0].threads,
                n=pair.num_workers,
            ),
        ),
    ]
    compare.table(rows, pair.alone, pair.ring, key="ra_compare")
    st.markdown(t(f"{_NS}.compare_note"))


def _threads_ratio(pair: Pair) -> float:
    """What a ring can gain here if only threads counted: those it has in all, as far as there are cores, over one's."""
    alone, each = pair.alone.header.workers[0].threads, pair.ring.header.workers[0].threads
    return min(each * pair.num_workers, pair.ring.header.device.threads) / alone
