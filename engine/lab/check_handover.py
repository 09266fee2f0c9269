"""A step of a disaggregated Run, checked by carrying it out: what each worker may do, and what was sent between them.

On top of the rules of ``engine.lab.check_step``: each worker's steps follow one another, but not the other's; the
prefill worker computes prompts only; a request decodes on the other one, from the position behind its prompt on, after
its keys and values have come; these are as many bytes as its blocks hold. Invariant: as there.
"""

from __future__ import annotations

from itertools import pairwise

from engine.lab.check_rules import TIME_SLACK_S, RequestTrack, require
from engine.lab.check_step import StepReplay
from engine.lab.handover import block_bytes
from engine.lab.records import BlockEvent, Header, Scheduled, StepRecord, Transfer, WorkerInfo
from engine.lab.scenario import Scenario

PREFILL, DECODE = "prefill", "decode"


class HandoverReplay(StepReplay):
    """Carries out the records of two workers in order. A request is on one side or on its way."""

    def __init__(self, header: Header, scenario: Scenario, tracks: dict[str, RequestTrack]) -> None:
        """Raises: CheckError for workers that a disaggregated Run cannot have."""
        super().__init__(header, scenario, tracks)
        self.workers: dict[str, WorkerInfo] = {worker.name: worker for worker in header.workers}
        self.ends_s: dict[str, float] = {}
        self.last_begin_s = 0.0
        self.worker: str | None = None  # whose step is being carried out
        self.side = dict.fromkeys(tracks, PREFILL)
        self.known_s: dict[str, float] = {}  # when a request came to the decode side
        require(
            [w.name for w in header.workers] == [PREFILL, DECODE],
            "header",
            "workers",
            f"the workers are {[w.name for w in header.workers]}, not {[PREFILL, DECODE]}",
        )
        ends = [w.first_block + w.num_blocks for w in header.workers]
        starts = [w.first_block for w in header.workers]
        fits = starts == [0, ends[0]] and ends[1] == header.num_blocks and min(w.threads for w in header.workers) >= 1
        require(fits, "header", "workers", f"blocks from {starts} to {ends} do not make up {header.num_blocks}")

    def _check_order(self, name: str, step: StepRecord) -> None:
        require(step.worker in self.workers, name, "workers", f"worker is {step.worker!r}, not one of the header's")
        require(
            step.t_begin_s >= self.last_begin_s - TIME_SLACK_S, name, "time_order", "begins before the step before it"
        )
        self.previous_end_s = self.ends_s.get(step.worker, 0.0)  # of this worker: the other's may overlap
        super()._check_order(name, step)
        self.ends_s[step.worker], self.last_begin_s = step.t_end_s, step.t_begin_s
        for event in step.block_events:
            self._check_block(name, step, event)
        for transfer in step.received:
            self._receive(name, step, transfer)

    def _check_block(self, name: str, step: StepRecord, event: BlockEvent) -> None:
        worker = self.workers[step.worker]
        own = worker.first_block <= event.block_id < worker.first_block + worker.num_blocks
        require(own, name, "workers", f"block {event.block_id} is not one of the {worker.name} worker's")

    # -------------------------------------------------------------------------------------------- transfers
    def _receive(self, name: str, step: StepRecord, transfer: Transfer) -> None:
        track = self._track(name, transfer.request_id, "transfer")
        where = f"transfer of {transfer.request_id}"
        require(step.worker == DECODE, name, "transfer", f"{where}: only the decode worker receives")
        moving = self.side[transfer.request_id] == PREFILL and track.state == "running" and len(track.outputs) == 1
        require(moving, name, "transfer", f"{where}: it is {track.state} with {len(track.outputs)} tokens")
        num_blocks = -(-(track.num_prompt_tokens or 0) // self.header.block_size)
        expected = (track.num_prompt_tokens, num_blocks, num_blocks * block_bytes(self.header))
        found = (transfer.num_tokens, transfer.num_blocks, transfer.num_bytes)
        told = f"{where}: (tokens, blocks, bytes) are {found}, its prompt gives {expected}"
        require(found == expected, name, "transfer", told)
        assert track.first_token is not None
        moments = [track.first_token[2], transfer.ready_s, transfer.t_begin_s, transfer.t_end_s, step.t_begin_s]
        same = abs(moments[0] - moments[1]) <= TIME_SLACK_S
        ordered = all(a <= b + TIME_SLACK_S for a, b in pairwise(moments))
        require(same and ordered, name, "transfer", f"{where}: its moments go backwards: {moments}")
        track.state, self.side[transfer.request_id] = "waiting", DECODE
        self.known_s[transfer.request_id] = step.t_begin_s

    # -------------------------------------------------------------------------------------------- who runs
    def _admit(self, name: str, step: StepRecord) -> None:
        """A request that comes with its prompt goes on behind it; it does not begin anew."""
        fresh = {r for r in step.admitted if r in self.known_s and not self.tracks[r].num_preemptions}
        for request_id in step.admitted:
            side = self.side.get(request_id)
            require(side in (None, step.worker), name, "admitted", f"{request_id} is not on the {step.worker} worker")
        super()._admit(name, step)
        for request_id in fresh:
            self.tracks[request_id].begins = False

    def _check_running(self, name: str, step: StepRecord) -> None:
        limit = self.scenario.limits.max_requests
        running = sum(self._is_here(r, step.worker) for r in self.tracks)
        told = f"{running} requests run on the {step.worker} worker; max_requests is {limit}"
        require(running <= limit, name, "request_limit", told)

    def _is_here(self, request_id: str, worker: str | None) -> bool:
        """Whether a request runs on a worker: one with its first token has left the prefill side."""
        track = self.tracks[request_id]
        left = worker == PREFILL and bool(track.outputs)
        return track.state == "running" and self.side[request_id] == worker and not left

    def _check_chunk(self, name: str, row: Scheduled, track: RequestTrack) -> None:
        here = self.side[row.request_id] == self.worker
        require(here, name, "scheduled", f"{row.request_id} runs on the {self.worker} worker and is not there")
        prompt_only = self.worker == DECODE or row.phase == "prefill"
        require(prompt_only, name, "phase", f"the prefill worker runs {row.phase} of {row.request_id}")
        super()._check_chunk(name, row, track)

    def _schedule(self, name: str, step: StepRecord) -> None:
        self.worker = step.worker
        super()._schedule(name, step)

    # -------------------------------------------------------------------------------------------- who waits
    def _waits_here(self, request_id: str, step: StepRecord) -> bool:
        return self.side[request_id] == step.worker

    def _check_owners(self, name: str) -> None:
        """As always, but blocks on the prefill side are held until they are sent, whatever becomes of the request."""
        first = self.workers[DECODE].first_block
        for request_id, table in self.pool.blocks.tables.items():
            state = self.tracks[request_id].state
            held = [block for block in table if block >= first]
            require(state == "running" or not held, name, "block_owner", f"{request_id} is {state} and holds {held}")
