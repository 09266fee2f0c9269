"""What the two Runs, one shared engine and two workers, say against each other."""

from __future__ import annotations

from collections.abc import Mapping

from engine.lab.metrics import step_spread
from engine.lab.records import Run
from lessons.disaggregation.pair import Pair, pair_of
from lessons.disaggregation.scenarios import CHATS, LATE
from lessons.text import Fact, format_bytes, format_seconds

CLEAR = 1.1  # two numbers nearer than this are not spoken of as different
UNSTEADY = 0.8  # (p90 - p10) / median of like decode steps beyond which seconds are not compared
DEAR = 0.25  # transfer over prefill, above which the transfer is called dear

Runs = Mapping[str, Run]


def facts(runs: Runs) -> dict[str, Fact]:
    pair = pair_of(runs)
    sent, late = pair.sent, pair.intervals(pair.split)[LATE[0]]
    worst_shared, worst_split = pair.worst_gap(pair.shared), pair.worst_gap(pair.split)
    of_late = sent[LATE[0]]
    handover_s = sum(pair.intervals(pair.split)[name].parts_s[2] for name in LATE) / len(LATE)
    transfer_s = sum(sent[name].t_end_s - sent[name].t_begin_s for name in LATE) / len(LATE)
    prefill_shared, prefill_split = pair.prefill_s(pair.shared), pair.prefill_s(pair.split)
    step_shared, step_split = pair.decode_step_s(pair.shared), pair.decode_step_s(pair.split)
    values: dict[str, Fact] = {
        "long": pair.long,
        "budget": pair.budget,
        "threads": pair.shared.header.device.threads,
        "worker_threads": pair.split.header.workers[0].threads,
        "stalled_shared": pair.stalled(pair.shared),
        "stalled_split": pair.stalled(pair.split),
        "worst_chat": pair.worst_chat(pair.shared),
        "worst_shared": format_seconds(worst_shared),
        "worst_split": format_seconds(worst_split),
        "gap_times": worst_shared / worst_split,
        "step_shared": format_seconds(step_shared),
        "step_split": format_seconds(step_split),
        "step_ratio": step_split / step_shared,
        "prefill_shared": format_seconds(prefill_shared),
        "prefill_split": format_seconds(prefill_split),
        "prefill_ratio": prefill_split / prefill_shared,
        "ttft_shared": format_seconds(pair.late_ttft_s(pair.shared)),
        "ttft_split": format_seconds(pair.late_ttft_s(pair.split)),
        "ttft_ratio": pair.late_ttft_s(pair.split) / pair.late_ttft_s(pair.shared),
        "sent_total": format_bytes(sum(transfer.num_bytes for transfer in sent.values())),
        "sent_late": format_bytes(of_late.num_bytes),
        "blocks_late": of_late.num_blocks,
        "block_size": pair.split.header.block_size,
        "block_bytes": format_bytes(pair.block_bytes),
        "transfer": format_seconds(transfer_s),
        "transfer_share": 100 * transfer_s / prefill_split,
        "handover": format_seconds(handover_s),
        "late": LATE[0],
        "late_wait": format_seconds(late.parts_s[0]),
        "late_prefill": format_seconds(late.parts_s[1]),
        "late_handover": format_seconds(late.parts_s[2]),
        "late_decode": format_seconds(late.parts_s[3]),
        "num_chats": len(CHATS),
    }
    return values | _link_facts(pair) | _objective_facts(pair)


def _link_facts(pair: Pair) -> dict[str, Fact]:
    rate = pair.link_mb_per_s
    if rate is None:
        return {}
    return {"link": rate, "link_s": format_seconds(pair.sent[LATE[0]].num_bytes / (rate * 1e6))}


def _objective_facts(pair: Pair) -> dict[str, Fact]:
    found: dict[str, Fact] = {}
    for one in pair.objectives():
        found |= {
            f"{one.name}_ttft": format_seconds(one.ttft_s),
            f"{one.name}_tpot": format_seconds(one.tpot_s),
            f"{one.name}_shared": one.shared.num_within,
            f"{one.name}_split": one.split.num_within,
        }
    return found | {"num_requests": len(CHATS) + len(LATE)}


def sections(runs: Runs) -> list[str]:
    pair = pair_of(runs)
    values = facts(runs)
    found = ["after", "why"]
    if is_disturbed(pair):
        return [*found, "note_noisy"]  # what follows compares seconds
    if pair.budget < pair.long:
        found.append("note_chunked")
    if values["ttft_ratio"] > CLEAR:
        found.append("note_ttft_dearer")
    elif values["ttft_ratio"] < 1 / CLEAR:
        found.append("note_ttft_cheaper")
    if values["step_ratio"] > CLEAR:
        found.append("note_step_slower")
    found.append("note_transfer_dear" if values["transfer_share"] > 100 * DEAR else "note_transfer_cheap")
    if "link" in values:
        found.append("note_link")
    if any(one.shared.num_within != one.split.num_within for one in pair.objectives()):
        found.append("note_goodput")
    else:
        found.append("note_goodput_same")
    return found


def is_disturbed(pair: Pair) -> bool:
    """Whether steps of one kind and size took so unlike times that their seconds cannot be compared."""
    return any((step_spread(run).relative or 0.0) > UNSTEADY for run in (pair.shared, pair.split))


def prediction_answers(runs: Runs) -> dict[str, float | str]:
    """How often a chat stood behind a prompt in the shared engine, and what one long prompt weighs on the wire."""
    pair = pair_of(runs)
    return {
        "gap_times": facts(runs)["gap_times"],
        "sent_mb": pair.sent[LATE[0]].num_bytes / 1e6,
    }
