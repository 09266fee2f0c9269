"""The pictures of the scheduling ladder, drawn from five Runs of one workload: table, player, code and steps, waiting.

Counts come from ``lessons.scheduling_ladder.rungs``, reasons for waiting from the scheduler's own records. X
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import pandas as pd
import streamlit as st

from engine.lab.latency import waits
from engine.lab.metrics import request_metrics, request_record
from engine.lab.records import Run
from lessons.facts_error import FactsError
from lessons.reasons import REASON_TEXT
from lessons.scheduling_ladder.facts import facts, ladder
from lessons.scheduling_ladder.rungs import Rung, refused_steps
from lessons.scheduling_ladder.scenarios import PREVIOUS, RUNGS
from pages._ui import charts, compare, policy_source, scheduling_ladder_charts, session
from pages._ui.badges import badge, note, provenance
from pages._ui.i18n import language, t
from pages._ui.player import timeline_player
from pages._ui.scheduling_ladder_charts import PHASES, REASONS
from pages._ui.units import milliseconds, number, seconds

_NS = "scheduling_ladder"
# Streamlit's colours for code are too faint to read on white; a tint behind the line is not. Five policies fit a phone.
_STYLE = """<style>
.st-key-sl_code_box .token { color: inherit !important; }
.st-key-sl_code_box code { font-size: 0.8rem !important; }
.st-key-sl_code_box .inserted-sign { background: rgba(0, 114, 178, 0.16); }
.st-key-sl_code_box .deleted-sign { background: rgba(213, 94, 0, 0.13); }
@media (max-width: 640px) {
  .st-key-sl_table :is(td, th) { padding: 0.25rem 0.2rem !important; }
  .st-key-sl_table :is(td, th, p) { font-size: 0.8rem !important; }
}
</style>"""


def name_of(policy: str) -> str:
    return t(f"{_NS}.part_{policy}")


# ------------------------------------------------------------------------------------------------- table and player
def table(runs: Mapping[str, Run]) -> None:
    """All rungs in one table: what each was worth, and what it wasted."""
    lang = language()
    found = ladder(runs)
    rows: list[tuple[str, Callable[[Rung], str]]] = [
        ("tps", lambda r: number(r.tokens_per_s, lang)),
        ("ttft", lambda r: seconds(r.ttft_s, lang)),
        ("gap", lambda r: seconds(r.worst.seconds, lang)),
        ("steps", lambda r: number(r.num_steps, lang)),
        ("held", lambda r: number(r.held_steps, lang)),
        ("preemptions", lambda r: number(r.num_preemptions, lang)),
        ("padding", lambda r: number(r.padding_tokens, lang)),
        ("empty", lambda r: number(r.mean_empty_blocks, lang)),
        ("most", lambda r: number(r.most_at_once, lang)),
        ("cached", lambda r: number(r.cached_tokens, lang)),
        ("computed", lambda r: number(r.computed_tokens, lang)),
    ]
    frame = pd.DataFrame(
        {
            t("compare.quantity"): [t(f"{_NS}.row_{name}") for name, _ in rows],
            **{t(f"{_NS}.short_{policy}"): [_whole(say(rung)) for _, say in rows] for policy, rung in found.items()},
        }
    )
    st.html(_STYLE)
    st.subheader(f"{t(f'{_NS}.table')} {badge('measured')}", anchor=False)
    with st.container(key="sl_table"):
        st.table(frame, hide_index=True, border="horizontal", alt=t(f"{_NS}.table_alt"))
    provenance(*(rung.run for rung in found.values()))
    note(t(f"{_NS}.table_note"))


def _whole(value: str) -> str:
    """A number that is not parted from its unit in a narrow column."""
    return value.replace(" ", "\u00a0")


def player(runs: Mapping[str, Run]) -> None:
    """All five Runs on one clock, or those that the reader wants to see together."""
    st.subheader(t(f"{_NS}.player"), anchor=False)
    chosen = st.pills(
        t(f"{_NS}.player_rungs"),
        RUNGS,
        selection_mode="multi",
        default=RUNGS,
        format_func={policy: name_of(policy) for policy in RUNGS}.__getitem__,
        key="sl_player_rungs",
    )
    shown = [policy for policy in RUNGS if policy in chosen] or list(RUNGS)
    spoken = [session.store().texts(runs[policy].run_id).pieces or None for policy in shown]
    labelled = [(name_of(policy), runs[policy]) for policy in shown]
    timeline_player(labelled, lang=language(), key="sl_player", texts=spoken)
    provenance(*(run for _, run in labelled))


# ------------------------------------------------------------------------------------------------- one rung
def rung(runs: Mapping[str, Run], policy: str) -> None:
    """The code of a policy, what differs from the rung below, and beside it what its Run's steps held."""
    below = PREVIOUS.get(policy)
    left, right = st.columns([4, 3])
    with left:
        st.markdown(f"**{t(f'{_NS}.does_{policy}')}**")
        shown = _code_choice(policy, below)
        if shown == "source" or below is None:
            text, file = policy_source.source(policy), f"engine/scheduling/policies/{policy}.py"
            note(f"`{file}` · {t(f'{_NS}.code_lines', count=len(text.splitlines()))}")
            _code(text, "python")
        else:
            key = "code_extends" if policy_source.extends(policy, below) else "code_differs"
            note(t(f"{_NS}.{key}", below=f"`{below}.py`"))
            _code(policy_source.difference(policy, below), "diff")
    with right:
        _composition(runs, policy)
        _against_below(runs, policy, below)


def _code(text: str, language_name: str) -> None:
    """At full length: a box that scrolls is closed to the keyboard."""
    with st.container(key="sl_code_box"):
        st.code(text, language=language_name, wrap_lines=True)


def _code_choice(policy: str, below: str | None) -> str:
    if below is None:
        return "source"
    options = ("differs", "source")
    return st.segmented_control(
        t(f"{_NS}.code_show"),
        options,
        default="differs",
        required=True,
        key=f"sl_code:{policy}",
        format_func={name: t(f"{_NS}.code_{name}_tab", below=name_of(below)) for name in options}.__getitem__,
    )


def _composition(runs: Mapping[str, Run], policy: str) -> None:
    run = runs[policy]
    numbers = [step.step for step in run.steps]
    counted = [Counter() for _ in run.steps]
    for bucket, step in zip(counted, run.steps, strict=True):
        for row in step.scheduled:
            bucket[row.phase] += row.num_tokens
    tokens = {phase: [bucket[phase] for bucket in counted] for phase in PHASES}
    budget = int(run.header.scenario["limits"]["max_batch_tokens"])
    words = {name: t(f"{_NS}.steps_{name}") for name in (*PHASES, "budget", "x", "y")}
    totals = {phase: number(sum(tokens[phase]), language()) for phase in PHASES}
    charts.show(
        scheduling_ladder_charts.composition(numbers, tokens, budget, words),
        key=f"sl_steps_{policy}",
        title=t(f"{_NS}.steps", name=name_of(policy)),
        alt=t(f"{_NS}.steps_alt", name=name_of(policy), count=len(numbers), budget=budget, **totals),
        table=pd.DataFrame(
            {words["x"]: numbers, **{words[phase]: tokens[phase] for phase in PHASES if any(tokens[phase])}}
        ),
        provenance=lambda: provenance(run),
    )


def _against_below(runs: Mapping[str, Run], policy: str, below: str | None) -> None:
    """What changed against the rung below, in counts."""
    lang = language()
    found = ladder(runs)
    one = found[policy]
    if below is None:
        st.markdown(t(f"{_NS}.bottom", padding=one.padding_tokens, steps=one.num_steps) + f" {badge('measured')}")
        return
    other = found[below]
    lines = [
        (t(f"{_NS}.row_{name}"), say(other), say(one))
        for name, say in (
            ("steps", lambda r: number(r.num_steps, lang)),
            ("padding", lambda r: number(r.padding_tokens, lang)),
            ("empty", lambda r: number(r.mean_empty_blocks, lang)),
            ("most", lambda r: number(r.most_at_once, lang)),
            ("held", lambda r: number(r.held_steps, lang)),
            ("preemptions", lambda r: number(r.num_preemptions, lang)),
            ("computed", lambda r: number(r.computed_tokens, lang)),
        )
        if say(other) != say(one)
    ]
    st.markdown(f"{t(f'{_NS}.against', below=name_of(below))} {badge('measured')}")
    said = (t("common.said_of", name=name, said=f"{before} → **{after}**") for name, before, after in lines)
    st.markdown("\n".join(f"- {line}" for line in said) or "–")


# ------------------------------------------------------------------------------------------------- why did it wait?
def waiting(runs: Mapping[str, Run], request_id: str) -> None:
    """Why one request did not run, under every policy: the recorded refusals, and what else kept it."""
    lang = language()
    ms = {reason: [_waited_ms(runs[policy], request_id)[reason] for policy in RUNGS] for reason in REASONS}
    totals = [sum(ms[reason][i] for reason in REASONS) for i in range(len(RUNGS))]
    words = {reason: REASON_TEXT[reason][lang] for reason in REASONS if reason != "other"}
    words |= {"other": t(f"{_NS}.wait_other"), "x": t(f"{_NS}.wait_x")}
    names = [name_of(policy) for policy in RUNGS]
    charts.show(
        scheduling_ladder_charts.waiting(names, ms, words),
        key="sl_waits",
        title=t(f"{_NS}.wait", request=request_id),
        alt=t(
            f"{_NS}.wait_alt",
            request=request_id,
            first=milliseconds(totals[0], lang),
            last=milliseconds(totals[-1], lang),
        ),
        table=pd.DataFrame(
            {
                t(f"{_NS}.col_rung"): names,
                **{f"{words[r]} (ms)": [round(v, 1) for v in ms[r]] for r in REASONS if any(ms[r])},
                t("study.column_run"): [runs[policy].run_id for policy in RUNGS],
            }
        ),
        provenance=lambda: provenance(*(runs[policy] for policy in RUNGS)),
    )
    answers = {policy: _answer(runs[policy], request_id) for policy in RUNGS}
    said = (t("common.said_of", name=f"**{name_of(policy)}**", said=answer) for policy, answer in answers.items())
    st.markdown("\n".join(f"- {line}" for line in said))


def _waited_ms(run: Run, request_id: str) -> Counter:
    found: Counter = Counter()
    for wait in waits(run, request_id):
        found[wait.why if wait.why in REASONS else "other"] += 1e3 * wait.seconds
    return found


def _answer(run: Run, request_id: str) -> str:
    """One sentence from the records: how long, in how many steps refused, and why."""
    lang = language()
    record = request_record(run, request_id)
    queue = request_metrics(record).queue_s or 0.0
    counts = refused_steps(run, request_id)
    if not counts:
        return t(f"{_NS}.answer_none", wait=seconds(queue, lang))
    comma = t("player.comma")
    reasons = comma.join(
        t(f"{_NS}.answer_item", count=count, why=REASON_TEXT[why][lang]) for why, count in counts.most_common()
    )
    sentence = t(f"{_NS}.answer", wait=seconds(queue, lang), total=counts.total(), reasons=reasons)
    if record.num_preemptions:
        sentence += " " + t(f"{_NS}.answer_preempted", count=record.num_preemptions)
    return sentence


# ------------------------------------------------------------------------------------------------- comparison
def comparison(runs: Mapping[str, Run]) -> None:
    """The total time of each rung beside what the ceilings allow for the very same steps."""
    lang = language()
    found = ladder(runs)
    rows = []
    for policy, one in found.items():
        modelled = one.modelled_s()
        device = one.run.header.device
        formula = t(
            f"{_NS}.formula_time",
            steps=one.num_steps,
            tokens=number(one.computed_tokens + one.padding_tokens, lang),
            read=number(device.read_gbps, lang),
            matmul=number(device.matmul_tflops, lang),
            result=seconds(modelled, lang),
        )
        name = t(f"{_NS}.row_time", name=name_of(policy))
        shown = seconds(one.makespan_s, lang), seconds(modelled, lang)
        rows.append(compare.Row(name, one.makespan_s, modelled, *shown, formula))
    compare.table(rows, *(rung.run for rung in found.values()), key="sl_compare")
    st.markdown(t(f"{_NS}.compare_note"))


def complete(runs: Mapping[str, Run]) -> bool:
    """Whether the Runs are enough for the pictures and the explanation. Pure."""
    try:
        facts(runs)
    except FactsError:
        return False
    return True


def limits_of(runs: Mapping[str, Run]) -> tuple[int, int]:
    """(budget, blocks) of the Runs. Pure."""
    limits = runs["static"].header.scenario["limits"]
    return int(limits["max_batch_tokens"]), int(limits["num_blocks"])
