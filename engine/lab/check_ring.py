"""A step of a ring's Run, checked by carrying it out: which positions each worker keeps, what it computed and sent.

On top of the rules of ``engine.lab.check_step``, which hold unchanged, because to its scheduler a ring is one executor.
Invariant: every query-key pair that causal attention needs was computed once, by one worker.
"""

from __future__ import annotations

from engine.lab.check_rules import TIME_SLACK_S, require
from engine.lab.check_step import StepReplay
from engine.lab.records import RingStep, StepRecord
from engine.lab.ring import (
    decode_sent_bytes,
    num_positions,
    parts,
    position_bytes,
    prompt_pairs,
    prompt_sent_bytes,
)
from engine.lab.work import element_sizes

CLOCK_SLACK_S = 1e-4  # a worker's span is read in another process than the step's begin and end


class RingReplay(StepReplay):
    """Carries out the records of a ring, one request at a time."""

    def apply(self, step: StepRecord) -> None:
        """Check one step and advance the state. Effect: as the base. Raises: CheckError."""
        super().apply(step)
        name = f"step {step.step}"
        require(step.worker is None and not step.received, name, "workers", "a ring hands nothing over")
        if not step.scheduled:
            require(step.ring is None, name, "ring", "the step runs nothing and tells of a ring")
            return
        require(step.ring is not None, name, "ring", "what the workers did is missing")
        assert step.ring is not None
        self._check_ring(name, step, step.ring)
        self._check_spans(name, step, step.ring)

    def _check_ring(self, name: str, step: StepRecord, ring: RingStep) -> None:
        asked = self.scenario.ring
        assert asked is not None
        n, layout, row = asked.num_workers, asked.layout, step.scheduled[0]
        model, size = self.header.model, element_sizes(self.header)[1]
        num_prompt = self.tracks[row.request_id].num_prompt_tokens or 0
        end = row.start + row.num_tokens
        kept = num_positions(end, num_prompt, n, layout)
        per_position = position_bytes(model, size)
        expected = {"positions": kept, "kv_bytes": [count * per_position for count in kept]}
        if row.start == 0:
            require(row.num_tokens == num_prompt, name, "ring", "a ring computes a prompt in one pass")
            most = max(sum(len(r) for r in own) for own in parts(num_prompt, n, layout))
            expected["pairs"] = [count * model.num_layers for count in prompt_pairs(num_prompt, n, layout)]
            expected["sent_bytes"] = prompt_sent_bytes(model, num_prompt, n, layout, size)
        else:
            most = 0
            expected["pairs"] = [count * model.num_layers for count in kept]
            expected["sent_bytes"] = [decode_sent_bytes(model, n)] * n
        for part, value in expected.items():
            found = getattr(ring, part)
            require(found == value, name, "ring", f"{part} are {found}, the scenario gives {value}")
        limit = 2 * most * per_position // model.num_layers if n > 1 else 0
        fits = len(ring.buffer_bytes) == n and all(0 <= count <= limit for count in ring.buffer_bytes)
        require(fits, name, "ring", f"buffer_bytes are {ring.buffer_bytes}; two parts of one layer are {limit}")

    def _check_spans(self, name: str, step: StepRecord, ring: RingStep) -> None:
        n, layers = len(ring.positions), self.header.model.num_layers
        sent = [0] * n
        for span in ring.spans:
            known = 0 <= span.worker < n and 0 <= span.source < n and 0 <= span.layer < layers
            require(known, name, "ring", f"a span of worker {span.worker}, source {span.source}, layer {span.layer}")
            slack = TIME_SLACK_S + CLOCK_SLACK_S
            inside = step.t_begin_s - slack <= span.t_begin_s <= span.t_end_s <= step.t_end_s + slack
            require(inside, name, "ring", f"a span lasts from {span.t_begin_s} to {span.t_end_s}, outside its step")
            sent[span.worker] += span.num_bytes
        if ring.spans:
            require(sent == ring.sent_bytes, name, "ring", f"the spans send {sent} bytes, the step {ring.sent_bytes}")
