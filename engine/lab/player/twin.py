"""The timeline for those who read instead of look: the same Run as a table of steps and as a text.

Everything the picture shows has a cell or a sentence here, from the same records and with the same words. It decides
nothing about layout and computes no metric: the latencies are those of ``engine.lab.latency``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pandas as pd

from engine.lab import units
from engine.lab.latency import request_metrics, waits
from engine.lab.player.payload import request_rows
from engine.lab.records import RequestRecord, Run, StepRecord
from engine.lab.words import escape_markdown as escape
from engine.lab.words import say


def timeline_table(run: Run, lang: str) -> pd.DataFrame:
    """One row per step, in the order of the record: what ran, who waited and why, blocks in use. Pure."""
    return pd.DataFrame([_table_row(step, lang) for step in run.steps], columns=list(_table_columns(lang).values()))


def timeline_summary(runs: Sequence[tuple[str, Run]], lang: str) -> str:
    """The Runs in words, as Markdown: totals, one line per request, and which ended first. Pure."""
    parts = [_run_text(label, run, lang) for label, run in runs]
    if len(runs) > 1:
        parts.append(_difference(runs, lang))
    return "\n\n".join(p for p in parts if p)


def _words(lang: str, key: str, **values: object) -> str:
    return say(lang, f"player.{key}", **values)


def counted(lang: str, key: str, n: int) -> str:
    """``n`` things in words ("1 token", "5 tokens"). Pure."""
    return _words(lang, f"{key}_{'one' if n == 1 else 'other'}", n=n)


def _time(lang: str, seconds: float | None) -> str:
    """A duration to the microsecond, so that sums of recorded times do not show the tail of their floats."""
    return units.seconds(None if seconds is None else round(seconds, 6), lang)


def _table_columns(lang: str) -> dict[str, str]:
    names = ("step", "begin", "length", "prefill", "decode", "recompute", "padding", "waiting", "preempted", "finished",
             "in_use", "cached")  # fmt: skip
    return {name: _words(lang, f"col_{name}") for name in names}


def _table_row(step: StepRecord, lang: str) -> dict[str, object]:
    comma = _words(lang, "comma")

    def chunks(phase: str, with_tokens: bool) -> str:
        found = [s for s in step.scheduled if s.phase == phase]
        return comma.join(f"{s.request_id} {s.num_tokens}" if with_tokens else s.request_id for s in found)

    cells = {
        "step": step.step,
        "begin": round(step.t_begin_s * 1e3, 2),
        "length": round((step.t_end_s - step.t_begin_s) * 1e3, 2),
        "prefill": chunks("prefill", True),
        "decode": chunks("decode", False),
        "recompute": chunks("recompute", True),
        "padding": chunks("padding", False),
        "waiting": comma.join(f"{r.request_id}: {_words(lang, 'short_' + r.why)}" for r in step.refused),
        "preempted": comma.join(step.preempted),
        "finished": comma.join(o.request_id for o in step.outputs if o.finish_reason),
        "in_use": step.blocks.in_use,
        "cached": step.blocks.cached,
    }
    return {title: cells[name] for name, title in _table_columns(lang).items()}


def _run_text(label: str, run: Run, lang: str) -> str:
    if not run.steps:
        return f"**{escape(label)}**: {_words(lang, 'empty')}"
    rows = request_rows(run)
    head = _words(
        lang, "sum_run", label=escape(label), device=escape(run.header.device.name),
        dtype=run.header.dtype, run_id=run.run_id,
        requests=counted(lang, "requests", len(rows)), steps=counted(lang, "steps", len(run.steps)),
        total=_time(lang, run.steps[-1].t_end_s),
    )  # fmt: skip
    padding = sum(s.num_tokens for step in run.steps for s in step.scheduled if s.phase == "padding")
    everything = sum(s.num_tokens for step in run.steps for s in step.scheduled)
    sentences = [head]
    if padding:
        sentences.append(_words(lang, "sum_padding", padding=padding, all=everything))
    peak = max(s.blocks.in_use for s in run.steps)
    sentences.append(_words(lang, "sum_blocks", peak=peak, total=run.header.num_blocks))
    lines = [f"- {_request_text(run, record, lang)}" for record in run.requests]
    return (" " if lang == "en" else "").join(sentences) + "\n" + "".join("\n" + line for line in lines)


def _request_text(run: Run, record: RequestRecord, lang: str) -> str:
    waited: Counter[str] = Counter()
    for wait in waits(run, record.request_id):
        waited[wait.why] += wait.seconds
    reasons = [
        _words(lang, "sum_why_item", time=_time(lang, spent), why=_words(lang, f"why_{why}"))
        for why, spent in waited.items()
    ]
    times = request_metrics(record)
    values = {
        "id": escape(record.request_id),
        "arrival": _time(lang, record.arrival_s),
        "wait": _time(lang, sum(waited.values())),
        "why": _words(lang, "sum_why", list=_words(lang, "comma").join(reasons)) if reasons else "",
    }
    if record.completion_s is None or record.finish_reason is None:
        text = _words(lang, "sum_request_open", **values)
    else:
        text = _words(
            lang, "sum_request", **values,
            ttft=_time(lang, times.ttft_s), end=_time(lang, record.completion_s),
            tokens=counted(lang, "tokens", record.num_output_tokens),
            finish=_words(lang, f"finish_{record.finish_reason}"),
        )  # fmt: skip
    if record.num_preemptions:
        text += (" " if lang == "en" else "") + counted(lang, "sum_preempted", record.num_preemptions)
    return text


def _difference(runs: Sequence[tuple[str, Run]], lang: str) -> str:
    """Which Run ended first and how long before the last one, in the player's words. Empty if one has no step yet."""
    if not all(run.steps for _, run in runs):
        return ""
    ends = sorted((run.steps[-1].t_end_s, label) for label, run in runs)
    (fast_s, fast), (slow_s, slow) = ends[0], ends[-1]
    if round(fast_s * 1e3) == round(slow_s * 1e3) or fast_s <= 0:
        return _words(lang, "same_end", total=units.number(round(fast_s * 1e3), lang))
    ratio = units.number(round(slow_s / fast_s, 2), lang)
    return _words(
        lang,
        "difference",
        fast=escape(fast),
        slow=escape(slow),
        ms=units.number(round((slow_s - fast_s) * 1e3), lang),
        ratio=ratio,
    )
