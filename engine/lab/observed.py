"""A Run that was watched from outside: what a client of another server saw, in the form of every other Run.

It decides what such a Run may say (when each request was sent, when each piece of its answer came) and what it lacks
(everything inside the server: steps, queue, blocks, device). It guesses nothing: what was not seen is None, 0 or empty,
and named in ``header.observed.lacks``. It opens no connection; ``engine.runtime.outside`` does.

Invariant: latencies of such a Run and of our own are computed by the same functions (``engine.lab.latency``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from engine.lab.check_rules import CheckError, require
from engine.lab.latency import inter_token_gaps, request_record
from engine.lab.records import DeviceInfo, FinishReason, Header, ModelInfo, Observed, RequestRecord, Run
from engine.lab.scenario import Scenario, ScenarioError

UNKNOWN = "unknown"
INSIDE = ("steps", "queue", "blocks", "device", "model")  # what nobody sees from outside
TIME_SLACK_S = 1e-6


@dataclass(frozen=True)
class Seen:
    """One request as its client saw it. Times in seconds from the start of the run; ``token_times_s`` of its pieces.

    ``num_prompt_tokens`` and ``num_output_tokens`` are the server's own counts, None where it gave none.
    """

    request_id: str
    sent_s: float
    token_times_s: tuple[float, ...]
    finish_reason: FinishReason | None
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    ended_s: float | None = None  # None: when its last piece came


def observed_run(
    run_id: str,
    source: str,
    server: str,
    model: str,
    seen: Sequence[Seen],
    scenario: Mapping[str, Any] | None = None,
    lacks: Sequence[str] = (),
    versions: Mapping[str, str] | None = None,
    created_utc: str | None = None,
) -> Run:
    """The Run of what was seen. Pure but for the date. ``lacks`` is added to what nobody sees from outside."""
    missing = [*INSIDE, "token_ids", *lacks]
    if any(s.num_prompt_tokens is None for s in seen):
        missing.append("prompt_tokens")
    if any(s.num_output_tokens is None or s.num_output_tokens != len(s.token_times_s) for s in seen):
        missing.append("single_tokens")
    header = Header(
        run_id=run_id,
        created_utc=created_utc or datetime.now(UTC).isoformat(timespec="seconds"),
        scenario=dict(scenario or {"name": f"observed/{server}"[:200]}),
        device=DeviceInfo(name=source, type="observed", threads=0, memory_bytes=0),
        model=_unknown_model(model, source),
        dtype=UNKNOWN,
        kv_dtype=UNKNOWN,
        block_size=0,
        num_blocks=0,
        versions=dict(versions or {}),
        observed=Observed(source=source, server=server, lacks=list(dict.fromkeys(missing))),
    )
    return Run(header=header, steps=[], requests=[_record(s) for s in seen])


def _unknown_model(name: str, source: str) -> ModelInfo:
    sizes = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "vocab_size")
    zeros = dict.fromkeys((*sizes, "num_parameters", "weight_bytes"), 0)
    return ModelInfo(name=name, source=source, architecture=UNKNOWN, **zeros)


def _record(seen: Seen) -> RequestRecord:
    times = list(seen.token_times_s)
    ended = seen.ended_s if seen.ended_s is not None else (times[-1] if times else None)
    return RequestRecord(
        request_id=seen.request_id,
        num_prompt_tokens=seen.num_prompt_tokens or 0,
        num_output_tokens=seen.num_output_tokens if seen.num_output_tokens is not None else len(times),
        arrival_s=seen.sent_s,
        first_scheduled_s=None,
        first_token_s=times[0] if times else None,
        completion_s=ended,
        num_preemptions=0,
        num_cached_tokens=0,
        finish_reason=seen.finish_reason,
        output_token_ids=[],
        token_times_s=times,
    )


def is_observed(run: Run) -> bool:
    """Whether the Run was watched from outside. Pure."""
    return run.header.observed is not None


def gaps_s(run: Run, request_id: str) -> tuple[float, ...]:
    """Seconds between neighbouring tokens of a request, or pieces where the server sends several at once. Pure."""
    times = request_record(run, request_id).token_times_s
    if times is None:
        return inter_token_gaps(run, request_id)
    return tuple(after - before for before, after in pairwise(times))


# ------------------------------------------------------------------------------------------------- check
def check_observed(run: Run) -> None:
    """Whether what was seen is possible. Pure. Raises: CheckError naming the record and what it breaks."""
    require(not run.steps, "header", "observed", "it was watched from outside, so it can have no step records")
    _check_scenario(run)
    names = [r.request_id for r in run.requests]
    require(len(set(names)) == len(names), "header", "request_known", "a request stands twice")
    for record in run.requests:
        _check_request(record)


def _check_scenario(run: Run) -> None:
    asked = run.header.scenario
    if "server" not in asked:
        return  # a log of somebody else's run: nothing was asked here
    try:
        scenario = Scenario.parse(asked)
    except ScenarioError as error:
        raise CheckError("header", "header_scenario", f"the scenario is not valid: {error}") from None
    names = [r.request_id for r in run.requests]
    require(names == scenario.request_ids(), "header", "request_known", "the requests are not those of the scenario")
    for record, spec in zip(run.requests, scenario.requests, strict=True):
        require(
            record.num_output_tokens <= spec.max_tokens,
            f"request {record.request_id}",
            "observed",
            f"{record.num_output_tokens} tokens came, max_tokens is {spec.max_tokens}",
        )


def _check_request(record: RequestRecord) -> None:
    name, times = f"request {record.request_id}", record.token_times_s or []
    moments = [record.arrival_s, *times]
    if record.completion_s is not None:
        moments.append(record.completion_s)
    ordered = all(before <= after + TIME_SLACK_S for before, after in pairwise(moments))
    require(ordered, name, "time_order", "it was sent, its tokens came and it ended in another order than that")
    first = times[0] if times else None
    require(record.first_token_s == first, name, "observed", f"first_token_s is not its first token's time, {first}")
    require(record.num_output_tokens >= len(times), name, "observed", "more pieces came than tokens")
    require(record.num_preemptions == 0, name, "observed", "a preemption cannot be seen from outside")
