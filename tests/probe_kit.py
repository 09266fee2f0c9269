"""A made-up training step for Runs of the fake model: right in what follows from shapes, invented in time."""

from __future__ import annotations

from engine.lab.probes import training_flops
from engine.lab.records import ModelInfo, Run
from engine.lab.scenario import Scenario


def add_probes(run: Run, pass_ms: float = 25.0, token_ms: float = 1.0, same: int | None = None) -> None:
    """Effect: the header gets what the scenario's probes would measure. ``same``: choices that agree, else all."""
    scenario = Scenario.parse(run.header.scenario)
    if not scenario.probes or not run.requests:
        return
    last, leader = (
        run.requests[-1],
        next((r for r in run.requests if r.request_id == scenario.requests[-1].follows), None),
    )
    num_tokens = last.num_prompt_tokens
    num_choices = leader.num_output_tokens if leader else 0
    forward_ms = pass_ms + token_ms * num_tokens
    forward, backward = training_flops(run.header.model, num_tokens)
    model: ModelInfo = run.header.model
    run.header.probes = {
        "training_step": {
            "request_id": last.request_id,
            "num_tokens": num_tokens,
            "num_passes": 5,
            "forward_ms": forward_ms,
            "backward_ms": 2.1 * forward_ms,
            "step_ms": 3.1 * forward_ms,
            "step_low_ms": 3.0 * forward_ms,
            "step_high_ms": 3.3 * forward_ms,
            "loss": 0.8,
            "num_choices": num_choices,
            "num_same_choices": num_choices if same is None else same,
            "forward_flops": forward,
            "backward_flops": backward,
            "weight_bytes": model.weight_bytes,
            "gradient_bytes": 4 * model.num_parameters,
            "activation_bytes": 1_600_000 * num_tokens,
        }
    }
