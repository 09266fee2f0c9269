"""The page parts of the prefix caching lesson: its settings, the tree while it grows, and the pictures of its Runs.

The tree is rebuilt from block events (``engine.lab.prefix_tree``): it is what the cache held, not what it should hold.
Nothing here computes a definition: ``engine.lab`` and the lesson do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd
import streamlit as st

from engine.lab.metrics import all_request_metrics, makespan_s
from engine.lab.prefix_tree import Node, PrefixTree, tree_after
from engine.lab.records import Run
from engine.lab.scenario import Scenario
from lessons.prefix_caching.facts import Four, Side
from lessons.prefix_caching.scenarios import (
    BLOCK_SIZES,
    DEFAULT_BLOCK_SIZE,
    DEFAULT_POOL_POSITIONS,
    DEFAULT_REPORTS,
    PARTS,
    POOL_POSITIONS,
    REPORTS,
)
from pages._ui import block_tables, charts, compare, jobs, links
from pages._ui import prefix_caching_charts as figures
from pages._ui.badges import badge, note, provenance
from pages._ui.i18n import language, t
from pages._ui.units import DASH, factor, milliseconds, number, percent, seconds

_NS = "prefix_caching"
NUM_REPORTS = links.IntSetting("pc_reports", DEFAULT_REPORTS, REPORTS[0], REPORTS[-1], REPORTS)
POOL = links.IntSetting("pc_pool", DEFAULT_POOL_POSITIONS, POOL_POSITIONS[0], POOL_POSITIONS[-1], POOL_POSITIONS)
BLOCK = links.IntSetting("pc_block", DEFAULT_BLOCK_SIZE, BLOCK_SIZES[0], BLOCK_SIZES[-1], BLOCK_SIZES)
SETTINGS = (NUM_REPORTS, POOL, BLOCK)
CACHED = ("hash", "radix", "aware")


def settings() -> dict[str, int]:
    """Draw the three inputs. Returns their values, checked."""
    links.restore(SETTINGS)
    links.show_notices(SETTINGS)
    shown: tuple[tuple[links.IntSetting, str], ...] = ((NUM_REPORTS, "reports"), (POOL, "pool"), (BLOCK, "block"))
    for column, (setting, name) in zip(st.columns(3), shown, strict=True):
        with column:
            st.select_slider(
                t(f"{_NS}.{name}"),
                options=setting.choices,
                format_func=lambda value, name=name: t(f"{_NS}.{name}_value", n=number(value, language())),
                key=setting.key,
                help=t(f"{_NS}.{name}_help"),
            )
    chosen = links.publish(SETTINGS)
    return {
        "reports": chosen[NUM_REPORTS.key],
        "pool_positions": chosen[POOL.key],
        "block_size": chosen[BLOCK.key],
    }


# ------------------------------------------------------------------------------------------------- while it runs
def live(view: jobs.View) -> None:
    """The tree as text while it grows; a figure twice a second would cost the run its quiet."""
    if view.status is None or view.status.state != "running":
        return  # a part that has just ended: the job stands at the next one already
    scenario = Scenario.parse(view.job.parts[view.job.index]["scenario"])
    if not view.steps or scenario.limits.prefix_cache == "none":
        return
    tree = tree_after(scenario.limits.num_blocks, scenario.block_size, view.steps)
    found = sum(
        row.num_cached_tokens for step in view.steps for row in step.scheduled if row.request_id in step.admitted
    )
    evicted = sum(event.op == "evict" for step in view.steps for event in step.block_events)
    st.markdown(t(f"{_NS}.live", found=found, blocks=len(tree.before), evicted=evicted))
    st.code(tree_text(tree.nodes()) or " ", language=None, height=300)


def tree_text(nodes: Sequence[Node]) -> str:
    """The tree as lines of text, a node behind its parent: how many blocks, who has read them. Pure but for words."""
    depth: list[int] = []
    lines = []
    for node in nodes:
        depth.append(0 if node.parent is None else depth[node.parent] + 1)
        used = "●" if any(node.users) else "○"
        blocks = t(f"{_NS}.text_blocks", n=node.num_blocks)
        lines.append(f"{'   ' * depth[-1]}{used} {blocks}  {' '.join(node.readers)}")
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------- pictures
def draw(found: Four) -> None:
    """All pictures in reading order."""
    totals(found)
    st.fragment(tree)(found)
    order(found)
    waits(found)


def _words(*names: str) -> dict[str, str]:
    return {f"part_{part}": t(f"{_NS}.part_{part}") for part in PARTS} | {name: t(f"{_NS}.{name}") for name in names}


def totals(found: Four) -> None:
    """Prompt tokens found and computed in each run."""
    names = [t(f"{_NS}.part_{part}") for part in found.sides]
    hits = [side.use.num_cached_tokens for side in found.sides.values()]
    computed = [side.num_prefilled for side in found.sides.values()]
    charts.show(
        figures.totals(names, hits, computed, _words("found", "computed", "x_tokens")),
        key="pc_totals",
        title=t(f"{_NS}.totals_title"),
        alt=t(f"{_NS}.totals_alt", **dict(zip(PARTS, computed, strict=True))),
        table=pd.DataFrame({t(f"{_NS}.col_run"): names, t(f"{_NS}.found"): hits, t(f"{_NS}.computed"): computed}),
        provenance=lambda: provenance(*(side.run for side in found.sides.values())),
    )


def tree(found: Four) -> None:
    """The tree after a step the learner chooses, and the same as the hash chain's table. A fragment."""
    st.subheader(t(f"{_NS}.tree_title"), anchor=False)
    part = st.segmented_control(
        t(f"{_NS}.which_run"),
        options=CACHED,
        format_func=lambda name: t(f"{_NS}.part_{name}"),
        default="radix",
        required=True,
        wrap=True,
        key="pc_part",
    )
    run: Run = found.sides[part].run
    last = len(run.steps) - 1
    chosen = st.slider(t(f"{_NS}.which_step"), 0, last, value=last // 2, key=f"pc_step_{part}")
    grown = tree_after(run.header.num_blocks, run.header.block_size, run.steps[: chosen + 1])
    nodes = grown.nodes()
    longest = max(record.num_prompt_tokens + record.num_output_tokens for record in run.requests)
    values = {
        "step": chosen,
        "blocks": len(grown.before),
        "nodes": len(nodes),
        "cached": run.steps[chosen].blocks.cached,
        "total": run.header.num_blocks,
    }
    charts.show(
        figures.tree(nodes, run.header.block_size, longest, _words("in_use", "shared", "cached", "x_position")),
        key="pc_tree",
        title=t(f"{_NS}.tree_after", run=t(f"{_NS}.part_{part}"), step=chosen),
        alt=t(f"{_NS}.tree_alt", **values),
        table=_node_table(nodes, run.header.block_size),
        provenance=lambda: provenance(run),
    )
    st.markdown(f"{t(f'{_NS}.tree_says', **values)} {badge('measured')}")
    st.markdown("  \n".join(block_tables.event_lines(run.steps[chosen])) or t("block_tables.no_events"))
    with st.expander(t(f"{_NS}.chain_title"), icon=":material/link:"):
        st.markdown(t(f"{_NS}.chain_note"))
        st.dataframe(
            _chain_table(grown), hide_index=True, placeholder=DASH, key="pc_chain", alt=t(f"{_NS}.chain_title")
        )


def _node_table(nodes: Sequence[Node], block_size: int) -> pd.DataFrame:
    return pd.DataFrame(
        {
            t(f"{_NS}.col_node"): list(range(len(nodes))),
            t(f"{_NS}.col_behind"): ["" if node.parent is None else str(node.parent) for node in nodes],
            t(f"{_NS}.col_positions"): [f"{n.start}–{n.start + n.num_blocks * block_size - 1}" for n in nodes],
            t(f"{_NS}.col_blocks"): [" ".join(map(str, node.block_ids)) for node in nodes],
            t(f"{_NS}.col_users"): [", ".join(dict.fromkeys(u for us in node.users for u in us)) for node in nodes],
            t(f"{_NS}.col_readers"): [", ".join(node.readers) for node in nodes],
        }
    )


def _chain_table(grown: PrefixTree) -> pd.DataFrame:
    return pd.DataFrame(
        {
            t(f"{_NS}.col_block"): list(grown.before),
            t(f"{_NS}.col_before"): ["" if before is None else str(before) for before in grown.before.values()],
            t(f"{_NS}.col_users"): [", ".join(grown.pool.users.get(block, ())) for block in grown.before],
        }
    )


def order(found: Four) -> None:
    """Who was let in when, and what each found: in order of arrival beside the order of the cache."""
    shown = {"radix": found.radix, "aware": found.aware}
    prompts = {record.request_id: record.num_prompt_tokens for record in found.radix.run.requests}
    orders = {part: side.served for part, side in shown.items()}
    hits = {part: [side.found[name] for name in side.served] for part, side in shown.items()}
    whole = {part: [prompts[name] for name in side.served] for part, side in shown.items()}
    columns: dict[str, list] = {}
    for part in shown:
        columns[t(f"{_NS}.part_{part}")] = list(orders[part])
        columns[f"{t(f'{_NS}.part_{part}')} · {t(f'{_NS}.found')}"] = hits[part]
    charts.show(
        figures.served(orders, hits, whole, _words("found", "computed", "x_tokens", "x_order")),
        key="pc_order",
        title=t(f"{_NS}.order_title"),
        alt=t(
            f"{_NS}.order_alt",
            radix=", ".join(orders["radix"]),
            aware=", ".join(orders["aware"]),
            radix_found=sum(hits["radix"]),
            aware_found=sum(hits["aware"]),
        ),
        table=pd.DataFrame(columns),
        provenance=lambda: provenance(found.radix.run, found.aware.run),
    )


def waits(found: Four) -> None:
    """From being let in to the first token, for each request in three of the runs; the whole TTFT is in the table."""
    lang = language()
    shown = {"none": found.none, "radix": found.radix, "aware": found.aware}
    names = [record.request_id for record in found.none.run.requests]
    prompt_ms: dict[str, list[float | None]] = {}
    columns: dict[str, list] = {t(f"{_NS}.x_request"): names}
    for part, side in shown.items():
        each = all_request_metrics(side.run)
        prompt_ms[part] = [1e3 * (each[name].ttft_s - each[name].queue_s) for name in names]
        columns[f"{t(f'{_NS}.part_{part}')} (ms)"] = [round(ms, 1) for ms in prompt_ms[part]]
        columns[f"{t(f'{_NS}.part_{part}')} · TTFT (ms)"] = [round(1e3 * each[name].ttft_s, 1) for name in names]
    _caveat(found)
    charts.show(
        figures.times(names, prompt_ms, _words("x_request"), t(f"{_NS}.y_prompt")),
        key="pc_waits",
        title=t(f"{_NS}.waits_title"),
        alt=t(f"{_NS}.waits_alt", **{part: seconds(side.prompt_s(), lang) for part, side in shown.items()}),
        table=pd.DataFrame(columns),
        provenance=lambda: provenance(*(side.run for side in shown.values())),
    )


def _caveat(found: Four) -> None:
    """Above what shows seconds, where they cannot be compared."""
    if found.is_noisy:
        note(f":material/vibration: {t(f'{_NS}.noisy')}")


# ------------------------------------------------------------------------------------------------- comparison
def comparison(found: Four) -> None:
    """The four runs in numbers, then what a model says of them."""
    lang, mark = language(), badge("measured")
    rows: list[tuple[str, Callable[[Side], str]]] = [
        ("share", lambda s: percent(s.use.hit_rate, lang)),
        ("computed", lambda s: number(s.num_prefilled, lang)),
        ("evicted", lambda s: number(s.use.num_evicted_blocks, lang)),
        ("prompt", lambda s: seconds(s.prompt_s(), lang)),
        ("ttft", lambda s: seconds(s.mean_ttft_s, lang)),
        ("total", lambda s: seconds(makespan_s(s.run), lang)),
        ("steps", lambda s: number(len(s.run.steps), lang)),
    ]
    frame = pd.DataFrame(
        {t("compare.quantity"): [f"{t(f'{_NS}.row_{name}')} {mark}" for name, _ in rows]}
        | {t(f"{_NS}.part_{part}"): [say(s) for _, say in rows] for part, s in found.sides.items()}
    )
    _caveat(found)
    st.table(frame, hide_index=True, border="horizontal", alt=t(f"{_NS}.table_alt"))
    runs = [side.run for side in found.sides.values()]
    provenance(*runs)
    ideal = [] if found.ideal_found() is None else [_ideal_row(found, "radix"), _ideal_row(found, "aware")]
    compare.table([*ideal, _time_row(found, "radix"), _time_row(found, "aware")], *runs, key="pc_compare")
    st.markdown(t(f"{_NS}.compare_note"))


def _ideal_row(found: Four, part: str) -> compare.Row:
    lang, side, ideal = language(), found.sides[part], found.ideal_found()
    measured = side.use.num_cached_tokens
    return compare.Row(
        t(f"{_NS}.row_found_{part}"), measured, ideal, number(measured, lang), number(ideal, lang),
        t(f"{_NS}.formula_found", result=number(ideal, lang), evicted=side.use.num_evicted_blocks),
    )  # fmt: skip


def _time_row(found: Four, part: str) -> compare.Row:
    lang, side = language(), found.sides[part]
    measured = makespan_s(found.none.run) / makespan_s(side.run)
    before, after = found.none.modelled_s, side.modelled_s
    modelled = before / after if before and after else None
    return compare.Row(
        t(f"{_NS}.row_sooner_{part}"), measured, modelled, factor(measured, lang), factor(modelled, lang),
        t(
            f"{_NS}.formula_sooner",
            before=milliseconds(before and 1e3 * before, lang), after=milliseconds(after and 1e3 * after, lang),
            result=factor(modelled, lang),
        ),
    )  # fmt: skip
