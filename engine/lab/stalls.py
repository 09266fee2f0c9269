"""What happened between two tokens of a request, counted in steps and tokens: who was held up, by what, how long.

Seconds differ from run to run; what a policy promises can be counted. Under chunked prefill a decode is in every step,
so at most one step's tokens lie between two of its own (Sarathi-Serve); where prompts go first, a decode is left out of
whole steps. Reads records only and infers no reason: left out is who was admitted, neither scheduled nor refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.lab.records import Run, StepRecord
from engine.lab.replay import BlockMap
from engine.lab.steps import computed_ends


@dataclass(frozen=True)
class Gap:
    """From one output token of a request to its next: the steps [first_step, last_step], which end with that token."""

    request_id: str
    index: int  # of the token that ends it; 1 = the second output token
    t_begin_s: float
    t_end_s: float
    steps: tuple[StepRecord, ...]

    @property
    def seconds(self) -> float:
        return self.t_end_s - self.t_begin_s

    @property
    def num_tokens(self) -> int:
        """Rows of tokens computed meanwhile for everybody, this request's own and padding included."""
        return sum(step.work.tokens + step.work.padding_tokens for step in self.steps)

    @property
    def num_held_steps(self) -> int:
        """Steps that left the request out although it was running."""
        return sum(_leaves_out(step, self.request_id) for step in self.steps)

    @property
    def was_preempted(self) -> bool:
        return any(self.request_id in step.preempted for step in self.steps)


def token_gaps(run: Run) -> dict[str, tuple[Gap, ...]]:
    """The gaps of every request, in order. Pure."""
    found: dict[str, list[Gap]] = {record.request_id: [] for record in run.requests}
    last: dict[str, int] = {}  # request -> place of the step that gave its latest token
    for place, step in enumerate(run.steps):
        for name in dict.fromkeys(o.request_id for o in step.outputs if o.token_id is not None):
            if name in last:
                steps = tuple(run.steps[last[name] + 1 : place + 1])
                begin_s = run.steps[last[name]].t_end_s
                found.setdefault(name, []).append(Gap(name, len(found[name]) + 1, begin_s, step.t_end_s, steps))
            last[name] = place
    return {name: tuple(gaps) for name, gaps in found.items()}


def worst_gap(run: Run) -> Gap | None:
    """The longest gap of any request, in seconds; None where nobody got two tokens. Pure."""
    return max((gap for gaps in token_gaps(run).values() for gap in gaps), key=lambda gap: gap.seconds, default=None)


def held_steps(run: Run) -> dict[str, int]:
    """How many steps left each request out between two of its tokens although it was running. Pure."""
    return {name: sum(gap.num_held_steps for gap in gaps) for name, gaps in token_gaps(run).items()}


def _leaves_out(step: StepRecord, request_id: str) -> bool:
    named = {row.request_id for row in step.scheduled} | {r.request_id for r in step.refused}
    return request_id not in named


def empty_blocks(run: Run) -> tuple[int, ...]:
    """After each step: blocks that belong to a request and hold none of its computed tokens yet. Pure.

    Raises: BlockRuleError if the block events contradict themselves.
    """
    blocks, size = BlockMap(run.header.num_blocks), run.header.block_size
    computed: dict[str, int] = {}
    found = []
    for step in run.steps:
        computed |= computed_ends(step)
        for event in step.block_events:
            blocks.apply(event)
        for name in set(step.preempted) - {row.request_id for row in step.scheduled}:
            computed[name] = 0
        found.append(
            sum(max(len(table) - -(-computed.get(name, 0) // size), 0) for name, table in blocks.tables.items())
        )
    return tuple(found)
