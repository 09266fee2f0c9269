"""The KV blocks of a pool as a map: free, in use and how full, shared, cached. Drawn from block events alone.

``cells`` replays the events of a Run, or of one that is still going on; ``draw`` puts them on the page with a name for
screen readers, a legend, and the same as a table. One visual language (design §9): free = outline, in use = filled as
far as it holds positions, shared = double border, cached = dotted. What is empty in a block in use is hatched: waste.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

import pandas as pd
import streamlit as st

from engine.lab.records import StepRecord
from engine.lab.replay import BlockMap
from pages._ui import palette
from pages._ui.i18n import t
from pages._ui.units import DASH

State = Literal["free", "in_use", "shared", "cached"]
STATES: tuple[State, ...] = ("free", "in_use", "shared", "cached")
_NS = "block_map"
_HATCH = f"repeating-linear-gradient(45deg,{palette.GREY} 0 2px,transparent 2px 7px)"
_BORDER = {
    "free": f"1px solid {palette.GREY}",
    "in_use": f"2px solid {palette.VERMILION}",
    "shared": f"5px double {palette.VERMILION}",
    "cached": f"3px dotted {palette.BLUE}",
}


@dataclass(frozen=True)
class Cell:
    """One block after some step. ``filled``: positions in it that hold a token; ``first``: the first of them."""

    block_id: int
    state: State
    users: tuple[str, ...] = ()
    filled: int = 0
    first: int | None = None


def cells(num_blocks: int, block_size: int, steps: Sequence[StepRecord]) -> list[Cell]:
    """Every block of the pool after the last of ``steps``, by its number. Pure. Raises: BlockRuleError."""
    blocks = BlockMap(num_blocks)
    computed: dict[str, int] = {}
    for step in steps:
        computed |= dict.fromkeys(step.preempted, 0)
        for row in step.scheduled:
            if row.phase != "padding":
                computed[row.request_id] = row.start + row.num_tokens
        for event in step.block_events:
            blocks.apply(event)
    found = {
        block_id: Cell(block_id, "cached" if block_id in blocks.published else "free", (), 0)
        for block_id in range(num_blocks)
    }
    for block_id in blocks.published:
        found[block_id] = Cell(block_id, "cached", (), block_size)
    for request_id, table in blocks.tables.items():
        for index, block_id in enumerate(table):
            users = tuple(blocks.users[block_id])
            filled = min(max(computed.get(request_id, 0) - index * block_size, 0), block_size)
            filled = max(filled, found[block_id].filled)
            state: State = "shared" if len(users) > 1 else "in_use"
            found[block_id] = Cell(block_id, state, users, filled, index * block_size)
    return [found[block_id] for block_id in range(num_blocks)]


def in_use(found: Sequence[Cell]) -> list[Cell]:
    """The blocks that belong to somebody. Pure."""
    return [cell for cell in found if cell.state in ("in_use", "shared")]


def draw(found: Sequence[Cell], block_size: int, *, alt: str, key: str, with_table: bool = True) -> None:
    """The map with its legend and, one click away, its table. Effect: Streamlit elements."""
    with st.container(key=key):
        st.html(html(found, block_size, alt))
        if not with_table:  # while a run goes on it would be sent again every half second
            return
        with st.expander(t(f"{_NS}.table"), icon=":material/table_rows:"):
            st.dataframe(table(found, block_size), hide_index=True, placeholder=DASH, key=f"{key}_table", alt=alt)


def table(found: Sequence[Cell], block_size: int) -> pd.DataFrame:
    """The same as numbers: one row for each block. Pure but for the language."""
    return pd.DataFrame(
        {
            t(f"{_NS}.col_block"): [cell.block_id for cell in found],
            t(f"{_NS}.col_state"): [t(f"{_NS}.{cell.state}") for cell in found],
            t(f"{_NS}.col_user"): [", ".join(cell.users) for cell in found],
            t(f"{_NS}.col_positions"): [_positions(cell) for cell in found],
            t(f"{_NS}.col_filled"): [cell.filled for cell in found],
            t(f"{_NS}.col_empty"): [block_size - cell.filled if cell.users else None for cell in found],
        }
    )


def _positions(cell: Cell) -> str:
    if cell.first is None or not cell.filled:
        return ""
    return f"{cell.first}–{cell.first + cell.filled - 1}"


def html(found: Sequence[Cell], block_size: int, alt: str) -> str:
    """The map as HTML that wraps to any width. Nothing in it comes from a model or a person."""
    boxes = "".join(_box(cell, block_size) for cell in found)
    used = {cell.state for cell in found} | {"free", "in_use"}
    legend = "".join(_sample(state) for state in STATES if state in used)
    return (
        f'<div role="img" aria-label="{escape(alt)}" style="display:flex;flex-wrap:wrap;gap:6px;margin:2px 0 8px">'
        f"{boxes}</div>"
        f'<div style="display:flex;flex-wrap:wrap;gap:4px 18px;font-size:0.9rem">{legend}</div>'
    )


def _box(cell: Cell, block_size: int) -> str:
    label = f"{cell.filled}/{block_size}" if cell.users else ""
    return (
        '<div aria-hidden="true" style="width:68px;font-size:0.78rem;line-height:1.25;text-align:center">'
        f"<div>{cell.block_id}</div>{_bar(cell.state, cell.filled / block_size)}"
        f'<div style="min-height:1.25em">{label}</div></div>'
    )


def _bar(state: State, share: float, width: str = "100%") -> str:
    fill = ""
    if state in ("in_use", "shared"):
        percent = 100 * share
        fill = (
            f"background:linear-gradient(to right,{palette.DECODE} {percent:.2f}%,transparent {percent:.2f}%),{_HATCH};"
        )
    look = f"box-sizing:border-box;width:{width};height:26px;border:{_BORDER[state]};border-radius:4px;{fill}"
    return f'<div style="{look}"></div>'


def _sample(state: State) -> str:
    return (
        '<span style="display:inline-flex;align-items:center;gap:7px">'
        f"{_bar(state, 0.6, '44px')}{escape(t(f'{_NS}.legend_{state}'))}</span>"
    )
