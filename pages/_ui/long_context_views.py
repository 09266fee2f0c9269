"""The pictures of the long-context lesson: room in one memory, errors of fewer bits, and 128 K tokens elsewhere.

Requests at once are counted in step records, errors come from the probes in the headers. The last picture is modelled
for a model and a card of the catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import streamlit as st

from engine.lab import catalogue
from engine.lab.records import Run
from engine.lab.work import kv_cache_bytes, num_requests_that_fit, stored_weight_bytes, with_kv_heads
from lessons.facts_error import FactsError
from lessons.long_context.facts import LONG, Kept, all_kinds, blocks_of_one, kinds, record
from lessons.long_context.scenarios import KINDS, OWN, num_blocks
from lessons.smaller_weights.facts import first_difference
from pages._ui import charts, compare, divergence, long_context_charts
from pages._ui.badges import badge, note, provenance
from pages._ui.i18n import language, t
from pages._ui.long_context_charts import KindBars
from pages._ui.units import byte_count, milliseconds, number

_NS = "long_context"
CARDS = tuple(d.id for d in catalogue.devices() if d.memory_gb and d.bandwidth_gbps and d.kind == "gpu")
MODELS = tuple(model.id for model in catalogue.models())
Runs = Mapping[str, Run]
_BITS = (("16", 2.0), ("8", 1.0), ("4", 0.5))


def complete(runs: Runs) -> bool:
    """Whether the Runs are enough for the pictures. Pure."""
    try:
        all_kinds(runs)
    except FactsError:
        return False
    return True


def so_far(runs: Runs) -> None:
    """The room of the kinds there are, while the study goes on."""
    found = kinds(runs)
    if found:
        _room(found, "lc_live", t("study.so_far"))


def room(runs: Runs) -> None:
    """What a token takes and how many requests ran at once, for each kind."""
    _room(all_kinds(runs), "lc_room", t(f"{_NS}.room"))


def _room(found: Mapping[str, Kept], key: str, title: str) -> None:
    drawn = [
        KindBars(t(f"{_NS}.kind_{role}"), kept.bytes_per_token / 1e3, kept.at_once, kept.modelled_at_once)
        for role, kept in found.items()
    ]
    words = {name: t(f"{_NS}.{name}") for name in ("measured", "modelled", "y_kb", "y_n")}
    charts.show(
        long_context_charts.room(drawn, words),
        key=key,
        title=title,
        alt=t(f"{_NS}.room_alt", kinds="; ".join(f"{k.name}: {k.kb_per_token:.3g} kB, {k.at_once}" for k in drawn)),
        table=pd.DataFrame(
            [
                {
                    t(f"{_NS}.col_kind"): bar.name,
                    t(f"{_NS}.col_heads"): kept.run.header.model.num_kv_heads,
                    t(f"{_NS}.y_kb"): round(bar.kb_per_token, 3),
                    t(f"{_NS}.col_blocks"): kept.num_blocks,
                    t(f"{_NS}.col_pool"): round(kept.pool_bytes / 1e6, 3),
                    t(f"{_NS}.measured"): bar.at_once,
                    t(f"{_NS}.modelled"): bar.modelled,
                    t("study.column_run"): kept.run.run_id,
                }
                for bar, kept in zip(drawn, found.values(), strict=True)
            ]
        ),
        provenance=lambda: provenance(*(kept.run for kept in found.values()), modelled=True),
    )


# ------------------------------------------------------------------------------------------------- what it costs
def errors(runs: Runs) -> None:
    """The logit errors of 8 and 4 bits on the learner's prompt, and where the answers part."""
    found = all_kinds(runs)
    mine = record(found["own16"].run, OWN)
    small = {"int8": found["own8"], "int4": found["own4"]}
    parts = {name: first_difference(mine, record(kept.run, OWN)) for name, kept in small.items()}
    found_errors = {name: kept.error for name, kept in small.items()}
    divergence.errors(_NS, found_errors, parts, [kept.run for kept in small.values()], "lc_errors")


def answers(runs: Runs) -> None:
    """The answers to the learner's prompt, and what a single KV head makes of the first like request."""
    found = all_kinds(runs)
    st.subheader(t(f"{_NS}.answers"), anchor=False)
    for role in ("own16", "own8", "own4"):
        _answer(found["own16"], found[role], OWN)
    with st.expander(t(f"{_NS}.answers_heads"), icon=":material/forum:"):
        for role in ("own16", "mha16", "mqa16"):
            _answer(found["own16"], found[role], "r1")
    provenance(*(kept.run for kept in found.values()))


def _answer(plain: Kept, kept: Kept, request_id: str) -> None:
    name, theirs = t(f"{_NS}.kind_{kept.role}"), record(kept.run, request_id)
    place = None if kept is plain else first_difference(record(plain.run, request_id), theirs)
    if kept is plain:
        said = t(f"{_NS}.answer_plain", kind=name)
    elif place is None:
        said = t(f"{_NS}.answer_same", kind=name, n=theirs.num_output_tokens)
    else:
        said = t(f"{_NS}.answer_parts", kind=name, n=place + 1)
    divergence.answer(said, kept.run, request_id, place)


# ------------------------------------------------------------------------------------------------- comparison
def comparison(runs: Runs) -> None:
    """Requests at once and blocks beside the formula."""
    found = all_kinds(runs)
    rows = [_fit_row(kept) for kept in found.values()] + [_blocks_row(found["own16"], found["own8"])]
    compare.table(rows, *(kept.run for kept in found.values()), key="lc_compare")
    st.markdown(t(f"{_NS}.compare_note"))


def _fit_row(kept: Kept) -> compare.Row:
    formula = t(f"{_NS}.formula_fit", blocks=kept.num_blocks, each=blocks_of_one(kept.run), n=kept.modelled_at_once)
    title = t(f"{_NS}.row_fit", kind=t(f"{_NS}.kind_{kept.role}"))
    return compare.Row(
        title, kept.at_once, kept.modelled_at_once, str(kept.at_once), str(kept.modelled_at_once), formula
    )


def _blocks_row(own: Kept, small: Kept) -> compare.Row:
    lang = language()
    modelled = num_blocks(own.run.header.model, KINDS["own8"])
    each = small.run.header.block_size * small.bytes_per_token
    formula = t(f"{_NS}.formula_blocks", pool=byte_count(own.pool_bytes, lang), each=byte_count(each, lang), n=modelled)
    return compare.Row(
        t(f"{_NS}.row_blocks"), small.num_blocks, modelled, str(small.num_blocks), str(modelled), formula
    )


# ------------------------------------------------------------------------------------------------- 128 K elsewhere
def elsewhere(model_id: str, card_id: str) -> None:
    """KV memory of 128 K tokens for a model and a card of the catalogue. Modelled."""
    lang, entry, card = language(), catalogue.model(model_id), catalogue.device(card_id)
    model = entry.info("bfloat16")
    memory, read = card.memory_gb.value * 1e9, card.bandwidth_gbps.value
    heads = list(dict.fromkeys([model.num_heads, model.num_kv_heads, 1]))
    names = [_heads_name(n, model.num_heads, model.num_kv_heads) for n in heads]
    sizes = {
        t(f"{_NS}.bits", n=bits): [kv_cache_bytes(with_kv_heads(model, n), LONG, size) / 1e9 for n in heads]
        for bits, size in _BITS
    }
    words = {"weights": t(f"{_NS}.weights"), "memory": t(f"{_NS}.memory", card=card.name), "y": t(f"{_NS}.y_long")}
    rows = [
        {
            t(f"{_NS}.col_heads"): name,
            t(f"{_NS}.col_bits"): bits,
            "GB": round(kv_cache_bytes(with_kv_heads(model, n), LONG, size) / 1e9, 3),
            t(f"{_NS}.col_fit"): num_requests_that_fit(with_kv_heads(model, n), memory, LONG, size),
            t(f"{_NS}.col_read"): round(kv_cache_bytes(with_kv_heads(model, n), LONG, size) / read / 1e6, 2),
        }
        for n, name in zip(heads, names, strict=True)
        for bits, size in _BITS
    ]
    own = kv_cache_bytes(model, LONG, 2.0)
    charts.show(
        long_context_charts.long_memory(sizes, names, stored_weight_bytes(model) / 1e9, memory / 1e9, words),
        key="lc_long",
        title=t(f"{_NS}.long", model=entry.name),
        alt=t(
            f"{_NS}.long_alt",
            model=entry.name,
            own=byte_count(own, lang),
            weights=byte_count(stored_weight_bytes(model), lang),
            card=card.name,
            memory=byte_count(memory, lang),
        ),
        table=pd.DataFrame(rows),
        provenance=lambda: note(
            f"{badge('modelled')} {t(f'{_NS}.long_formula')}  \n"
            f"{badge('spec')} {t('common.sourced', name=entry.name, source=entry.source)}  \n"
            f"{badge('spec')} {t('common.sourced', name=card.name, source=card.memory_gb.source)}"
        ),
    )
    note(
        t(
            f"{_NS}.long_note",
            own=milliseconds(own / read / 1e6, lang),
            weights=milliseconds(model.weight_bytes / read / 1e6, lang),
            context=number(entry.context, lang),
        )
    )


def _heads_name(count: int, num_heads: int, own: int) -> str:
    kind = "mha" if count == num_heads else "mqa" if count == 1 else "gqa"
    name = t(f"{_NS}.heads_{kind}", n=count)
    return t(f"{_NS}.heads_built", name=name) if count == own else name
