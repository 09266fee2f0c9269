"""Why a request did not run, in words: the reasons the scheduler records, and the two that follow from the times."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from engine.lab.metrics import Wait, WaitReason, waits
from engine.lab.records import Run
from lessons.text import Lang

REASON_TEXT: Mapping[WaitReason, Mapping[Lang, str]] = MappingProxyType(
    {
        "batch_not_drained": {"en": "the batch before it had not drained", "zh": "上一批还没有全部做完"},
        "request_limit": {"en": "all places were taken", "zh": "名额已满"},
        "token_budget": {"en": "the token budget of the step was used up", "zh": "这一步的 token 预算用完了"},
        "no_blocks": {"en": "there were not enough free KV blocks", "zh": "空闲的 KV 块不够"},
        "step_running": {"en": "a step was running when it arrived", "zh": "到达时正好有一步在跑"},
        "not_its_turn": {"en": "the step's tokens went to others", "zh": "这一步的 token 给了别的请求"},
    }
)
RECORDED: tuple[WaitReason, ...] = ("batch_not_drained", "request_limit", "token_budget", "no_blocks")


def refusals(run: Run, request_id: str) -> list[Wait]:
    """The waits of a request before it first ran for which the scheduler recorded a reason, in order. Pure."""
    if not any(r.request_id == request_id for step in run.steps for r in step.refused):
        return []
    first = next((r.first_scheduled_s for r in run.requests if r.request_id == request_id), None)
    return [w for w in waits(run, request_id) if w.why in RECORDED and (first is None or w.t_begin_s < first)]


def main_reason(run: Run, request_id: str) -> WaitReason | None:
    """The recorded reason that kept a request waiting longest before it first ran; None if none is recorded. Pure."""
    seconds: dict[WaitReason, float] = {}
    for wait in refusals(run, request_id):
        seconds[wait.why] = seconds.get(wait.why, 0.0) + wait.seconds
    return max(seconds, key=lambda why: seconds[why]) if seconds else None
