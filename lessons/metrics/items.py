"""Questions about the learner's own load sweep. The words are in generated.yaml."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType

from engine.lab.metrics import all_request_metrics, request_metrics
from engine.lab.records import RequestRecord, Run, StepRecord
from lessons.generated import Draft, Generator, tpot_draft
from lessons.metrics.sweep import Load, loads, places
from lessons.text import format_number

Runs = Mapping[str, Run]
LEAST_WAIT_S = 0.005
NUM_ROWS = 8  # requests in the table of the goodput question


def _load(runs: Runs, rng: random.Random) -> Load | None:
    found = loads(runs)
    return rng.choice(found) if found else None


def _request(runs: Runs, rng: random.Random) -> tuple[Load, RequestRecord] | None:
    load = _load(runs, rng)
    return (load, rng.choice(load.run.requests)) if load else None


def _offered(load: Load) -> str:
    return format_number(load.offered_rps)


def e2e(runs: Runs, rng: random.Random) -> Draft | None:
    """The identity, with the numbers of one request."""
    found = _request(runs, rng)
    if found is None:
        return None
    load, record = found
    metrics = request_metrics(record)
    ttft_ms, tpot_ms, answer = 1e3 * metrics.ttft_s, 1e3 * metrics.tpot_s, 1e3 * metrics.e2e_s
    count = record.num_output_tokens
    return Draft(
        values={
            "offered": _offered(load),
            "request": record.request_id,
            "ttft_ms": f"{ttft_ms:.1f}",
            "tpot_ms": f"{tpot_ms:.2f}",
            "num_tokens": count,
            "num_gaps": count - 1,
            "e2e_ms": f"{answer:.1f}",
        },
        runs=(load.run,),
        answer=answer,
        tolerance=max(0.2, min(0.01 * answer, 0.4 * tpot_ms)),
        traps={
            "off_by_one_gap": ttft_ms + count * tpot_ms,
            "ttft_left_out": (count - 1) * tpot_ms,
            "tpot_once": ttft_ms + tpot_ms,
        },
    )


def tpot(runs: Runs, rng: random.Random) -> Draft | None:
    """The TPOT of one request."""
    found = _request(runs, rng)
    if found is None:
        return None
    load, record = found
    return tpot_draft(load.run, record.request_id, {"offered": _offered(load), "request": record.request_id})


def queue(runs: Runs, rng: random.Random) -> Draft | None:
    """How much of a request's TTFT was waiting."""
    waited = [
        (load, r) for load in loads(runs) for r in load.run.requests if r.first_scheduled_s - r.arrival_s > LEAST_WAIT_S
    ]
    if not waited:
        return None
    load, record = rng.choice(waited)
    metrics = request_metrics(record)
    wait_ms, ttft_ms = 1e3 * metrics.queue_s, 1e3 * metrics.ttft_s
    return Draft(
        values={
            "offered": _offered(load),
            "request": record.request_id,
            "arrival_ms": f"{1e3 * record.arrival_s:.1f}",
            "first_step_ms": f"{1e3 * record.first_scheduled_s:.1f}",
            "first_token_ms": f"{1e3 * record.first_token_s:.1f}",
            "wait_ms": f"{wait_ms:.1f}",
        },
        runs=(load.run,),
        answer=wait_ms,
        tolerance=max(0.2, min(0.2 + 0.005 * wait_ms, 0.4 * (ttft_ms - wait_ms))),
        traps={
            "wait_includes_prefill": ttft_ms,
            "wait_is_prefill": ttft_ms - wait_ms,
            "arrival_is_zero": 1e3 * record.first_scheduled_s,
        },
    )


def throughput(runs: Runs, rng: random.Random) -> Draft | None:
    """Tokens per second of one load."""
    load = _load(runs, rng)
    if load is None:
        return None
    records = load.run.requests
    count = records[0].num_output_tokens
    if any(r.num_output_tokens != count for r in records):
        return None
    begin_s, end_s = min(r.arrival_s for r in records), max(r.completion_s for r in records)
    answer = len(records) * count / (end_s - begin_s)
    return Draft(
        values={
            "offered": _offered(load),
            "num_requests": len(records),
            "num_tokens": count,
            "all_tokens": len(records) * count,
            "begin_ms": f"{1e3 * begin_s:.0f}",
            "end_ms": f"{1e3 * end_s:.0f}",
            "span_s": end_s - begin_s,
            "tokens_per_s": answer,
        },
        runs=(load.run,),
        answer=answer,
        tolerance=0.02 * answer,
        traps={
            "requests_for_tokens": answer / count,
            "one_request_rate": count / (end_s - begin_s),
            "offered_is_done": load.offered_rps * count,
        },
    )


def goodput(runs: Runs, rng: random.Random) -> Draft | None:
    """How many of some requests met an objective that lies between their own values."""
    load = _load(runs, rng)
    if load is None or len(load.run.requests) < 3:
        return None
    each = all_request_metrics(load.run)
    names = sorted(rng.sample(sorted(each), min(NUM_ROWS, len(each))), key=lambda name: (len(name), name))
    rows = [(name, round(1e3 * each[name].ttft_s), round(1e3 * each[name].tpot_s)) for name in names]
    ttft_limit = sorted(row[1] for row in rows)[rng.randrange(len(rows) // 2, len(rows) - 1)]
    tpot_limit = sorted(row[2] for row in rows)[rng.randrange(len(rows) // 2, len(rows) - 1)]
    early = [name for name, ttft_ms, _ in rows if ttft_ms <= ttft_limit]
    steady = [name for name, _, tpot_ms in rows if tpot_ms <= tpot_limit]
    good = [name for name in early if name in steady]
    return Draft(
        values={
            "offered": _offered(load),
            "ttft_limit": f"{ttft_limit}",
            "tpot_limit": f"{tpot_limit}",
            "names": ", ".join(good) or "–",
            "table": {
                "en": _table(("request", "TTFT ms", "TPOT ms"), rows),
                "zh": _table(("请求", "TTFT ms", "TPOT ms"), rows),
            },
        },
        runs=(load.run,),
        answer=len(good),
        whole=True,
        traps={
            "only_ttft_counts": len(early),
            "only_tpot_counts": len(steady),
            "goodput_is_throughput": len(rows),
        },
    )


def _table(head: tuple[str, str, str], rows: list[tuple[str, int, int]]) -> str:
    """Three columns of fixed width; a Chinese character is as wide as two letters."""
    first = max(len(head[0]) * (1 if head[0].isascii() else 2), *(len(row[0]) for row in rows))
    pad = " " * (first - len(head[0]) * (1 if head[0].isascii() else 2))
    lines = [f"{head[0]}{pad}  {head[1]:>8}  {head[2]:>8}"]
    lines += [f"{name:<{first}}  {ttft_ms:>8}  {tpot_ms:>8}" for name, ttft_ms, tpot_ms in rows]
    return "\n".join(lines)


def next_step(runs: Runs, rng: random.Random) -> Draft | None:
    """Who entered after a place got free while several were waiting."""
    cases = [(load, now) for load in loads(runs) for now in _turnovers(load.run)]
    if not cases:
        return None
    load, step = rng.choice(cases)
    finished = next(o.request_id for o in step.outputs if o.finish_reason)
    waiting = [r.request_id for r in step.refused]
    arrival = {r.request_id: r.arrival_s for r in load.run.requests}
    ordered = sorted(waiting, key=lambda name: arrival[name])
    queued = ", ".join(ordered)
    running = ", ".join(row.request_id for row in step.scheduled)
    return Draft(
        values={
            "offered": _offered(load),
            "step": step.step,
            "places": places(load.run),
            "first": ordered[0],
            "last": ordered[-1],
            "finished": finished,
            "table": {
                "en": f"computed  {running}\nwaiting   {queued} (in order of arrival)\nfinished  {finished}",
                "zh": f"参与计算  {running}\n在等      {queued}（按到达先后）\n做完      {finished}",
            },
        },
        runs=(load.run,),
        options=("newest_first", "batch_must_drain", "finished_keeps_place"),
    )


def _turnovers(run: Run) -> list[StepRecord]:
    """Steps in which exactly one request finished while two or more waited for a place, and one entered next. Pure."""
    found = []
    for step, following in zip(run.steps, run.steps[1:], strict=False):
        done = [o for o in step.outputs if o.finish_reason]
        if len(done) == 1 and len(step.refused) >= 2 and len(following.admitted) == 1:
            found.append(step)
    return found


GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {
        "e2e": e2e,
        "tpot": tpot,
        "queue": queue,
        "throughput": throughput,
        "goodput": goodput,
        "next_step": next_step,
    }
)
