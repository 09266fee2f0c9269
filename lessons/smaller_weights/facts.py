"""What smaller weights gained and what they cost, from the Runs of one request and of eight in each form.

Times are medians over like steps, bytes and FLOPs are those the steps recorded, errors are those of the probe. The
model beside them is the roofline of this device with the arithmetic rate of bfloat16: the forms here are unpacked to it
before they are multiplied, so smaller weights save bytes and no arithmetic.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from engine.lab import catalogue
from engine.lab.metrics import duration_s, num_rows, spread, step_kind
from engine.lab.probes import QuantizationError, quantization_error
from engine.lab.records import RequestRecord, Run
from engine.lab.work import decode_step_bytes, decode_step_flops, moved_bytes, roofline_s
from lessons.facts_error import FactsError
from lessons.smaller_weights.scenarios import FORMS, SIZES
from lessons.text import Fact, format_bytes

NOISY = 0.5
AS_BYTES = 1.25  # gain within this factor of the ratio of bytes: the bytes explain it
GAINS = 1.05  # less than this is no gain
CARD = "h100"
CARD_MODEL = "llama-3-8b"
CARD_CONTEXT = 1024
CARD_BATCHES = (1, 64)

Runs = Mapping[str, Run]


@dataclass(frozen=True)
class Step:
    """Like steps of one Run. Times in seconds, ``seconds`` is the median of the whole step."""

    rows: int
    count: int
    seconds: float
    low_s: float
    high_s: float
    flops: float
    num_bytes: float
    relative_spread: float

    @property
    def tokens_per_s(self) -> float:
        return self.rows / self.seconds

    @property
    def gbps(self) -> float:
        return self.num_bytes / self.seconds / 1e9

    def modelled_s(self, roof: tuple[float, float]) -> float:
        """The least time the two ceilings allow. Pure."""
        return roofline_s(self.flops, self.num_bytes, *roof)


@dataclass(frozen=True)
class Form:
    """One form of the weights: its Runs, and the steps they consist of."""

    name: str
    one: Run
    many: Run
    decode: Step
    decode_many: Step
    prefill: Step
    error: QuantizationError | None

    @property
    def weight_bytes(self) -> int:
        return self.one.header.model.weight_bytes

    @property
    def record(self) -> RequestRecord:
        return self.one.requests[0]


def _steps(run: Run, kind: str, rows: int) -> Step | None:
    steps = [s for s in run.steps if step_kind(s) == kind and num_rows(s) == rows and duration_s(s) > 0]
    if not steps:
        return None
    times = spread(duration_s(s) for s in steps)
    return Step(
        rows=rows,
        count=len(steps),
        seconds=times.median,
        low_s=times.low,
        high_s=times.high,
        flops=statistics.median(s.work.flops for s in steps),
        num_bytes=statistics.median(moved_bytes(s.work) for s in steps),
        relative_spread=times.relative or 0.0,
    )


def forms(runs: Runs) -> dict[str, Form]:
    """The forms whose two Runs are complete, the largest first. Pure."""
    found = {name: _form(name, runs) for name in FORMS}
    return {name: form for name, form in found.items() if form is not None}


def _form(name: str, runs: Runs) -> Form | None:
    one, many = runs.get(f"{name}_one"), runs.get(f"{name}_many")
    if one is None or many is None or not one.requests or one.requests[0].completion_s is None:
        return None
    decode, prefill = _steps(one, "decode", 1), _steps(one, "prefill", 1)
    decode_many = _steps(many, "decode", SIZES["many"])
    error = quantization_error(one)
    if decode is None or prefill is None or decode_many is None or (FORMS[name] and error is None):
        return None
    return Form(name, one, many, decode, decode_many, prefill, error)


def all_forms(runs: Runs) -> dict[str, Form]:
    """Raises: FactsError unless every form is there."""
    found = forms(runs)
    if len(found) < len(FORMS):
        raise FactsError("there is no finished study yet; run the lesson first")
    return found


def roof(runs: Runs) -> tuple[float, float] | None:
    """(read GB/s, matmul TFLOP/s) as the last form recorded them, None if not measured yet. Raises: FactsError."""
    device = all_forms(runs)["int4"].one.header.device
    return (device.read_gbps, device.matmul_tflops) if device.read_gbps and device.matmul_tflops else None


def first_difference(mine: RequestRecord, other: RequestRecord) -> int | None:
    """The first output token that differs, 0 for the first; None where none does. Pure."""
    pairs = zip(mine.output_token_ids, other.output_token_ids, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), None)


# ------------------------------------------------------------------ what the lesson asks for
def facts(runs: Runs) -> dict[str, Fact]:
    found = all_forms(runs)
    plain = found["bf16"]
    values: dict[str, Fact] = {
        "many": SIZES["many"],
        "tokens": plain.record.num_output_tokens,
        "spread_low_ms": 1e3 * plain.decode.low_s,
        "spread_high_ms": 1e3 * plain.decode.high_s,
        "spread": max(form.decode.relative_spread for form in found.values()),
    }
    for name, form in found.items():
        values |= _form_facts(name, form, plain)
    values |= _model_facts(found, roof(runs))
    return values | _card_facts()


def _form_facts(name: str, form: Form, plain: Form) -> dict[str, Fact]:
    values: dict[str, Fact] = {
        f"{name}_weights": format_bytes(form.weight_bytes),
        f"{name}_ms": 1e3 * form.decode.seconds,
        f"{name}_tps": form.decode.tokens_per_s,
        f"{name}_gbps": form.decode.gbps,
        f"{name}_many_tps": form.decode_many.tokens_per_s,
        f"{name}_prefill_ms": 1e3 * form.prefill.seconds,
        f"{name}_intensity": form.decode.flops / form.decode.num_bytes,
    }
    if form is plain:
        return values
    values |= {
        f"{name}_bytes_ratio": plain.decode.num_bytes / form.decode.num_bytes,
        f"{name}_gain": plain.decode.seconds / form.decode.seconds,
        f"{name}_many_gain": plain.decode_many.seconds / form.decode_many.seconds,
        f"{name}_prefill_gain": plain.prefill.seconds / form.prefill.seconds,
        f"{name}_error": form.error.max_logit_error,
        f"{name}_mean_error": form.error.mean_logit_error,
        f"{name}_kl": form.error.mean_kl,
        f"{name}_same": form.error.num_same_choices,
    }
    first = first_difference(plain.record, form.record)
    if first is not None:
        values[f"{name}_first"] = first + 1
    return values


def _model_facts(found: Mapping[str, Form], ceilings: tuple[float, float] | None) -> dict[str, Fact]:
    if ceilings is None:
        return {}
    values: dict[str, Fact] = {"read_gbps": ceilings[0], "matmul_tflops": ceilings[1]}
    for name, form in found.items():
        values[f"{name}_model_ms"] = 1e3 * form.decode.modelled_s(ceilings)
        values[f"{name}_factor"] = form.decode.seconds / form.decode.modelled_s(ceilings)
    return values


def _card_facts() -> dict[str, Fact]:
    """The same on a card of the catalogue: what 4-bit weights gain at a small and at a large batch. Modelled."""
    card, entry = catalogue.device(CARD), catalogue.model(CARD_MODEL)
    info = entry.info("bfloat16")
    rate, read = card.rate("bfloat16").value, card.bandwidth_gbps.value
    values: dict[str, Fact] = {"card": card.name, "card_model": entry.name, "card_context": CARD_CONTEXT}
    for batch, name in zip(CARD_BATCHES, ("small", "large"), strict=True):
        flops = decode_step_flops(info, CARD_CONTEXT, batch)
        all_bytes = decode_step_bytes(info, CARD_CONTEXT, batch=batch)
        fewer = all_bytes - 0.75 * info.weight_bytes
        gain = roofline_s(flops, all_bytes, read, rate) / roofline_s(flops, fewer, read, rate)
        values |= {f"card_{name}": batch, f"card_gain_{name}": gain}
    values["card_int8_times"] = card.rate("int8").value / rate
    return values


def sections(runs: Runs) -> list[str]:
    values = facts(runs)
    shown = ["after", "why"]
    if values["spread"] > NOISY:
        shown.append("note_noisy")
    gain, ratio = values["int4_gain"], values["int4_bytes_ratio"]
    if gain < GAINS:
        shown.append("note_no_gain")
    else:
        shown.append("note_as_bytes" if gain * AS_BYTES >= ratio else "note_less_than_bytes")
    shown.append("note_roof" if "read_gbps" in values else "note_no_ceilings")
    shown.append("note_prefill")
    shown.append("note_text_parts" if "int4_first" in values else "note_text_same")
    shown.append("note_int8_parts" if "int8_first" in values else "note_int8_same")
    shown.append("note_error")
    if values["int4_mean_error"] < values["int8_mean_error"]:
        shown.append("note_int4_closer")
    return [*shown, "note_units"]


def prediction_answers(runs: Runs) -> dict[str, float | str]:
    found, values = all_forms(runs), facts(runs)
    all_tokens = found["bf16"].record.num_output_tokens
    same = values["int4_first"] - 1 if "int4_first" in values else all_tokens
    return {"gain_int4": values["int4_gain"], "same_int4": same}
