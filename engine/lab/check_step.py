"""One step of a Run, checked by carrying it out: who was admitted, what ran, what came out, and who still waits.

It decides whether a step record follows from the state that the steps before it left behind, rule by rule, and raises
CheckError at the first that does not. It never looks at request records (``engine.lab.check`` does) and keeps only
state that the records themselves imply. Invariant: after ``apply`` the state is what the scheduler held after the step.
"""

from __future__ import annotations

from collections import Counter

from engine.lab.check_blocks import BlockReplay
from engine.lab.check_rules import TIME_SLACK_MS, TIME_SLACK_S, RequestTrack, require
from engine.lab.records import Header, Output, Scheduled, StepRecord, Work
from engine.lab.scenario import Scenario
from engine.lab.work import element_sizes, row_shapes, step_work


class StepReplay:
    """Carries out step records in order. ``tracks`` and ``pool`` hold the state after the last one."""

    def __init__(self, header: Header, scenario: Scenario, tracks: dict[str, RequestTrack]) -> None:
        self.header = header
        self.scenario = scenario
        self.tracks = tracks
        self.pool = BlockReplay(header.num_blocks, header.block_size, tracks)
        self.num_steps = 0
        self.previous_end_s = 0.0

    def apply(self, step: StepRecord) -> None:
        """Check one step and advance the state. Effect: tracks and blocks change. Raises: CheckError."""
        name = f"step {step.step}"
        self._check_order(name, step)
        rows = {row.request_id for row in step.scheduled}
        aborted = [output for output in step.outputs if output.token_id is None]
        self._abort(name, [output for output in aborted if output.request_id not in rows])
        self._preempt(name, step)
        self._admit(name, step)
        self._schedule(name, step)
        self._abort(name, [output for output in aborted if output.request_id in rows])
        self.pool.apply(name, step)
        self._emit(name, step)
        self._check_owners(name)
        self._check_refused(name, step)
        self._check_queues(name, step)
        self._check_work(name, step)

    def _track(self, name: str, request_id: str, invariant: str) -> RequestTrack:
        require(request_id in self.tracks, name, invariant, f"{request_id} is not a request of the scenario")
        return self.tracks[request_id]

    def _check_owners(self, name: str) -> None:
        self.pool.check_owners(name, static=self.scenario.policy == "static")

    # -------------------------------------------------------------------------------------------- time and order
    def _check_order(self, name: str, step: StepRecord) -> None:
        require(step.step == self.num_steps, name, "step_order", f"step {self.num_steps} was expected here")
        policy = self.scenario.policy
        require(step.policy == policy, name, "step_order", f"policy is {step.policy!r}, the scenario's is {policy!r}")
        begin, end = step.t_begin_s, step.t_end_s
        require(
            begin >= self.previous_end_s - TIME_SLACK_S,
            name,
            "time_order",
            f"begins at {begin} s, before {self.previous_end_s} s, where the step before it ended",
        )
        require(end >= begin, name, "time_order", f"ends at {end} s, before it begins at {begin} s")
        parts = [getattr(step.time_ms, part) for part in type(step.time_ms).model_fields]
        require(min(parts) >= 0, name, "time_parts", f"a part of the step takes {min(parts)} ms")
        span = (end - begin) * 1e3
        require(
            sum(parts) <= span + TIME_SLACK_MS + 0.01 * span,
            name,
            "time_parts",
            f"the parts take {sum(parts):.3f} ms, the step only {span:.3f} ms",
        )
        self.num_steps += 1
        self.previous_end_s = end

    # -------------------------------------------------------------------------------------------- who runs
    def _abort(self, name: str, outputs: list[Output]) -> None:
        """An abort takes effect between steps, and is told first, or during the forward pass, and wastes its chunk."""
        for output in outputs:
            track = self._track(name, output.request_id, "outputs")
            where = f"{output.request_id} has an output without a token"
            require(output.finish_reason == "abort", name, "outputs", f"{where}, which is not an abort")
            require(track.state != "finished", name, "outputs", f"{where}, after it finished")
            track.state, track.finish_reason = "finished", "abort"

    def _preempt(self, name: str, step: StepRecord) -> None:
        for request_id in step.preempted:
            track = self._track(name, request_id, "preempted")
            require(track.state == "running", name, "preempted", f"{request_id} is {track.state}, not running")
            track.state = "waiting"
            track.num_preemptions += 1
            track.high_water = max(track.high_water, track.num_computed_tokens)
            track.num_computed_tokens = track.num_cached_tokens = 0

    def _admit(self, name: str, step: StepRecord) -> None:
        for request_id in step.admitted:
            track = self._track(name, request_id, "admitted")
            require(track.state == "waiting", name, "admitted", f"{request_id} is {track.state}, not waiting")
            arrived = track.arrival_s <= step.t_begin_s
            require(arrived, name, "arrival", f"{request_id} is admitted before it arrives at {track.arrival_s} s")
            track.state, track.begins = "running", True
        self._check_running(name, step)

    def _check_running(self, name: str, step: StepRecord) -> None:
        running = sum(1 for t in self.tracks.values() if t.state == "running")
        limit = self.scenario.limits.max_requests
        require(running <= limit, name, "request_limit", f"{running} requests run; max_requests is {limit}")

    # -------------------------------------------------------------------------------------------- what runs
    def _schedule(self, name: str, step: StepRecord) -> None:
        rows = step.scheduled
        num_outputs = Counter(output.request_id for output in step.outputs if output.token_id is not None)
        told = any(output.token_id is None for output in step.outputs) or step.block_events
        require(rows or told, name, "scheduled", "the step runs nothing")
        ids = [row.request_id for row in rows]
        require(len(set(ids)) == len(ids), name, "scheduled", "a request stands twice in the step")
        limits = self.scenario.limits
        require(
            len(rows) <= limits.max_requests,
            name,
            "request_limit",
            f"{len(rows)} requests are scheduled; max_requests is {limits.max_requests}",
        )
        for row in rows:
            track = self._track(name, row.request_id, "scheduled")
            require(
                row.num_tokens >= 1, name, "scheduled", f"{row.request_id} is scheduled for {row.num_tokens} tokens"
            )
            self._check_drafts(name, row, track)
            if row.phase == "padding":
                self._check_padding(name, row, track)
            else:
                self._check_chunk(name, row, track)
                right_guesses = max(num_outputs[row.request_id] - 1, 0)
                track.num_computed_tokens += min(right_guesses, row.num_draft_tokens)
                moment = (step.step, step.t_begin_s, step.t_end_s)
                track.first_scheduled = track.first_scheduled or moment
        total = sum(row.num_tokens for row in rows)
        require(
            total <= limits.max_batch_tokens,
            name,
            "token_budget",
            f"{total} tokens are scheduled; max_batch_tokens is {limits.max_batch_tokens}",
        )

    def _check_padding(self, name: str, row: Scheduled, track: RequestTrack) -> None:
        where = f"padding row of {row.request_id}"
        require(self.scenario.policy == "static", name, "phase", f"{where}: only static batching pads")
        require(track.state == "finished", name, "phase", f"{where}: the request is {track.state}, not finished")
        require(row.num_tokens == 1, name, "phase", f"{where}: {row.num_tokens} tokens, not 1")
        require(not row.is_last_chunk, name, "last_chunk", f"{where}: is_last_chunk is true, but it gives no token")
        expected = track.num_computed_tokens - 1
        require(row.start == expected, name, "positions", f"{where}: starts at {row.start}, not at {expected}")

    def _check_chunk(self, name: str, row: Scheduled, track: RequestTrack) -> None:
        where, end = f"chunk of {row.request_id}", row.start + row.num_tokens - row.num_draft_tokens
        require(track.state == "running", name, "scheduled", f"{where}: the request is {track.state}, not running")
        if track.begins:
            require(
                0 <= row.num_cached_tokens < track.num_tokens, name, "positions", f"{where}: too many cached tokens"
            )
            track.num_computed_tokens = track.num_cached_tokens = row.num_cached_tokens
            track.begins = False
        expected = track.num_computed_tokens
        require(row.start == expected, name, "positions", f"{where}: starts at {row.start}, not at {expected}")
        require(
            end <= track.num_tokens,
            name,
            "positions",
            f"{where}: ends at {end}, but the request has {track.num_tokens} tokens",
        )
        require(
            row.num_cached_tokens == track.num_cached_tokens,
            name,
            "positions",
            f"{where}: num_cached_tokens is {row.num_cached_tokens}, it began with {track.num_cached_tokens}",
        )
        self._check_phase(name, where, row, track)
        last = end == track.num_tokens
        require(
            row.is_last_chunk == last,
            name,
            "last_chunk",
            f"{where}: is_last_chunk is {row.is_last_chunk}; it ends at {end} of {track.num_tokens} tokens",
        )
        track.num_computed_tokens = end

    def _check_phase(self, name: str, where: str, row: Scheduled, track: RequestTrack) -> None:
        if row.start < track.high_water:
            expected = "recompute"
        elif row.start < (track.num_prompt_tokens or 0):
            expected = "prefill"
        else:
            expected = "decode"
        require(row.phase == expected, name, "phase", f"{where}: phase is {row.phase}, expected {expected}")
        if row.phase == "decode":
            num_tokens = row.num_tokens - row.num_draft_tokens
            require(num_tokens == 1, name, "phase", f"{where}: decode of {num_tokens} tokens, not 1")

    def _check_drafts(self, name: str, row: Scheduled, track: RequestTrack) -> None:
        """Which tokens were guessed is not recorded, so how many were right is taken from the outputs."""
        count, speculation = row.num_draft_tokens, self.scenario.speculation
        if count == 0:
            return
        where = f"{row.request_id} guesses {count} tokens"
        most = 0 if speculation is None else speculation.num_draft_tokens
        require(0 < count <= most, name, "drafts", f"{where}; the scenario allows {most}")
        greedy = row.phase == "decode" and track.spec.temperature == 0
        require(greedy, name, "drafts", f"{where} in {row.phase} at temperature {track.spec.temperature}")
        left = track.spec.max_tokens - len(track.outputs)
        require(count < left, name, "drafts", f"{where} and may give {left} more")

    # -------------------------------------------------------------------------------------------- what came out
    def _emit(self, name: str, step: StepRecord) -> None:
        aborted = {output.request_id for output in step.outputs if output.token_id is None}
        rows = [row for row in step.scheduled if row.phase != "padding" and row.request_id not in aborted]
        sampling = [row.request_id for row in rows if row.is_last_chunk]
        outputs = [output for output in step.outputs if output.token_id is not None]
        ids = [output.request_id for output in outputs]
        most = {row.request_id: 1 + row.num_draft_tokens for row in rows}
        for request_id, count in Counter(ids).items():
            allowed = most.get(request_id, 1)
            require(count <= allowed, name, "outputs", f"{request_id} gives {count} tokens in one step, not {allowed}")
        extra, lost = sorted(set(ids) - set(sampling)), sorted(set(sampling) - set(ids))
        require(not extra, name, "outputs", f"{extra[:1]} gives a token, but no chunk of it ends here")
        require(not lost, name, "outputs", f"the last chunk of {lost[:1]} gives no token")
        for output in outputs:
            track = self.tracks[output.request_id]
            require(
                track.state == "running", name, "outputs", f"{output.request_id} gives a token and is {track.state}"
            )
            in_vocabulary = 0 <= output.token_id < self.header.model.vocab_size
            require(
                in_vocabulary, name, "outputs", f"{output.request_id}: token {output.token_id} is not in the vocabulary"
            )
            moment = (step.step, step.t_begin_s, step.t_end_s)
            track.outputs.append(output.token_id)
            track.first_token, track.last_token = track.first_token or moment, moment
            self._check_finish(name, output, track)
            if output.finish_reason is not None:
                track.state, track.finish_reason = "finished", output.finish_reason

    def _check_finish(self, name: str, output: Output, track: RequestTrack) -> None:
        count, most, reason = len(track.outputs), track.spec.max_tokens, output.finish_reason
        where = f"{output.request_id} after {count} of {most} tokens"
        require(count <= most, name, "finish", f"{where}: too many")
        require(count < most or reason is not None, name, "finish", f"{where}: the request does not end")
        require(reason != "length" or count == most, name, "finish", f"{where}: ends by length too early")
        may_stop = not track.spec.ignore_eos or bool(track.spec.stop)
        require(reason != "stop" or may_stop, name, "finish", f"{where}: stops, but it was told to ignore the end")

    # -------------------------------------------------------------------------------------------- who waits
    def _check_refused(self, name: str, step: StepRecord) -> None:
        ids = [refused.request_id for refused in step.refused]
        require(len(set(ids)) == len(ids), name, "refused", "a request is refused twice")
        for refused in step.refused:
            track = self._track(name, refused.request_id, "refused")
            require(track.state == "waiting", name, "refused", f"{refused.request_id} is refused and {track.state}")
            arrived = track.arrival_s <= step.t_begin_s
            require(arrived, name, "refused", f"{refused.request_id} is refused before it arrives")
            drains = refused.why != "batch_not_drained" or self.scenario.policy == "static"
            require(drains, name, "refused", f"{refused.request_id}: only static batching waits for a batch to drain")
        for request_id, track in self.tracks.items():
            waits = (
                track.state == "waiting" and track.arrival_s <= step.t_begin_s and self._waits_here(request_id, step)
            )
            require(not waits or request_id in ids, name, "refused", f"{request_id} waits and no reason is recorded")

    def _waits_here(self, request_id: str, step: StepRecord) -> bool:
        """Whether the engine of this step is the one a waiting request waits for: there is only one."""
        return True

    def _check_queues(self, name: str, step: StepRecord) -> None:
        states = [(t.state, t.arrival_s) for t in self.tracks.values()]
        running = sum(1 for state, _ in states if state == "running")
        finished = sum(1 for state, _ in states if state == "finished")
        waiting = sum(1 for state, at in states if state == "waiting" and at <= step.t_begin_s)
        queues = step.queues
        require(queues.running == running, name, "queues", f"running is {queues.running}, the events give {running}")
        require(
            queues.finished == finished, name, "queues", f"finished is {queues.finished}, the events give {finished}"
        )
        require(queues.waiting == waiting, name, "queues", f"waiting is {queues.waiting}, arrivals give {waiting}")

    # -------------------------------------------------------------------------------------------- work
    def _check_work(self, name: str, step: StepRecord) -> None:
        weight_size, kv_size = element_sizes(self.header)
        shapes = [shape for row in step.scheduled for shape in row_shapes(row)]
        expected = step_work(self.header.model, shapes, weight_size, kv_size)
        for part in self._exact_parts():
            recorded, computed = getattr(step.work, part), getattr(expected, part)
            require(recorded == computed, name, "work", f"{part} is {recorded}, the shapes give {computed}")

    def _exact_parts(self) -> list[str]:
        """Parts of the work that shapes fix exactly: fewer where a quantized format hides the size of its scales."""
        stated = self.header.model_extra or {}
        parts = list(Work.model_fields)
        if self.scenario.weights is not None and "weight_bytes_per_element" not in stated:
            parts.remove("weight_bytes")
        if self.scenario.kv_dtype is not None and "kv_bytes_per_element" not in stated:
            parts = [p for p in parts if not p.startswith("kv_")]
        return parts
