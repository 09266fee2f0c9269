"""The page parts of the PagedAttention lesson: its settings, the pool while it runs, the pictures of its Runs.

Every picture of memory is replayed from block events; the arithmetic of reserving stands beside it. Nothing here
computes a definition: ``engine.lab`` and the lesson do.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import streamlit as st

from engine.lab.records import StepRecord
from engine.lab.scenario import Scenario
from engine.server.client import EngineRefused, EngineUnavailable
from lessons.paged_attention.facts import Three
from lessons.paged_attention.scenarios import (
    BLOCK_SIZES,
    DEFAULT_BLOCK_SIZE,
    DEFAULT_LIMIT,
    DEFAULT_POOL_POSITIONS,
    LIMITS,
    POOL_POSITIONS,
    museum,
)
from pages._ui import block_map, block_tables, charts, jobs, links, session
from pages._ui import paged_attention_charts as figures
from pages._ui.badges import badge, note, provenance
from pages._ui.i18n import language, t
from pages._ui.player import timeline_player
from pages._ui.units import byte_count, number, percent

_NS = "paged_attention"
BLOCK = links.IntSetting("pa_block", DEFAULT_BLOCK_SIZE, BLOCK_SIZES[0], BLOCK_SIZES[-1], BLOCK_SIZES)
POOL = links.IntSetting("pa_pool", DEFAULT_POOL_POSITIONS, POOL_POSITIONS[0], POOL_POSITIONS[-1], POOL_POSITIONS)
LIMIT = links.IntSetting("pa_limit", DEFAULT_LIMIT, LIMITS[0], LIMITS[-1], LIMITS)
SETTINGS = (BLOCK, POOL, LIMIT)
MOST_LIVE_BLOCKS = 96  # a larger map, twice a second, would disturb the run it shows


def settings() -> dict[str, int]:
    """Draw the three inputs. Returns their values, checked."""
    links.restore(SETTINGS)
    links.show_notices(SETTINGS)
    shown: tuple[tuple[links.IntSetting, str], ...] = ((BLOCK, "block"), (POOL, "pool"), (LIMIT, "limit"))
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
    return {"block_size": chosen[BLOCK.key], "pool_positions": chosen[POOL.key], "limit": chosen[LIMIT.key]}


def prompt_line() -> None:
    """How long the prompts are for the model at hand, which the prediction needs. Nothing while the engine is away."""
    lengths = _prompt_lengths(language()) if session.engine_state().ready else None
    if lengths:
        note(t(f"{_NS}.prompt_line", low=min(lengths), high=max(lengths)))


@st.cache_data(max_entries=8, ttl=600, show_spinner=False)
def _prompt_lengths(lang: str) -> list[int] | None:
    asked = [r.prompt for r in museum("orca", lang=lang).requests]
    try:
        return [session.client().tokenize(p, chat=True).num_tokens for p in (min(asked, key=len), max(asked, key=len))]
    except (EngineUnavailable, EngineRefused):
        return None


# ------------------------------------------------------------------------------------------------- while it runs
def live(view: jobs.View) -> None:
    """The pool and every block table as they are now: text and boxes, since a figure would cost the run its quiet."""
    steps = list(view.steps)
    if not steps or view.status is None or view.status.state != "running":
        return  # a part that has just ended: the job stands at the next one already
    scenario = Scenario.parse(view.job.parts[view.job.index]["scenario"])
    found = block_map.cells(scenario.limits.num_blocks, scenario.block_size, steps)
    st.markdown(
        t(
            f"{_NS}.live",
            running=steps[-1].queues.running,
            waiting=steps[-1].queues.waiting,
            preempted=sum(len(step.preempted) for step in steps),
            map=_map_words(found, scenario.block_size),
        )
    )
    tables = block_tables.tables(scenario.limits.num_blocks, scenario.block_size, steps)
    st.code(block_tables.as_text(tables) or " ", language=None, height=300)
    if len(found) <= MOST_LIVE_BLOCKS:
        alt = _map_words(found, scenario.block_size)
        block_map.draw(found, scenario.block_size, alt=alt, key=f"pa_live_{view.job.label}", with_table=False)


def _map_words(found: list[block_map.Cell], block_size: int) -> str:
    used = block_map.in_use(found)
    filled, slots = sum(cell.filled for cell in used), len(used) * block_size
    return t(f"{_NS}.map_words", used=len(used), total=len(found), slots=slots, filled=filled, empty=slots - filled)


# ------------------------------------------------------------------------------------------------- pictures
def draw(found: Three) -> None:
    """All pictures in reading order."""
    pool(found)
    at_once(found)
    left_empty(found)
    st.fragment(tables)(found)
    player(found)


def _words(*names: str) -> dict[str, str]:
    parts = {f"part_{part}": t(f"{_NS}.part_{part}") for part in ("orca", "paged", "shared")}
    return parts | {name: t(f"{_NS}.{name}") for name in names}


def _where(found: Three) -> Callable[[], None]:
    return lambda: provenance(*(side.run for side in found.sides.values()))


def pool(found: Three) -> None:
    """What the pool held after each step, filled and empty, under the three ways."""
    lang = language()
    shown = [
        figures.PoolOverTime(
            part,
            [use.step for use in side.use],
            [use.filled_bytes / 1e6 for use in side.use],
            [use.reserved_bytes / 1e6 for use in side.use],
            [loss.step for loss in side.losses],
        )
        for part, side in found.sides.items()
    ]
    size = found.orca.run.header.num_blocks * found.orca.block_size * found.orca.position_bytes
    table = pd.concat(
        [
            pd.DataFrame(
                {
                    t(f"{_NS}.col_run"): t(f"{_NS}.part_{part}"),
                    t(f"{_NS}.x"): [use.step for use in side.use],
                    t(f"{_NS}.col_blocks"): [use.num_blocks for use in side.use],
                    t(f"{_NS}.col_held"): [use.reserved_bytes for use in side.use],
                    t(f"{_NS}.col_filled"): [use.filled_bytes for use in side.use],
                    t(f"{_NS}.col_preempted"): [", ".join(step.preempted) for step in side.run.steps],
                }
            )
            for part, side in found.sides.items()
        ],
        ignore_index=True,
    )
    charts.show(
        figures.pool(shown, size / 1e6, _words("filled", "empty", "held", "pool_line", "preempted", "x", "y")),
        key="pa_pool_chart",
        title=t(f"{_NS}.pool_title"),
        alt=t(
            f"{_NS}.pool_alt",
            pool=byte_count(size, lang),
            **{f"{part}_used": percent(side.share_used, lang) for part, side in found.sides.items()},
            preemptions=len(found.paged.losses),
        ),
        table=table,
        provenance=_where(found),
    )


def at_once(found: Three) -> None:
    """How many requests held a place after each step."""
    running = {part: [step.queues.running for step in side.run.steps] for part, side in found.sides.items()}
    longest = max(len(values) for values in running.values())
    table = pd.DataFrame(
        {t(f"{_NS}.x"): range(longest)}
        | {t(f"{_NS}.part_{part}"): values + [None] * (longest - len(values)) for part, values in running.items()}
    )
    charts.show(
        figures.at_once(running, _words("x", "y_running")),
        key="pa_running",
        title=t(f"{_NS}.running_title"),
        alt=t(f"{_NS}.running_alt", **{part: side.peak for part, side in found.sides.items()}),
        table=table,
        provenance=_where(found),
    )


def left_empty(found: Three) -> None:
    """What each request's blocks held when it ended, reserved and on demand."""
    shown = {"orca": found.orca, "paged": found.paged}
    names = [record.request_id for record in found.orca.run.requests]
    filled = {part: [side.last[name].num_tokens for name in names] for part, side in shown.items()}
    empty = {part: [side.never_used[name] for name in names] for part, side in shown.items()}
    columns = {t(f"{_NS}.x_request"): names}
    for part in shown:
        columns[f"{t(f'{_NS}.part_{part}')} · {t(f'{_NS}.filled')}"] = filled[part]
        columns[f"{t(f'{_NS}.part_{part}')} · {t(f'{_NS}.empty')}"] = empty[part]
    charts.show(
        figures.left_empty(names, filled, empty, _words("filled", "empty", "x_request", "y_positions")),
        key="pa_empty",
        title=t(f"{_NS}.left_title"),
        alt=t(f"{_NS}.left_alt", orca=sum(empty["orca"]), paged=sum(empty["paged"]), n=len(names)),
        table=pd.DataFrame(columns),
        provenance=lambda: provenance(found.orca.run, found.paged.run),
    )


def tables(found: Three) -> None:
    """Block tables, the events of a step and the map, after a step the learner chooses. A fragment."""
    st.subheader(t(f"{_NS}.tables_title"), anchor=False)
    part = st.segmented_control(
        t(f"{_NS}.which_run"),
        options=list(found.sides),
        format_func=lambda name: t(f"{_NS}.part_{name}"),
        default="paged",
        required=True,
        wrap=True,
        key="pa_part",
    )
    run = found.sides[part].run
    last = len(run.steps) - 1
    losses = found.sides[part].losses
    start = min(losses[0].step if losses else last // 2, last)
    chosen = st.slider(t(f"{_NS}.which_step"), 0, last, value=start, key=f"pa_step_{part}")
    steps = run.steps[: chosen + 1]
    found_cells = block_map.cells(run.header.num_blocks, run.header.block_size, steps)
    sentence = _map_words(found_cells, run.header.block_size)
    st.markdown(f"{sentence} {badge('measured')}  \n{_events(run.steps[chosen])}")
    block_tables.draw(
        block_tables.tables(run.header.num_blocks, run.header.block_size, steps), key="pa_tables", alt=sentence
    )
    block_map.draw(found_cells, run.header.block_size, alt=sentence, key="pa_map")
    provenance(run)


def _events(step: StepRecord) -> str:
    lines = block_tables.event_lines(step)
    if step.preempted:
        lines.insert(0, t(f"{_NS}.event_preempted", who=", ".join(step.preempted)))
    return "  \n".join(lines) if lines else t("block_tables.no_events")


def player(found: Three) -> None:
    """Reserved and on demand on one clock: who waits, who runs, what is computed again."""
    st.subheader(t(f"{_NS}.player_title"), anchor=False)
    shown = {"orca": found.orca.run, "paged": found.paged.run}
    spoken = [session.store().texts(run.run_id).pieces or None for run in shown.values()]
    labelled = [(t(f"{_NS}.part_{part}"), run) for part, run in shown.items()]
    timeline_player(labelled, lang=language(), key="pa_player", texts=spoken)
    provenance(*shown.values())
