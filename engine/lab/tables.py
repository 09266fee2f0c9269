"""A Run as two flat tables, one row per step and one per request, for data frames, CSV files and the tables of pages.

It decides the columns and their units (they are in the names), and computes nothing that is not defined elsewhere.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from engine.lab.draft_use import accepted_tokens
from engine.lab.latency import all_request_metrics
from engine.lab.records import Run, StepRecord
from engine.lab.steps import achieved_gbps, achieved_tflops, duration_s, num_rows, step_kind
from engine.lab.work import intensity

if TYPE_CHECKING:
    import pandas as pd

LATENCIES_MS = ("queue_ms", "ttft_ms", "tpot_ms", "e2e_ms")


def request_table(run: Run) -> pd.DataFrame:
    """``request_rows`` as a data frame; an undefined latency is NaN."""
    import pandas as pd

    return pd.DataFrame(request_rows(run)).astype(dict.fromkeys(LATENCIES_MS, "float64") if run.requests else {})


def step_table(run: Run) -> pd.DataFrame:
    """``step_rows`` as a data frame."""
    import pandas as pd

    return pd.DataFrame(step_rows(run))


def request_rows(run: Run) -> list[dict[str, object]]:
    """One row per request, in the order of the records; latencies in milliseconds, undefined ones None. Pure."""
    rows = []
    for metrics in all_request_metrics(run).values():
        row = asdict(metrics)
        for name in LATENCIES_MS:
            seconds = row.pop(name.removesuffix("_ms") + "_s")
            row[name] = None if seconds is None else seconds * 1e3
        rows.append(row)
    return rows


def step_rows(run: Run) -> list[dict[str, object]]:
    """One row per step: when, what kind, rows and tokens, queues, blocks, the parts of its time, its work and rates."""
    return [_step_row(step) for step in run.steps]


def _step_row(step: StepRecord) -> dict[str, object]:
    work, blocks, queues = step.work, step.blocks, step.queues
    return {
        "step": step.step,
        "t_begin_s": step.t_begin_s,
        "t_end_s": step.t_end_s,
        "duration_ms": duration_s(step) * 1e3,
        "kind": step_kind(step),
        "num_rows": num_rows(step),
        "num_padding_rows": len(step.scheduled) - num_rows(step),
        "tokens": work.tokens,
        "padding_tokens": work.padding_tokens,
        "outputs": sum(1 for output in step.outputs if output.token_id is not None),
        "draft_tokens": sum(row.num_draft_tokens for row in step.scheduled),
        "accepted_draft_tokens": sum(accepted_tokens(step).values()),
        "waiting": queues.waiting,
        "running": queues.running,
        "finished": queues.finished,
        "blocks_free": blocks.free,
        "blocks_cached": blocks.cached,
        "blocks_in_use": blocks.in_use,
        **{f"{part}_ms": getattr(step.time_ms, part) for part in type(step.time_ms).model_fields},
        "flops": work.flops,
        "weight_bytes": work.weight_bytes,
        "kv_read_bytes": work.kv_read_bytes,
        "kv_write_bytes": work.kv_write_bytes,
        "intensity": intensity(work),
        "achieved_gbps": achieved_gbps(step),
        "achieved_tflops": achieved_tflops(step),
        **({"worker": step.worker} if step.worker else {}),  # every step of a Run has one, or none has
    }
