"""The KV blocks of a step, checked by replaying its events: every block has the user it should, and sums come out.

It decides whether the block events are possible (``engine.lab.replay`` carries them out) and whether the blocks a
request holds cover what it computes; it never looks at tokens or times. Invariant: after ``apply`` the block map equals
the engine's after the step.
"""

from __future__ import annotations

from engine.lab.check_rules import CheckError, RequestTrack, require
from engine.lab.records import BlockEvent, StepRecord
from engine.lab.replay import BlockMap, BlockRuleError


class BlockReplay:
    """Carries out the block events of steps in order. ``blocks`` is the map after the last one."""

    def __init__(self, num_blocks: int, block_size: int, tracks: dict[str, RequestTrack]) -> None:
        self.blocks = BlockMap(num_blocks)
        self.block_size = block_size
        self.tracks = tracks
        self.num_shared: dict[str, int] = {}  # blocks a request took from the prefix cache since it last started over

    def apply(self, name: str, step: StepRecord) -> None:
        """Check a step's events and what they cover. Effect: the block map advances. Raises: CheckError.

        Called when the step's chunks are already counted as computed. A request that finishes in the step gives its
        blocks back in the same step, so a chunk is compared with the most its request held, not with what is left.
        """
        peak = {request_id: len(table) for request_id, table in self.blocks.tables.items()}
        restarts = set(step.preempted)
        for event in step.block_events:
            request_id = self._carry_out(name, event)
            if request_id is None:
                continue
            held = len(self.blocks.tables.get(request_id, ()))
            if held == 0 and request_id in restarts:  # what it held before the preemption does not cover a new chunk
                restarts.discard(request_id)
                peak[request_id] = self.num_shared[request_id] = 0
            peak[request_id] = max(peak.get(request_id, 0), held)
            if event.op == "share":
                self.num_shared[request_id] = self.num_shared.get(request_id, 0) + 1
        self._check_cover(name, step, peak)
        counts = self.blocks.counts()
        recorded = {part: getattr(step.blocks, part) for part in type(counts).model_fields}
        require(
            recorded == counts.model_dump(),
            name,
            "block_counts",
            f"recorded {recorded}, the events give {counts.model_dump()}",
        )

    def _carry_out(self, name: str, event: BlockEvent) -> str | None:
        request_id = event.request_id
        if request_id is not None:
            require(request_id in self.tracks, name, "block_user", f"{request_id} is not a request of the scenario")
        try:
            self.blocks.apply(event)
        except BlockRuleError as error:
            raise CheckError(name, error.invariant, str(error)) from None
        if event.op == "publish":
            index = self.blocks.tables[request_id].index(event.block_id)
            full = (index + 1) * self.block_size <= self.tracks[request_id].num_computed_tokens
            require(full, name, "publish_full", f"block {event.block_id} of {request_id} is not full yet")
        return request_id

    def _check_cover(self, name: str, step: StepRecord, peak: dict[str, int]) -> None:
        for row in step.scheduled:
            covered = peak.get(row.request_id, 0) * self.block_size
            end = row.start + row.num_tokens
            require(covered >= end, name, "block_cover", f"{row.request_id} runs to {end}, its blocks to {covered}")
            cached = self.num_shared.get(row.request_id, 0) * self.block_size
            require(
                row.num_cached_tokens == cached,
                name,
                "positions",
                f"{row.request_id} has {row.num_cached_tokens} cached tokens, its shared blocks hold {cached}",
            )

    def check_owners(self, name: str, static: bool) -> None:
        """After the step only running requests hold blocks (and the rows of a static batch that still runs)."""
        for request_id, table in self.blocks.tables.items():
            state = self.tracks[request_id].state
            allowed = state == "running" or (state == "finished" and static)
            require(allowed, name, "block_owner", f"{request_id} is {state} and holds {len(table)} blocks")
        for request_id, track in self.tracks.items():
            covered = len(self.blocks.tables.get(request_id, ())) * self.block_size
            computed = track.num_computed_tokens if track.state == "running" else 0
            require(
                covered >= computed,
                name,
                "block_cover",
                f"{request_id} has computed {computed} tokens, its blocks hold {covered}",
            )
