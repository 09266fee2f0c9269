"""Questions about the learner's own ring. The words are in generated.yaml."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType

from engine.lab.records import Run
from engine.lab.ring import num_pairs
from lessons.facts_error import FactsError
from lessons.generated import Draft, Generator
from lessons.ring_attention.pair import Pair, pair_of
from lessons.text import Fact

Runs = Mapping[str, Run]
_LAYOUT: Mapping[str, Fact] = MappingProxyType(
    {"contiguous": {"en": "contiguous", "zh": "连续"}, "zigzag": {"en": "zigzag", "zh": "之字形"}}
)


def _pair(runs: Runs) -> Pair | None:
    try:
        return pair_of(runs)
    except FactsError:
        return None


def _shape(pair: Pair) -> dict[str, Fact]:
    return {"n": pair.num_workers, "length": pair.length, "layout": _LAYOUT[pair.layout]}


def kept(runs: Runs, rng: random.Random) -> Draft | None:
    """How many MB of keys and values a worker keeps after the prompt."""
    pair = _pair(runs)
    if pair is None:
        return None
    worker, model = rng.randrange(pair.num_workers), pair.ring.header.model
    told = pair.told(pair.ring)
    answer = told.kv_bytes[worker] / 1e6
    return Draft(
        values={
            **_shape(pair),
            "worker": worker,
            "positions": told.positions[worker],
            "position_kb": f"{pair.position_bytes / 1e3:.2f}",
            "megabytes": f"{answer:.3f}",
        },
        runs=(pair.ring,),
        answer=answer,
        tolerance=0.01 * answer,
        traps={
            "everyone_keeps_everything": pair.length * pair.position_bytes / 1e6,
            "parts_that_pass_are_kept": answer + told.kv_bytes[worker - 1] / 1e6 if pair.num_workers > 2 else None,
            "keys_without_values": answer / 2,
            "one_layer_only": answer / model.num_layers,
        },
    )


def pairs(runs: Runs, rng: random.Random) -> Draft | None:
    """What share of all query-key pairs one worker computed."""
    pair = _pair(runs)
    if pair is None:
        return None
    worker, n = rng.randrange(pair.num_workers), pair.num_workers
    told = pair.told(pair.ring)
    answer = 100 * told.pairs[worker] / sum(told.pairs)
    owned = pair.parts[worker]
    own = num_pairs(owned, owned)
    return Draft(
        values={
            **_shape(pair),
            "worker": worker,
            "ranges": ", ".join(f"{r.start}–{r.stop - 1}" for r in owned),
            "pairs": told.pairs[worker] // pair.ring.header.model.num_layers,
            "all_pairs": sum(told.pairs) // pair.ring.header.model.num_layers,
            "percent": answer,
        },
        runs=(pair.ring,),
        answer=answer,
        tolerance=0.6,
        traps={
            "every_worker_computes_alike": 100 / n,
            "own_part_only": 100 * own / (sum(told.pairs) / pair.ring.header.model.num_layers),
            "first_worker_has_most": 100 * told.pairs[n - 1 - worker] / sum(told.pairs),
        },
    )


def sent(runs: Runs, rng: random.Random) -> Draft | None:
    """How many MB a worker passed on while the prompt was computed."""
    pair = _pair(runs)
    if pair is None:
        return None
    worker, n = rng.randrange(pair.num_workers), pair.num_workers
    told, model = pair.told(pair.ring), pair.ring.header.model
    answer = told.sent_bytes[worker] / 1e6
    own = told.kv_bytes[worker] / 1e6
    return Draft(
        values={
            **_shape(pair),
            "worker": worker,
            "sends": n - 1,
            "part_mb": f"{own:.3f}",
            "megabytes": f"{answer:.3f}",
        },
        runs=(pair.ring,),
        answer=answer,
        tolerance=0.01 * answer,
        traps={
            "own_part_once": own if n > 2 else None,
            "a_send_in_every_round": answer + own,
            "sends_to_everyone_each_time": (n - 1) * answer if n > 2 else None,
            "one_layer_only": answer / model.num_layers,
            "queries_travel_too": answer * (1 + model.num_heads / (2 * model.num_kv_heads)),
        },
    )


GENERATORS: Mapping[str, Generator] = MappingProxyType({"kept": kept, "pairs": pairs, "sent": sent})
