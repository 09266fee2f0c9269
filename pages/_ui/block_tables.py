"""Block tables: which blocks each request has, in the order of its positions, and what a step did to them.

Replayed from block events alone, for a Run or for one that is still going on. It draws a plain table and plain text;
the map of the whole pool is ``block_map``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import streamlit as st

from engine.lab.records import StepRecord
from engine.lab.replay import BlockMap
from engine.lab.steps import computed_ends
from pages._ui.i18n import t
from pages._ui.units import DASH

_NS = "block_tables"
_OPS = ("share", "alloc", "publish", "evict", "release")
_MOST_NAMED = 12  # block numbers of one request and operation that are written out in a line


@dataclass(frozen=True)
class Table:
    """One request after some step: its blocks in position order, and how many of their places hold a position."""

    request_id: str
    block_ids: tuple[int, ...]
    shared: frozenset[int]  # those of them that others use as well
    num_filled: int
    num_empty: int


def tables(num_blocks: int, block_size: int, steps: Sequence[StepRecord]) -> list[Table]:
    """The tables after the last of ``steps``. Pure. Raises: BlockRuleError."""
    blocks = BlockMap(num_blocks)
    computed: dict[str, int] = {}
    for step in steps:
        computed |= dict.fromkeys(step.preempted, 0)
        computed |= computed_ends(step)
        for event in step.block_events:
            blocks.apply(event)
    found = []
    for name, table in blocks.tables.items():
        filled = min(computed.get(name, 0), len(table) * block_size)
        shared = frozenset(b for b in table if len(blocks.users[b]) > 1)
        found.append(Table(name, tuple(table), shared, filled, len(table) * block_size - filled))
    return found


def as_text(found: Sequence[Table]) -> str:
    """One line for each request. A block that others use as well has a star. Pure."""
    width = max((len(table.request_id) for table in found), default=0)
    return "\n".join(f"{table.request_id:<{width}} │ {_blocks(table)}" for table in found)


def _blocks(table: Table) -> str:
    return " ".join(f"{block}*" if block in table.shared else str(block) for block in table.block_ids)


def draw(found: Sequence[Table], *, key: str, alt: str) -> None:
    """The tables as a table. Effect: Streamlit elements."""
    rows = pd.DataFrame(
        {
            t(f"{_NS}.col_request"): [table.request_id for table in found],
            t(f"{_NS}.col_blocks"): [_blocks(table) for table in found],
            t(f"{_NS}.col_filled"): [table.num_filled for table in found],
            t(f"{_NS}.col_empty"): [table.num_empty for table in found],
        }
    )
    st.dataframe(rows, hide_index=True, placeholder=DASH, key=key, alt=alt)


def event_lines(step: StepRecord) -> list[str]:
    """What the step did to the pool, one line for each operation, with requests and block numbers. Markdown."""
    lines = []
    for op in _OPS:
        by_request: dict[str | None, list[int]] = {}
        for event in step.block_events:
            if event.op == op:
                by_request.setdefault(event.request_id, []).append(event.block_id)
        if by_request:
            said = "; ".join(_said(name, blocks) for name, blocks in by_request.items())
            lines.append(f"**{t(f'{_NS}.op_{op}')}** {said}")
    return lines


def _said(name: str | None, blocks: Sequence[int]) -> str:
    listed = ", ".join(map(str, blocks[:_MOST_NAMED])) + (", …" if len(blocks) > _MOST_NAMED else "")
    return f"{name}: {listed}" if name else listed
