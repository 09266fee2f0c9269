"""Runs of one worker and of rings on machines of several tempers, and a checker from raw records."""

from __future__ import annotations

import random
import re

from engine.lab.records import Run
from lessons.ring_attention.scenarios import LAYOUTS, LENGTHS, ROLES, WORKERS, scenario
from tests.unit.lesson_runs import serve
from tests.unit.split_serve import tell_ring

Runs = dict[str, Run]


def both(length: int = 512, workers: int = 2, layout: str = "contiguous", send: float = 0.2, **options) -> Runs:
    """One worker, and a ring whose rounds spend the share ``send`` on transfers, with passes of ``ring_ms``."""
    ring_ms = options.pop("ring_ms", options.get("pass_ms", 25.0))
    runs = {
        role: serve(
            scenario(role, length, workers, layout), **options | ({"pass_ms": ring_ms} if role == "ring" else {})
        )
        for role in ROLES
    }
    tell_ring(runs["ring"], compute_share=0.6, send_share=send)
    return runs


def parted() -> Runs:
    """A near tie at the third token."""
    runs = both()
    ring, place = runs["ring"], 2
    outputs = [o for step in ring.steps for o in step.outputs]
    outputs[place].token_id += 1
    ring.requests[0].output_token_ids[place] += 1
    return runs


def held_up() -> Runs:
    """Something else took the machine while the last token was computed."""
    runs = both()
    runs["ring"].steps[-1].t_end_s += 1.0
    runs["ring"].requests[0].completion_s += 1.0
    return runs


RUNS = {
    "two workers": both,
    "evenly": lambda: both(layout="zigzag"),
    "a slow link": lambda: both(send=0.99, layout="contiguous", workers=3),
    "more workers than cores": lambda: both(workers=4),
    "slow to decode": lambda: both(ring_ms=60.0),
    "disturbed": held_up,
    "parted": parted,
}


def ITEM_RUNS() -> list[Runs]:
    rng = random.Random(7)
    return [both(rng.choice(LENGTHS), rng.choice(WORKERS), rng.choice(LAYOUTS)) for _ in range(20)]


# ------------------------------------------------------------------ the checker: raw records only
def _owners(item, runs: Runs) -> tuple[int, int, list[int]]:
    """(worker asked about, number of workers, for each position its owner), cut anew from the words of the item."""
    n, layout, length = re.search(r"ring of (\d+) workers \((\w+), ([\d,]+) prompt", item.prompt["en"]).groups()
    worker = int(re.search(r"worker (\d+)", item.prompt["en"].partition("),")[2])[1])
    n, length = int(n), int(length.replace(",", ""))
    assert runs["ring"].requests[0].num_prompt_tokens == length
    pieces = n if layout == "contiguous" else 2 * n
    owners = []
    for position in range(length):
        piece = next(i for i in range(pieces) if position < (i + 1) * length // pieces)
        owners.append(piece if piece < n else pieces - 1 - piece)
    return worker, n, owners


def _position_mb(runs: Runs) -> float:
    model = runs["ring"].header.model
    return 2 * model.num_layers * model.num_kv_heads * model.head_dim * 4 / 1e6


def check_kept(item, runs: Runs) -> float:
    worker, _, owners = _owners(item, runs)
    return owners.count(worker) * _position_mb(runs)


def check_pairs(item, runs: Runs) -> float:
    worker, _, owners = _owners(item, runs)
    seen = sum(position + 1 for position, one in enumerate(owners) if one == worker)
    return 100 * seen / sum(range(1, len(owners) + 1))


def check_sent(item, runs: Runs) -> float:
    """A part that has gone all round has been passed on by everybody but the owner's predecessor."""
    worker, n, owners = _owners(item, runs)
    passed = sum(owners.count(part) for part in range(n) if (part - 1) % n != worker)
    return passed * _position_mb(runs)


CHECKS = {"kept": check_kept, "pairs": check_pairs, "sent": check_sent}
