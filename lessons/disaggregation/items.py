"""Questions about the learner's own two Runs: one shared engine, and two workers. The words are in generated.yaml."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType

from engine.lab.handover import stalled_steps
from engine.lab.metrics import step_kind
from engine.lab.records import Run
from lessons.disaggregation.pair import Pair, pair_of
from lessons.disaggregation.scenarios import CHATS, LATE
from lessons.facts_error import FactsError
from lessons.generated import Draft, Generator

Runs = Mapping[str, Run]


def _pair(runs: Runs) -> Pair | None:
    try:
        return pair_of(runs)
    except FactsError:
        return None


def stalled(runs: Runs, rng: random.Random) -> Draft | None:
    """In how many of a chat's decode steps a prompt was computed too, in the shared engine."""
    pair = _pair(runs)
    if pair is None:
        return None
    counts = stalled_steps(pair.shared)
    chat = rng.choice(CHATS)
    if not counts[chat]:
        return None
    decodes = sum(row.request_id == chat and row.phase == "decode" for s in pair.shared.steps for row in s.scheduled)
    prompts = sum(step_kind(step) in ("prefill", "mixed") for step in pair.shared.steps)
    return Draft(
        values={"chat": chat, "stalled": counts[chat], "decodes": decodes, "budget": pair.budget, "long": pair.long},
        runs=(pair.shared,),
        answer=counts[chat],
        whole=True,
        traps={
            "every_step_is_stalled": decodes,
            "decode_and_prefill_never_share_a_step": 0,
            "every_prompt_step_stalls": prompts,
            "one_stall_for_each_chat": len(CHATS),
        },
    )


def sent_bytes(runs: Runs, rng: random.Random) -> Draft | None:
    """How many MB of keys and values one request was."""
    pair = _pair(runs)
    if pair is None:
        return None
    request_id = rng.choice((*CHATS, *LATE))
    transfer, header = pair.sent[request_id], pair.split.header
    megabytes = transfer.num_bytes / 1e6
    layers = header.model.num_layers
    record = next(r for r in pair.split.requests if r.request_id == request_id)
    longest = -(-(record.num_prompt_tokens + record.num_output_tokens) // header.block_size) * pair.block_bytes
    return Draft(
        values={
            "request": request_id,
            "num_tokens": transfer.num_tokens,
            "block_size": header.block_size,
            "num_blocks": transfer.num_blocks,
            "position_kb": f"{pair.position_bytes / 1e3:.2f}",
            "block_kb": f"{pair.block_bytes / 1e3:.2f}",
            "megabytes": f"{megabytes:.3f}",
        },
        runs=(pair.split,),
        answer=megabytes,
        tolerance=0.01 * megabytes,
        traps={
            "positions_for_blocks": transfer.num_tokens * pair.position_bytes / 1e6,
            "keys_without_values": megabytes / 2,
            "one_layer_only": megabytes / layers,
            "answer_is_sent_too": longest / 1e6,
            "token_ids_are_sent": transfer.num_tokens * 4 / 1e6,
        },
    )


def handover(runs: Runs, rng: random.Random) -> Draft | None:
    """How long a request stood between its first token and its first decode step."""
    pair = _pair(runs)
    if pair is None:
        return None
    request_id = rng.choice((*CHATS, *LATE))
    one, transfer = pair.intervals(pair.split)[request_id], pair.sent[request_id]
    answer = 1e3 * one.parts_s[2]
    begin, end = 1e3 * transfer.t_begin_s, 1e3 * transfer.t_end_s
    return Draft(
        values={
            "request": request_id,
            "prefill_ms": f"{1e3 * one.prefill_s:.2f}",
            "token_ms": f"{1e3 * one.first_token_s:.2f}",
            "begin_ms": f"{begin:.2f}",
            "end_ms": f"{end:.2f}",
            "decode_ms": f"{1e3 * one.decode_s:.2f}",
            "answer_ms": f"{answer:.2f}",
        },
        runs=(pair.split,),
        answer=answer,
        tolerance=0.02 + 0.005 * answer,
        traps={
            "only_the_wire": end - begin,
            "wire_from_token": end - 1e3 * one.first_token_s,
            "prefill_counted": 1e3 * (one.decode_s - one.prefill_s),
            "from_the_start_of_the_run": 1e3 * one.decode_s,
        },
    )


def ttft_split(runs: Runs, rng: random.Random) -> Draft | None:
    """What a long prompt's time to first token is made of in one of the Runs."""
    pair = _pair(runs)
    if pair is None:
        return None
    role, request_id = rng.choice(("shared", "disaggregated")), rng.choice(LATE)
    run = pair.shared if role == "shared" else pair.split
    one = pair.intervals(run)[request_id]
    answer = 1e3 * (one.first_token_s - one.arrival_s)
    return Draft(
        values={
            "role": {
                "en": "shared" if role == "shared" else "disaggregated",
                "zh": "合用" if role == "shared" else "分离",
            },
            "request": request_id,
            "arrival_ms": f"{1e3 * one.arrival_s:.2f}",
            "prefill_ms": f"{1e3 * one.prefill_s:.2f}",
            "token_ms": f"{1e3 * one.first_token_s:.2f}",
            "decode_ms": f"{1e3 * one.decode_s:.2f}",
            "answer_ms": f"{answer:.2f}",
        },
        runs=(run,),
        answer=answer,
        tolerance=0.02 + 0.005 * answer,
        traps={
            "prefill_is_ttft": 1e3 * one.parts_s[1],
            "handover_in_ttft": 1e3 * (one.decode_s - one.arrival_s) if role != "shared" else None,
            "arrival_is_zero": 1e3 * one.first_token_s,
        },
    )


GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {"stalled": stalled, "sent_bytes": sent_bytes, "handover": handover, "ttft_split": ttft_split}
)
