"""Questions about the learner's own look at a server. The words are in generated.yaml."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from types import MappingProxyType

from engine.lab.metrics import makespan_s, request_metrics
from engine.lab.observed import gaps_s
from engine.lab.records import Run
from lessons.generated import Draft, Generator, tpot_draft
from lessons.real_server.facts import Point, points
from lessons.text import format_number

Runs = Mapping[str, Run]
FEWEST_PIECES = 8  # of a request whose pieces are listed
NUM_LISTED = 7


def _server(runs: Runs, rng: random.Random, least: int = 1) -> Point | None:
    found = [point for size, point in points(runs, "server").items() if size >= least]
    return rng.choice(found) if found else None


def tpot(runs: Runs, rng: random.Random) -> Draft | None:
    """The TPOT of one request, from its first and its last token."""
    point = _server(runs, rng)
    if point is None:
        return None
    name = rng.choice(point.run.requests).request_id
    return tpot_draft(point.run, name, {"size": point.size, "request": name})


def throughput(runs: Runs, rng: random.Random) -> Draft | None:
    """All tokens over the whole time."""
    point = _server(runs, rng, least=2)
    if point is None:
        return None
    span_s = makespan_s(point.run)
    answer = point.num_tokens / span_s
    fastest = max(r.num_output_tokens / request_metrics(r).e2e_s for r in point.run.requests)
    return Draft(
        values={
            "size": point.size,
            "num_tokens": point.num_tokens,
            "span_s": f"{span_s:.3f}",
            "tokens_per_s": format_number(answer),
        },
        runs=(point.run,),
        answer=answer,
        tolerance=0.02 * answer,
        traps={
            "one_request_rate": fastest,
            "requests_for_tokens": point.size / span_s,
            "throughput_per_request": answer / point.size,
        },
    )


def gain(runs: Runs, rng: random.Random) -> Draft | None:
    """How many times the throughput of a smaller part."""
    found = list(points(runs, "server").values())
    if len(found) < 2:
        return None
    few, many = sorted(rng.sample(found, 2), key=lambda p: p.size)
    answer = many.tokens_per_s / few.tokens_per_s
    return Draft(
        values={
            "few": few.size,
            "many": many.size,
            "few_tps": format_number(few.tokens_per_s),
            "many_tps": format_number(many.tokens_per_s),
            "gain": format_number(answer),
        },
        runs=(few.run, many.run),
        answer=answer,
        tolerance=0.02 * answer,
        traps={
            "throughput_proportional_to_requests": many.size / few.size,
            "ratio_upside_down": 1 / answer,
            "latency_for_throughput": many.e2e_s / few.e2e_s,
        },
    )


def longest_gap(runs: Runs, rng: random.Random) -> Draft | None:
    """The longest gap among the first pieces of a request."""
    point = _server(runs, rng)
    long = [r for r in point.run.requests if len(r.token_times_s or ()) >= FEWEST_PIECES] if point else []
    if not long:
        return None
    record = rng.choice(long)
    since_ms = [round(1e3 * (moment - record.arrival_s), 1) for moment in record.token_times_s[:NUM_LISTED]]
    gaps = [after - before for before, after in itertools.pairwise(since_ms)]
    answer = max(gaps)
    if answer <= 0:
        return None
    place = gaps.index(answer)
    whole_ms = 1e3 * max(gaps_s(point.run, record.request_id))
    return Draft(
        values={
            "size": point.size,
            "request": record.request_id,
            "before_ms": f"{since_ms[place]:.1f}",
            "after_ms": f"{since_ms[place + 1]:.1f}",
            "longest_ms": f"{answer:.1f}",
            "times": "  ".join(f"{moment:.1f}" for moment in since_ms),
        },
        runs=(point.run,),
        answer=answer,
        tolerance=max(0.1, 0.01 * answer),
        traps={
            "tpot_hides_gaps": (since_ms[-1] - since_ms[0]) / (len(since_ms) - 1),
            "ttft_is_a_gap": since_ms[0],
            "gap_beyond_the_list": whole_ms if whole_ms > 1.05 * answer else None,
        },
    )


GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {"tpot": tpot, "throughput": throughput, "gain": gain, "longest_gap": longest_gap}
)
