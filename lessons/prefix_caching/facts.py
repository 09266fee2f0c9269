"""What the same prompts served without a prefix cache, with two kinds of it, and in another order say about it.

Counted from records: prompt tokens found and computed, blocks evicted, the tree's size. Seconds stand beside them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from engine.lab.metrics import all_request_metrics, duration_s, makespan_s, step_spread
from engine.lab.prefix_tree import tree_sizes
from engine.lab.prefix_use import PrefixUse, prefix_use
from engine.lab.records import RequestRecord, Run
from engine.lab.work import element_sizes, kv_bytes_per_token, moved_bytes, roofline_s
from lessons.facts_error import FactsError
from lessons.prefix_caching.scenarios import PARTS
from lessons.text import Fact, format_bytes, format_seconds

NOISY = 0.5  # spread of like decode steps, relative to their median, beyond which seconds are not compared
CLEAR = 1.1  # two numbers nearer than this are not spoken of as different


@dataclass(frozen=True)
class Side:
    """One of the Runs, and what its prompts cost."""

    run: Run

    @cached_property
    def use(self) -> PrefixUse:
        return prefix_use(self.run)

    @cached_property
    def found(self) -> dict[str, int]:
        """Prompt tokens that each request found in the cache when it was first let in."""
        return found_tokens(self.run)

    @property
    def num_prefilled(self) -> int:
        """Prompt tokens that went through the model."""
        return sum(row.num_tokens for step in self.run.steps for row in step.scheduled if row.phase != "decode")

    @cached_property
    def served(self) -> tuple[str, ...]:
        """Requests in the order in which they were let in."""
        return tuple(dict.fromkeys(name for step in self.run.steps for name in step.admitted))

    @property
    def mean_ttft_s(self) -> float:
        return statistics.fmean(m.ttft_s for m in all_request_metrics(self.run).values())

    def prompt_s(self, names: tuple[str, ...] | None = None) -> float | None:
        """Mean seconds from being let in to the first token, of these requests or of all; None of none."""
        each = all_request_metrics(self.run)
        chosen = [m.ttft_s - m.queue_s for name, m in each.items() if names is None or name in names]
        return statistics.fmean(chosen) if chosen else None

    @cached_property
    def largest(self) -> tuple[int, int]:
        """(published blocks, runs without a branch) when the tree was largest."""
        return max(tree_sizes(self.run))

    @property
    def modelled_s(self) -> float | None:
        """All steps by the roofline of the device, None without measured ceilings."""
        device = self.run.header.device
        if not device.read_gbps or not device.matmul_tflops:
            return None
        rates = device.read_gbps, device.matmul_tflops
        return sum(roofline_s(s.work.flops, moved_bytes(s.work), *rates) for s in self.run.steps)


def found_tokens(run: Run) -> dict[str, int]:
    """Prompt tokens found by each request in its first chunk, in the order of the records. Pure."""
    first: dict[str, int] = {}
    for step in run.steps:
        for row in step.scheduled:
            first.setdefault(row.request_id, row.num_cached_tokens)
    return {record.request_id: first.get(record.request_id, 0) for record in run.requests}


@dataclass(frozen=True)
class Four:
    """The same prompts: no cache, a hash chain, a radix tree, and the tree with its own order of admission."""

    none: Side
    hash: Side
    radix: Side
    aware: Side

    @property
    def sides(self) -> dict[str, Side]:
        return {part: getattr(self, part) for part in PARTS}

    @property
    def is_noisy(self) -> bool:
        return any((step_spread(side.run, "decode").relative or 0.0) > NOISY for side in self.sides.values())

    @property
    def num_same_answers(self) -> int:
        answers = [{r.request_id: r.output_token_ids for r in s.run.requests} for s in self.sides.values()]
        return sum(all(other[name] == tokens for other in answers) for name, tokens in answers[0].items())

    def ideal_found(self) -> int | None:
        """Tokens found if nothing were ever evicted or asked for too early; None if the Runs do not show how many.

        Each report's first request finds the instruction, the others the instruction and the report, in whole blocks.
        How long these are, the Runs say: the most that such a request found in any of them.
        """
        most: dict[str, int] = {}
        instruction = 0
        for side in (self.hash, self.radix, self.aware):
            seen: set[str] = set()
            for name in side.served:
                if name[0] in seen:
                    most[name[0]] = max(most.get(name[0], 0), side.found[name])
                else:
                    instruction = max(instruction, side.found[name])
                seen.add(name[0])
        counts = dict.fromkeys(most, 0)
        for record in self.radix.run.requests:
            counts[record.request_id[0]] = counts.get(record.request_id[0], 0) + 1
        if counts.keys() != most.keys() or not all(most.values()):
            return None
        return instruction * (len(most) - 1) + sum(most[report] * (count - 1) for report, count in counts.items())


def four(runs: Mapping[str, Run]) -> Four:
    """Raises: FactsError when a Run is missing, unfinished, or of other requests or another pool than the rest."""
    for part in PARTS:
        run = runs.get(part)
        if run is None:
            raise FactsError(f"there is no {part} run yet; run the lesson first")
        if not run.requests or any(not _is_whole(record) for record in run.requests):
            raise FactsError(f"a request of the {part} run did not finish; run the lesson again")
    pools = {(r.header.num_blocks, r.header.block_size, tuple(q.request_id for q in r.requests)) for r in runs.values()}
    if len(pools) > 1:
        raise FactsError("the runs served different requests or had different pools; run the lesson again")
    return Four(*(Side(runs[part]) for part in PARTS))


def _is_whole(record: RequestRecord) -> bool:
    return record.first_token_s is not None and record.completion_s is not None and record.finish_reason != "abort"


# ------------------------------------------------------------------ what the lesson asks for
def facts(runs: Mapping[str, Run]) -> dict[str, Fact]:
    found = four(runs)
    return _size_facts(found) | _hit_facts(found) | _tree_facts(found) | _time_facts(found)


def sections(runs: Mapping[str, Run]) -> list[str]:
    found = four(runs)
    shown = ["after", "why"]
    shown.append("note_noisy" if found.is_noisy else "note_decode")  # the caveat stands where the seconds do
    shown.append("note_evicted" if found.radix.use.num_evicted_blocks else "note_not_evicted")
    gained = found.aware.use.num_cached_tokens > found.radix.use.num_cached_tokens
    shown.append("note_aware" if gained else "note_aware_same")
    shown.append("note_structures")
    shown.append("note_block_size")
    if not found.is_noisy:
        faster = found.none.prompt_s() / found.aware.prompt_s()
        shown.append("note_ttft" if faster > CLEAR else "note_ttft_same")
    shown.append("note_same" if found.num_same_answers == len(found.none.run.requests) else "note_not_same")
    return shown


def prediction_answers(runs: Mapping[str, Run]) -> dict[str, float | str]:
    found = four(runs)
    return {"found_percent": 100 * found.radix.use.hit_rate, "aware_percent": 100 * found.aware.use.hit_rate}


def _size_facts(found: Four) -> dict[str, Fact]:
    header, requests = found.none.run.header, found.none.run.requests
    return {
        "num_requests": len(requests),
        "num_reports": len({record.request_id[0] for record in requests}),
        "prompt_tokens": sum(record.num_prompt_tokens for record in requests),
        "mean_prompt": round(statistics.fmean(record.num_prompt_tokens for record in requests)),
        "block_size": header.block_size,
        "num_blocks": header.num_blocks,
        "pool_positions": header.num_blocks * header.block_size,
    }


def _hit_facts(found: Four) -> dict[str, Fact]:
    position_bytes = kv_bytes_per_token(found.none.run.header.model, element_sizes(found.none.run.header)[1])
    values: dict[str, Fact] = {}
    for part, side in found.sides.items():
        values |= {
            f"{part}_found": side.use.num_cached_tokens,
            f"{part}_percent": 100 * (side.use.hit_rate or 0.0),
            f"{part}_prefilled": side.num_prefilled,
            f"{part}_evicted": side.use.num_evicted_blocks,
            f"{part}_hits": side.use.num_requests_with_hit,
        }
    most = max(found.aware.found, key=lambda name: found.aware.found[name])
    record = next(r for r in found.aware.run.requests if r.request_id == most)
    return values | {
        "best": most,
        "best_found": found.aware.found[most],
        "best_prompt": record.num_prompt_tokens,
        "best_left": record.num_prompt_tokens - found.aware.found[most],
        "radix_order": _listed(found.radix.served),
        "aware_order": _listed(found.aware.served),
        "saved_bytes": format_bytes(found.aware.use.num_cached_tokens * position_bytes),
    }


def _listed(names: tuple[str, ...]) -> Fact:
    return {"en": ", ".join(names), "zh": "、".join(names)}


def _tree_facts(found: Four) -> dict[str, Fact]:
    blocks, nodes = found.radix.largest
    hash_blocks, _ = found.hash.largest
    return {"tree_blocks": blocks, "tree_nodes": nodes, "hash_entries": hash_blocks}


def _time_facts(found: Four) -> dict[str, Fact]:
    values: dict[str, Fact] = {}
    for part, side in found.sides.items():
        values |= {
            f"{part}_ttft": format_seconds(side.mean_ttft_s),
            f"{part}_prompt_time": format_seconds(side.prompt_s()),
            f"{part}_total": format_seconds(makespan_s(side.run)),
        }
    decode = {part: _decode_s(side.run) for part, side in found.sides.items()}
    return values | {
        "prompt_faster": found.none.prompt_s() / found.aware.prompt_s(),
        "none_decode": format_seconds(decode["none"]),
        "aware_decode": format_seconds(decode["aware"]),
        "same_answers": found.num_same_answers,
        "other_answers": len(found.none.run.requests) - found.num_same_answers,
    }


def _decode_s(run: Run) -> float:
    """Median seconds of the steps that did nothing but decode; 0 where there is none."""
    pure = [duration_s(s) for s in run.steps if s.scheduled and all(row.phase == "decode" for row in s.scheduled)]
    return statistics.median(pure) if pure else 0.0
