"""What the browser gets to draw a timeline: a Run as short columns of whole numbers.

It decides what is sent, never how it looks: times are microseconds from the start of the run, a request is its row
number, and consecutive steps in which a request does the same thing are one span [from, to). Nothing is left out and
nothing is capped: the drawing may leave ticks away where they would touch, the data never does. Reasons for waiting
are the recorded ones (``StepRecord.refused``); this module infers none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.lab.records import DeviceInfo, Header, ModelInfo, Run, StepRecord
from engine.lab.scenario import Scenario
from engine.lab.words import shared_texts

PAYLOAD_VERSION = 1
MOST_RUNS = 5  # more would not be seen together
PHASES = ("prefill", "decode", "recompute", "padding")
REASONS = ("no_blocks", "token_budget", "request_limit", "batch_not_drained")
EVENTS = ("admitted", "preempted", "token", "stop", "length", "abort")
_NAMESPACE = "player."

Pieces = Mapping[str, Sequence[str]]  # request id -> the printable text of each of its output tokens


def timeline_payload(
    runs: Sequence[tuple[str, Run]],
    lang: str,
    *,
    texts: Sequence[Pieces | None] | None = None,
    live: bool = False,
    autoplay: bool = True,
) -> dict[str, Any]:
    """The data of one player: JSON-ready, in the language ``lang``, for one labelled Run or up to five. Pure.

    ``texts`` stands beside ``runs``: the text pieces of each request, or None. Raises: ValueError for no Run or six.
    """
    if not 1 <= len(runs) <= MOST_RUNS:
        raise ValueError(f"{len(runs)} runs; a timeline shows 1 to {MOST_RUNS}, so leave some out")
    pieces = list(texts or [])
    pieces += [None] * (len(runs) - len(pieces))
    return {
        "version": PAYLOAD_VERSION,
        "lang": lang,
        "live": live,
        "autoplay": autoplay and not live,
        "text": player_strings(lang),
        "runs": [run_columns(label, run, text) for (label, run), text in zip(runs, pieces, strict=False)],
    }


def player_strings(lang: str) -> dict[str, str]:
    """The player's own strings without their namespace. Pure."""
    return {k.removeprefix(_NAMESPACE): v for k, v in shared_texts(lang).items() if k.startswith(_NAMESPACE)}


def run_columns(label: str, run: Run, pieces: Pieces | None = None) -> dict[str, Any]:
    """One Run as columns. Times in microseconds, 0 = start of the run. Pure."""
    header, rows = run.header, request_rows(run)
    limits = header.scenario.get("limits") or {}
    return {
        "label": label,
        "run_id": run.run_id,
        "device": header.device.name,
        "dtype": header.dtype,
        "policy": run.steps[0].policy if run.steps else str(header.scenario.get("policy", "")),
        "num_blocks": header.num_blocks,
        "block_size": header.block_size,
        "max_requests": int(limits.get("max_requests") or 0),
        "requests": {"id": list(rows), "arrival": [_us(arrival) for arrival in rows.values()]},
        "steps": _step_columns(run.steps),
        "spans": _span_columns(run.steps, list(rows)),
        "waits": _wait_columns(run.steps, list(rows)),
        "events": _event_columns(run.steps, list(rows)),
        "pieces": [list(pieces.get(r, ())) for r in rows] if pieces else None,
    }


def request_rows(run: Run) -> dict[str, float]:
    """Request id -> arrival in seconds, in the order of the rows.

    The order is that of the workload; ids that only the steps know (a Run still being made) follow. Pure.
    """
    rows = {r.request_id: r.arrival_s for r in run.requests}
    if not rows and run.header.scenario.get("requests"):
        scenario = Scenario.parse(run.header.scenario)
        asked = zip(scenario.request_ids(), scenario.requests, strict=True)
        rows = {
            name: spec.arrival_s for name, spec in asked if spec.follows is None
        }  # when others do, nobody knows yet
    for step in run.steps:
        for name in [s.request_id for s in step.scheduled] + [r.request_id for r in step.refused]:
            rows.setdefault(name, step.t_begin_s)
    return rows


def partial_run(scenario: Scenario, steps: Sequence[StepRecord], run_id: str, device: str = "") -> Run:
    """A Run that is still being made, for the live player: no request records yet, device facts unknown. Pure."""
    model = ModelInfo(
        name=scenario.model, source="", architecture="", num_layers=0, hidden_size=0, num_heads=0, num_kv_heads=0,
        head_dim=0, vocab_size=0, num_parameters=0, weight_bytes=0,
    )  # fmt: skip
    header = Header(
        run_id=run_id,
        created_utc="",
        scenario=scenario.model_dump(mode="json"),
        device=DeviceInfo(name=device, type="", threads=0, memory_bytes=0),
        model=model,
        dtype=scenario.dtype,
        kv_dtype=scenario.kv_dtype or scenario.dtype,
        block_size=scenario.block_size,
        num_blocks=scenario.limits.num_blocks,
        versions={},
    )
    return Run(header=header, steps=list(steps), requests=[])


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _step_columns(steps: Sequence[StepRecord]) -> dict[str, list[int]]:
    """Begins are sent as differences, so that a long run costs few digits; the differences add up exactly."""
    begins = [_us(s.t_begin_s) for s in steps]
    return {
        "number": [s.step for s in steps],
        "begin_delta": [b - a for a, b in zip([0, *begins], begins, strict=False)],
        "length": [max(0, _us(s.t_end_s) - b) for s, b in zip(steps, begins, strict=True)],
        "in_use": [s.blocks.in_use for s in steps],
        "cached": [s.blocks.cached for s in steps],
    }


def _span_columns(steps: Sequence[StepRecord], rows: list[str]) -> dict[str, list[int]]:
    """What each request does: prefill and recompute chunks one by one, runs of decode or padding merged.

    A span is merged only while it stays exactly describable: one token a step, decode moving on by one position.
    """
    index = {name: i for i, name in enumerate(rows)}
    names = ("request", "phase", "from", "to", "start", "tokens", "cached", "last")
    columns: dict[str, list[int]] = {name: [] for name in names}
    open_span: dict[int, int] = {}  # row -> its latest span
    for k, step in enumerate(steps):
        for s in step.scheduled:
            row, phase = index[s.request_id], PHASES.index(s.phase)
            i = open_span.get(row)
            if i is not None and s.num_tokens == 1 and s.num_cached_tokens == 0 and s.phase in ("decode", "padding"):
                moved = columns["to"][i] - columns["from"][i] if s.phase == "decode" else 0
                same = columns["phase"][i] == phase and columns["to"][i] == k and columns["tokens"][i] == 1
                if same and s.start == columns["start"][i] + moved and columns["cached"][i] == 0:
                    columns["to"][i] = k + 1
                    continue
            values = (row, phase, k, k + 1, s.start, s.num_tokens, s.num_cached_tokens, int(s.is_last_chunk))
            for name, value in zip(names, values, strict=True):
                columns[name].append(value)
            open_span[row] = len(columns["to"]) - 1
    return columns


def _wait_columns(steps: Sequence[StepRecord], rows: list[str]) -> dict[str, list[int]]:
    """Why each request waits: runs of steps with the same recorded reason."""
    index = {name: i for i, name in enumerate(rows)}
    columns: dict[str, list[int]] = {name: [] for name in ("request", "why", "from", "to")}
    open_span: dict[int, int] = {}
    for k, step in enumerate(steps):
        for r in step.refused:
            row, why = index[r.request_id], REASONS.index(r.why)
            i = open_span.get(row)
            if i is not None and columns["why"][i] == why and columns["to"][i] == k:
                columns["to"][i] = k + 1
                continue
            for name, value in zip(columns, (row, why, k, k + 1), strict=True):
                columns[name].append(value)
            open_span[row] = len(columns["to"]) - 1
    return columns


def _event_columns(steps: Sequence[StepRecord], rows: list[str]) -> dict[str, list[int]]:
    """Single moments. ``token`` is only sent where no decode tick shows it: the token at the end of a prompt."""
    index = {name: i for i, name in enumerate(rows)}
    columns: dict[str, list[int]] = {name: [] for name in ("step", "kind", "request")}

    def event(k: int, kind: str, request_id: str) -> None:
        if request_id in index:
            for name, value in zip(columns, (k, EVENTS.index(kind), index[request_id]), strict=True):
                columns[name].append(value)

    for k, step in enumerate(steps):
        for name in step.admitted:
            event(k, "admitted", name)
        for name in step.preempted:
            event(k, "preempted", name)
        reading = {s.request_id for s in step.scheduled if s.phase in ("prefill", "recompute")}
        for output in step.outputs:
            if output.request_id in reading and output.token_id is not None:
                event(k, "token", output.request_id)
            if output.finish_reason:
                event(k, output.finish_reason, output.request_id)
    return columns
