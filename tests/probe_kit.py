"""Made-up probes for Runs of the fake model: right in what follows from shapes, invented in time and error."""

from __future__ import annotations

import random

from engine.lab.probes import training_flops
from engine.lab.records import ModelInfo, Run
from engine.lab.scenario import Scenario


def add_probes(run: Run, pass_ms: float = 25.0, token_ms: float = 1.0, same: int | None = None) -> None:
    """Effect: the header gets what the scenario's probes would measure. ``same``: choices that agree, else all."""
    scenario = Scenario.parse(run.header.scenario)
    if not scenario.probes or not run.requests:
        return
    if scenario.probes == ("quantization",):
        run.header.probes = {"quantization": _quantization(run, scenario)}
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


def _quantization(run: Run, scenario: Scenario) -> dict:
    """Errors that grow with the roughness of the form; the text leaves the other's at a place they agree on."""
    last, model = run.requests[-1], run.header.model
    rng = random.Random(scenario.model_dump_json())
    rough = {"int8": 0.2, "int4": 1.5}[scenario.weights or scenario.kv_dtype]
    errors = [rough * (0.5 + rng.random()) for _ in last.output_token_ids]
    first = None if rough < 1 and rng.random() < 0.5 else rng.randrange(len(errors))
    sizes = {"int8": 1.1, "int4": 0.6}
    return {
        "request_id": last.request_id,
        "num_tokens": len(errors),
        "max_logit_error": max(errors),
        "mean_logit_error": max(errors) / 4,
        "max_kl": rough / 5,
        "mean_kl": rough / 50,
        "num_same_choices": len(errors) - (0 if first is None else 2),
        "first_divergent_token": first,
        "gap_there": None if first is None else 0.1,
        "max_errors": errors,
        "reference_weight_bytes": 4 * model.num_parameters,
        "weight_bytes": model.weight_bytes,
        "reference_kv_bytes_per_element": 4.0,
        "kv_bytes_per_element": sizes[scenario.kv_dtype] if scenario.kv_dtype else 4.0,
    }
