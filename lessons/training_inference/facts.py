"""What one Run says about writing, reading and learning the same text, as values for the lesson's sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.lab.metrics import duration_s, percentile, step_spread
from engine.lab.probes import TrainingStep, training_step
from engine.lab.records import RequestRecord, Run, StepRecord
from engine.lab.work import moved_bytes, roofline_s
from lessons.facts_error import FactsError
from lessons.text import Fact, format_bytes, format_number, format_seconds

NEAR = (1 / 1.4, 1.4)  # measured over modelled within which one resource explains the time
NOISY = 0.5  # spread of like work, relative to its median, beyond which the page warns
ADAM_BYTES = 8  # two float32 numbers beside each parameter


@dataclass(frozen=True)
class Way:
    """One way through the text: what it took, what it had to do. ``modelled_s`` is None without measured ceilings."""

    seconds: float
    num_passes: int
    num_tokens: int  # of the text: made (writing) or handled (reading, training)
    flops: int
    num_bytes: int
    modelled_s: float | None

    @property
    def intensity(self) -> float:
        return self.flops / self.num_bytes

    @property
    def factor(self) -> float | None:
        """Measured over modelled."""
        return None if self.modelled_s is None else self.seconds / self.modelled_s


@dataclass(frozen=True)
class ThreeWays:
    """The same text three ways. ``start`` is the number of tokens that were given."""

    run: Run
    start: int
    num_tokens: int
    write: Way
    read: Way
    train: Way
    step: TrainingStep

    @property
    def ways(self) -> dict[str, Way]:
        return {"write": self.write, "read": self.read, "train": self.train}


def three_ways(runs: Mapping[str, Run]) -> ThreeWays:
    """Raises: FactsError when there is no run, or it ended before it had done all three."""
    run = runs.get("run")
    if run is None:
        raise FactsError("there is no run yet; run the lesson first")
    try:
        step = training_step(run)
    except ValueError:
        raise FactsError("the training step of this run cannot be read; run the lesson again") from None
    records = {record.request_id: record for record in run.requests}
    write, read = records.get("write"), records.get("read")
    if step is None or not _is_whole(write) or not _is_whole(read):
        raise FactsError("this run did not do all three; run the lesson again")
    return ThreeWays(
        run=run,
        start=write.num_prompt_tokens,
        num_tokens=read.num_prompt_tokens,
        write=_way(run, write, write.num_output_tokens),
        read=_way(run, read, read.num_prompt_tokens),
        train=_training_way(run, step),
        step=step,
    )


def _is_whole(record: RequestRecord | None) -> bool:
    return record is not None and record.completion_s is not None and record.finish_reason != "abort"


def steps_of(run: Run, request_id: str) -> list[StepRecord]:
    """The steps that computed for a request. Pure."""
    return [step for step in run.steps if any(row.request_id == request_id for row in step.scheduled)]


def _way(run: Run, record: RequestRecord, num_tokens: int) -> Way:
    steps, device = steps_of(run, record.request_id), run.header.device
    modelled = None
    if device.read_gbps and device.matmul_tflops:
        rates = device.read_gbps, device.matmul_tflops
        modelled = sum(roofline_s(s.work.flops, moved_bytes(s.work), *rates) for s in steps)
    return Way(
        seconds=sum(duration_s(step) for step in steps),
        num_passes=len(steps),
        num_tokens=num_tokens,
        flops=sum(step.work.flops for step in steps),
        num_bytes=sum(moved_bytes(step.work) for step in steps),
        modelled_s=modelled,
    )


def _training_way(run: Run, step: TrainingStep) -> Way:
    device, modelled = run.header.device, None
    if device.read_gbps and device.matmul_tflops:
        modelled = roofline_s(step.flops, step.moved_bytes, device.read_gbps, device.matmul_tflops)
    return Way(step.step_ms / 1e3, 2, step.num_tokens, step.flops, step.moved_bytes, modelled)


# ------------------------------------------------------------------ what the lesson asks for
def facts(runs: Mapping[str, Run]) -> dict[str, Fact]:
    found = three_ways(runs)
    run, step, model = found.run, found.step, found.run.header.model
    values: dict[str, Fact] = {
        "model": model.name,
        "weights": format_bytes(model.weight_bytes),
        "num_tokens": found.num_tokens,
        "written": found.write.num_tokens,
        "write_passes": found.write.num_passes,
        "write_read_ratio": found.write.seconds / found.read.seconds,
        "write_train_ratio": found.write.seconds / found.train.seconds,
        "train_read_ratio": found.train.seconds / found.read.seconds,
        "work_ratio": found.train.flops / found.read.flops,
        "forward_time": format_seconds(step.forward_ms / 1e3),
        "backward_time": format_seconds(step.backward_ms / 1e3),
        "backward_ratio": step.backward_ms / step.forward_ms,
        "num_choices": step.num_choices,
        "num_same": step.num_same_choices,
        "num_other": step.num_choices - step.num_same_choices,
        "activations": format_bytes(step.activation_bytes),
        "gradients": format_bytes(step.gradient_bytes),
        "adam": format_bytes(ADAM_BYTES * model.num_parameters),
        "kv": format_bytes(_kv_bytes(run)),
        **_spread_facts(found),
    }
    for name, way in found.ways.items():
        values |= {
            f"{name}_time": format_seconds(way.seconds),
            f"{name}_per_token": format_seconds(way.seconds / way.num_tokens),
            f"{name}_flops": _flops(way.flops),
            f"{name}_bytes": format_bytes(way.num_bytes),
            f"{name}_intensity": way.intensity,
        }
    return values | _model_facts(found)


def _model_facts(found: ThreeWays) -> dict[str, Fact]:
    device = found.run.header.device
    if found.write.modelled_s is None:
        return {}
    ridge = device.matmul_tflops * 1e3 / device.read_gbps
    worst = max(found.ways, key=lambda name: abs_factor(found.ways[name].factor))
    values: dict[str, Fact] = {
        "read_gbps": device.read_gbps,
        "matmul_tflops": device.matmul_tflops,
        "ridge": ridge,
        "worst": {
            "write": {"en": "writing", "zh": "写"},
            "read": {"en": "reading", "zh": "读"},
            "train": {"en": "the training step", "zh": "训练一步"},
        }[worst],
        "worst_factor": found.ways[worst].factor,
    }
    for name, way in found.ways.items():
        below = way.intensity < ridge
        values[f"{name}_model"] = format_seconds(way.modelled_s)
        values[f"{name}_factor"] = way.factor
        values[f"{name}_side"] = {"en": "below", "zh": "低于"} if below else {"en": "above", "zh": "高于"}
    return values


def abs_factor(factor: float) -> float:
    """How far off, whichever way: 0.5 and 2 are equally far. Pure."""
    return max(factor, 1 / factor)


def sections(runs: Mapping[str, Run]) -> list[str]:
    found = three_ways(runs)
    step = found.step
    shown = ["after", "why"]
    if is_noisy(found):
        shown.append("note_noisy")
    if step.num_choices:
        shown.append("note_same" if step.num_same_choices == step.num_choices else "note_not_same")
    shown.append("note_backward")
    if found.write.modelled_s is None:
        shown.append("note_no_ceilings")
    else:
        near = all(NEAR[0] <= way.factor <= NEAR[1] for way in found.ways.values())
        shown += ["note_bounds", "note_model_near" if near else "note_model_far"]
    return [*shown, "note_memory"]


def prediction_answers(runs: Mapping[str, Run]) -> dict[str, float | str]:
    found = three_ways(runs)
    return {
        "write_read_ratio": found.write.seconds / found.read.seconds,
        "train_read_ratio": found.train.seconds / found.read.seconds,
    }


def is_noisy(found: ThreeWays) -> bool:
    """Whether like work took unlike times, so that the seconds deserve no trust. Pure."""
    step = found.step
    spread = (step.step_high_ms - step.step_low_ms) / step.step_ms
    return max(spread, step_spread(found.run, "decode").relative or 0.0) > NOISY


def _spread_facts(found: ThreeWays) -> dict[str, Fact]:
    times = [duration_s(step) for step in steps_of(found.run, "write")[1:]] or [found.write.seconds]
    return {
        "pass_low": format_seconds(percentile(times, 10)),
        "pass_high": format_seconds(percentile(times, 90)),
        "step_low": format_seconds(found.step.step_low_ms / 1e3),
        "step_high": format_seconds(found.step.step_high_ms / 1e3),
    }


def _kv_bytes(run: Run) -> int:
    """What the reading pass wrote into the cache: keys and values of the whole text."""
    return sum(step.work.kv_write_bytes for step in steps_of(run, "read"))


def _flops(flops: float) -> str:
    return f"{format_number(flops / 1e12)} TFLOP" if flops >= 1e12 else f"{format_number(flops / 1e9)} GFLOP"
