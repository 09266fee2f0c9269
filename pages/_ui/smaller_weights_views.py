"""The pictures of the lesson on smaller weights: bytes and times, points under the roof, errors, and the answers.

Times, bytes and FLOPs come from step records, errors from the probe in the headers of the quantized Runs. The roof is
that of this device with the arithmetic rate of bfloat16, which all forms are multiplied in.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import streamlit as st

from engine.lab.records import Run
from lessons.facts_error import FactsError
from lessons.roofline.points import ridge_of
from lessons.smaller_weights.facts import Form, Step, all_forms, first_difference, forms, roof
from pages._ui import charts, compare, divergence, roofline_charts, smaller_weights_charts
from pages._ui.badges import note, provenance
from pages._ui.i18n import language, t
from pages._ui.roofline_charts import Mark, Roof
from pages._ui.smaller_weights_charts import FormBars
from pages._ui.units import byte_count, factor, milliseconds, number

_NS = "smaller_weights"
NAMES = {"bf16": "bfloat16", "int8": "int8", "int4": "int4"}
_BITS = {"bf16": "16", "int8": "8", "int4": "4"}  # short enough to stand beside a point on a phone
Runs = Mapping[str, Run]


def complete(runs: Runs) -> bool:
    """Whether the Runs are enough for the pictures. Pure."""
    try:
        all_forms(runs)
    except FactsError:
        return False
    return True


def so_far(runs: Runs) -> None:
    """Bytes and times of the forms there are, while the study goes on."""
    found = forms(runs)
    if found:
        _bars(found, None, "sw_live", t("study.so_far"))


# ------------------------------------------------------------------------------------------------- bytes and times
def bars(runs: Runs) -> None:
    """What a decode step moves and takes in each form."""
    _bars(all_forms(runs), roof(runs), "sw_bars", t(f"{_NS}.bars"))


def _bars(found: Mapping[str, Form], ceilings: tuple[float, float] | None, key: str, title: str) -> None:
    lang = language()
    drawn = [
        FormBars(
            NAMES[name],
            form.decode.num_bytes / 1e6,
            1e3 * form.decode.seconds,
            1e3 * form.decode.low_s,
            1e3 * form.decode.high_s,
            1e3 * form.decode.modelled_s(ceilings) if ceilings else None,
            1e3 * form.decode_many.seconds,
            1e3 * form.decode_many.modelled_s(ceilings) if ceilings else None,
        )
        for name, form in found.items()
    ]
    many = next(iter(found.values())).decode_many.rows
    words = {
        "one": t(f"{_NS}.one"),
        "many": t(f"{_NS}.many", n=many),
        "modelled": t(f"{_NS}.modelled"),
        "y_bytes": t(f"{_NS}.y_bytes"),
        "y_ms": t(f"{_NS}.y_ms"),
    }
    first, last = drawn[0], drawn[-1]
    charts.show(
        smaller_weights_charts.bytes_and_times(drawn, words),
        key=key,
        title=title,
        alt=t(
            f"{_NS}.bars_alt",
            first=first.name,
            last=last.name,
            first_bytes=byte_count(1e6 * first.moved_mb, lang),
            last_bytes=byte_count(1e6 * last.moved_mb, lang),
            first_ms=milliseconds(first.one_ms, lang),
            last_ms=milliseconds(last.one_ms, lang),
        ),
        table=pd.DataFrame(
            [
                {
                    t(f"{_NS}.col_form"): bar.name,
                    t(f"{_NS}.col_weights"): round(form.weight_bytes / 1e6, 1),
                    t(f"{_NS}.col_moved"): round(bar.moved_mb, 1),
                    t(f"{_NS}.col_one"): round(bar.one_ms, 3),
                    t(f"{_NS}.col_one_modelled"): bar.modelled_ms and round(bar.modelled_ms, 3),
                    t(f"{_NS}.col_many"): round(bar.many_ms, 3),
                    t(f"{_NS}.col_many_modelled"): bar.many_modelled_ms and round(bar.many_modelled_ms, 3),
                    t(f"{_NS}.col_prefill"): round(1e3 * form.prefill.seconds, 3),
                    t("study.column_run"): form.one.run_id,
                }
                for bar, form in zip(drawn, found.values(), strict=True)
            ]
        ),
        provenance=lambda: _sources(found, modelled=ceilings is not None),
    )


def _sources(found: Mapping[str, Form], *, modelled: bool = False) -> None:
    provenance(*(run for form in found.values() for run in (form.one, form.many)), modelled=modelled)


# ------------------------------------------------------------------------------------------------- the roof
def under_the_roof(runs: Runs) -> None:
    """The same steps as points under the roof: decode moves to the right, prefill stays where it is."""
    found, ceilings = all_forms(runs), roof(runs)
    if ceilings is None:
        st.info(t(f"{_NS}.no_roof"), icon=":material/straighten:")
        return
    lang = language()
    marks = [
        _mark(kind, _BITS[name], step, ceilings)
        for name, form in found.items()
        for kind, step in (("prefill", form.prefill), ("decode", form.decode))
    ]
    words = {name: t(f"{_NS}.roof_{name}") for name in ("prefill", "decode", "x", "y_tera", "y_giga")}
    by_bits = words | {kind: t(f"{_NS}.roof_{kind}_bits") for kind in ("prefill", "decode")}
    ridge = ridge_of(*ceilings)
    here = Roof(t(f"{_NS}.roof_here"), ceilings[0], ceilings[1])
    plain, small = found["bf16"].decode, found["int4"].decode
    charts.show(
        roofline_charts.roofline(
            {t(f"{_NS}.modelled"): marks}, [here], by_bits, [t(f"{_NS}.roof_ridge", x=number(ridge, lang))]
        ),
        key="sw_roof",
        title=t(f"{_NS}.roof"),
        alt=t(
            f"{_NS}.roof_alt",
            low=number(plain.flops / plain.num_bytes, lang),
            high=number(small.flops / small.num_bytes, lang),
            ridge=number(ridge, lang),
        ),
        table=pd.DataFrame(
            [
                {
                    t(f"{_NS}.col_step"): words[mark.kind],
                    t(f"{_NS}.col_form"): form,
                    "FLOP/byte": round(mark.x, 3),
                    t(f"{_NS}.col_rate"): round(1e3 * mark.y, 2),
                    t(f"{_NS}.col_rate_modelled"): round(1e3 * mark.modelled, 2),
                }
                for mark, form in zip(marks, (NAMES[name] for name in found for _ in range(2)), strict=True)
            ]
        ),
        provenance=lambda: _sources(found, modelled=True),
    )
    note(t(f"{_NS}.roof_note"))


def _mark(kind: str, label: str, step: Step, ceilings: tuple[float, float]) -> Mark:
    def rate(seconds: float) -> float:
        return step.flops / seconds / 1e12

    return Mark(
        kind,
        label,
        step.flops / step.num_bytes,
        rate(step.seconds),
        rate(step.high_s),
        rate(step.low_s),
        rate(step.modelled_s(ceilings)),
    )


# ------------------------------------------------------------------------------------------------- what it costs
def errors(runs: Runs) -> None:
    """The logit errors token by token, and where the texts part."""
    found = all_forms(runs)
    plain = found["bf16"]
    small = {name: form for name, form in found.items() if form.error is not None}
    parts = {name: first_difference(plain.record, form.record) for name, form in small.items()}
    found_errors = {name: form.error for name, form in small.items()}
    divergence.errors(_NS, found_errors, parts, [form.one for form in small.values()], "sw_errors")


def answers(runs: Runs) -> None:
    """The three answers as plain text, with a mark where one leaves the first."""
    found = all_forms(runs)
    plain = found["bf16"]
    st.subheader(t(f"{_NS}.answers"), anchor=False)
    for name, form in found.items():
        place = None if form is plain else first_difference(plain.record, form.record)
        if form is plain:
            said = t(f"{_NS}.answer_plain", form=NAMES[name])
        elif place is None:
            said = t(f"{_NS}.answer_same", form=NAMES[name], n=form.record.num_output_tokens)
        else:
            said = t(f"{_NS}.answer_parts", form=NAMES[name], n=place + 1)
        divergence.answer(said, form.one, form.record.request_id, place)
    provenance(*(form.one for form in found.values()))


# ------------------------------------------------------------------------------------------------- comparison
def comparison(runs: Runs) -> None:
    """Step times beside the roofline, and the gain beside the ratio of bytes."""
    found, ceilings = all_forms(runs), roof(runs)
    rows = [_time_row(NAMES[name], form.decode, ceilings) for name, form in found.items()]
    rows += [_gain_row(NAMES[name], found["bf16"].decode, found[name].decode) for name in ("int8", "int4")]
    compare.table(rows, *(form.one for form in found.values()), key="sw_compare")
    st.markdown(t(f"{_NS}.compare_note"))


def _time_row(name: str, step: Step, ceilings: tuple[float, float] | None) -> compare.Row:
    lang = language()
    measured = 1e3 * step.seconds
    modelled = 1e3 * step.modelled_s(ceilings) if ceilings else None
    formula = t("compare.no_model")
    if ceilings:
        formula = t(
            f"{_NS}.formula_time",
            bytes=byte_count(step.num_bytes, lang),
            read=number(ceilings[0], lang),
            result=milliseconds(modelled, lang),
        )
    title = t(f"{_NS}.row_time", form=name)
    return compare.Row(title, measured, modelled, milliseconds(measured, lang), milliseconds(modelled, lang), formula)


def _gain_row(name: str, plain: Step, small: Step) -> compare.Row:
    lang = language()
    measured, modelled = plain.seconds / small.seconds, plain.num_bytes / small.num_bytes
    formula = t(
        f"{_NS}.formula_gain",
        large=byte_count(plain.num_bytes, lang),
        small=byte_count(small.num_bytes, lang),
        result=factor(modelled, lang),
    )
    title = t(f"{_NS}.row_gain", form=name)
    return compare.Row(title, measured, modelled, factor(measured, lang), factor(modelled, lang), formula)
