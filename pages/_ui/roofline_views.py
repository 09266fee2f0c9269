"""The pictures of the roofline lesson, drawn from the Runs of its study: the roof of this device, others beside it.

Measured points come from step records; the roof above them from the ceilings that the Runs recorded. Datasheet values
come from the catalogue with their source, and what would happen elsewhere is modelled as min(compute, bandwidth).
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import streamlit as st

from engine.lab import catalogue
from engine.lab.records import Run
from lessons.roofline.facts import SOURCE_DEVICE, SOURCE_RIDGE, ceilings
from lessons.roofline.points import Point, crossing_tokens, measured_crossing, points, ridge_of
from pages._ui import charts, compare, palette
from pages._ui.badges import badge, escape, note, provenance
from pages._ui.ceilings_card import datasheet_of
from pages._ui.i18n import language, t
from pages._ui.roofline_charts import Mark, Ridge, Roof, ridges, roofline
from pages._ui.units import byte_count, flop_count, milliseconds, number

_NS = "roofline"
OFFERED = tuple(
    d.id for d in catalogue.devices() if d.bandwidth_gbps and (d.rate("float32", "vector") or d.rate("bfloat16"))
)
DEFAULT_DEVICE = SOURCE_DEVICE


def name_of(point: Point) -> str:
    """What a point's step is called."""
    return t(f"{_NS}.part_{point.role}")


def so_far(runs: Mapping[str, Run]) -> None:
    """The roofline with the points there are, while the study goes on."""
    if points(runs):
        this_device(runs, key="rf_live", title=t("study.so_far"))


# ------------------------------------------------------------------------------------------------- this device
def this_device(runs: Mapping[str, Run], *, key: str = "rf_roof", title: str | None = None) -> None:
    """Measured points under the measured roof, the modelled ones hollow on it."""
    lang = language()
    found = list(points(runs).values())
    device = found[-1].run.header.device
    roof = None
    if device.read_gbps and device.matmul_tflops:
        roof = Roof(t(f"{_NS}.roof_here"), device.read_gbps, device.matmul_tflops)
    marks = [
        Mark(
            p.kind,
            str(p.size),
            p.intensity,
            p.tflops,
            p.flops / p.high_s / 1e12,
            p.flops / p.low_s / 1e12,
            roof.at(p.intensity) if roof else None,
        )
        for p in found
    ]
    top = max(found, key=lambda p: p.tflops)
    alt = t(
        f"{_NS}.roof_alt",
        n=len(found),
        low=number(min(p.intensity for p in found), lang),
        high=number(max(p.intensity for p in found), lang),
        top=_rate(top.tflops),
        ridge=number(roof.ridge, lang) if roof else "–",
    )
    roofs = [one for one in (roof, _datasheet_roof(found[-1].run)) if one]
    charts.show(
        roofline(
            {t(f"{_NS}.modelled_points"): marks},
            roofs,
            _words(),
            [t(f"{_NS}.ridge_{'there' if one.spec else 'here'}", ridge=number(one.ridge, lang)) for one in roofs],
        ),
        key=key,
        title=title or t(f"{_NS}.roof"),
        alt=alt,
        table=_point_table(found, roof),
        provenance=lambda: provenance(*(p.run for p in found), modelled=roof is not None),
    )
    if len(roofs) > (roof is not None):
        note(f"{badge('spec')} {escape(roofs[-1].name)}")
    note(t(f"{_NS}.how_to_read"))
    if roof is None:
        st.info(t(f"{_NS}.no_roof"), icon=":material/straighten:")


def _datasheet_roof(run: Run) -> Roof | None:
    """The roof that the datasheet of the Run's device promises for its number format; None where there is none."""
    device = datasheet_of(run.header.device.name, run.header.device.memory_bytes)
    if device is None or device.bandwidth_gbps is None:
        return None
    rate = device.rate(run.header.dtype) or device.rate(run.header.dtype, "vector")
    if rate is None:
        return None
    name = t(f"{_NS}.roof_spec", device=device.name)
    return Roof(name, device.bandwidth_gbps.value, rate.value, spec=True, colour=palette.PURPLE)


def _words() -> dict[str, str]:
    return {name: t(f"{_NS}.{name}") for name in ("prefill", "decode", "x", "y_tera", "y_giga")}


def _rate(tflops: float) -> str:
    lang = language()
    return f"{number(tflops, lang)} TFLOP/s" if tflops >= 1 else f"{number(tflops * 1e3, lang)} GFLOP/s"


def _point_table(found: list[Point], roof: Roof | None) -> pd.DataFrame:
    modelled = [p.modelled_s(roof.gbps, roof.tflops) * 1e3 if roof else None for p in found]
    return pd.DataFrame(
        {
            t(f"{_NS}.col_step"): [name_of(p) for p in found],
            "FLOP/byte": [round(p.intensity, 3) for p in found],
            "GFLOP/s": [round(p.tflops * 1e3, 2) for p in found],
            "GB/s": [round(p.gbps, 2) for p in found],
            t(f"{_NS}.col_ms"): [round(p.forward_s * 1e3, 2) for p in found],
            t(f"{_NS}.col_low"): [round(p.low_s * 1e3, 2) for p in found],
            t(f"{_NS}.col_high"): [round(p.high_s * 1e3, 2) for p in found],
            t(f"{_NS}.col_count"): [p.count for p in found],
            t(f"{_NS}.col_modelled"): [None if m is None else round(m, 2) for m in modelled],
            t("compare.factor"): [
                None if m is None else round(p.forward_s * 1e3 / m, 2) for p, m in zip(found, modelled, strict=True)
            ],
            t("study.column_run"): [p.run.run_id for p in found],
        }
    )


# ------------------------------------------------------------------------------------------------- another device
def another_device(runs: Mapping[str, Run], device_id: str) -> None:
    """The same steps on a device of the catalogue: hollow points on its roofs, one for each kind of unit it has."""
    lang = language()
    device, found = catalogue.device(device_id), list(points(runs).values())
    roofs, series, rows = [], {}, []
    for unit, dtype, colour in (("vector", "float32", palette.SKY), ("matrix", "bfloat16", palette.PURPLE)):
        rate = device.rate(dtype, unit)
        if rate is None:
            continue
        roof = Roof(t(f"{_NS}.roof_{unit}"), device.bandwidth_gbps.value, rate.value, spec=True, colour=colour)
        roofs.append(roof)
        series[t(f"{_NS}.points_{unit}")] = [
            Mark(p.kind, str(p.size), p.in_dtype(dtype), modelled=roof.at(p.in_dtype(dtype))) for p in found
        ]
        rows += [(p, unit, dtype, roof) for p in found]
    table = pd.DataFrame(
        {
            t(f"{_NS}.col_step"): [name_of(p) for p, *_ in rows],
            t(f"{_NS}.col_unit"): [t(f"{_NS}.unit_{unit}") for _, unit, _, _ in rows],
            "FLOP/byte": [round(p.in_dtype(dtype), 3) for p, _, dtype, _ in rows],
            "TFLOP/s": [round(roof.at(p.in_dtype(dtype)), 4) for p, _, dtype, roof in rows],
            t(f"{_NS}.col_modelled"): [
                round(p.flops / roof.at(p.in_dtype(dtype)) / 1e9, 4) for p, _, dtype, roof in rows
            ],
        }
    )
    charts.show(
        roofline(
            series, roofs, _words(), [t(f"{_NS}.ridge_there", ridge=number(roof.ridge, lang, 2)) for roof in roofs]
        ),
        key="rf_elsewhere",
        title=t(f"{_NS}.elsewhere", device=device.name),
        alt=t(
            f"{_NS}.elsewhere_alt",
            device=device.name,
            ridges=", ".join(f"{roof.name} {number(roof.ridge, lang)}" for roof in roofs),
        ),
        table=table,
        provenance=lambda: _spec_line(device, *(p.run for p in found)),
    )


def _spec_line(device: catalogue.Device, *runs: Run) -> None:
    """Where the roofs and the points come from: datasheet, formula, and the Runs whose work is set under them."""
    facts = [device.bandwidth_gbps, device.rate("float32", "vector"), device.rate("bfloat16")]
    origins = "; ".join(dict.fromkeys(f"{f.source} ({t(f'{_NS}.status_{f.status}')})" for f in facts if f))
    note(f"{badge('spec')} {t(f'{_NS}.spec_where', device=escape(device.name), source=escape(origins))}")
    note(f"{badge('modelled')} {t(f'{_NS}.modelled_there')}")
    provenance(*runs)


# ------------------------------------------------------------------------------------------------- ridge points
def all_ridges(runs: Mapping[str, Run]) -> None:
    """The ridge points of this device and of the catalogue, and the one that the source lesson gives."""
    lang = language()
    rows: list[Ridge] = []
    here = ceilings(runs)
    header = next(iter(points(runs).values())).run.header
    if here is not None:
        rows.append(Ridge(header.device.name, "here", ridge_of(*here)))
    for device in catalogue.devices():
        for kind, dtype in (("vector", "float32"), ("matrix", "bfloat16")):
            value = device.ridge(dtype, kind)
            if value:
                rows.append(Ridge(device.name, kind, value))
    words = {
        "here": t(f"{_NS}.ridge_kind_here", dtype=header.dtype),
        "vector": t(f"{_NS}.roof_vector"),
        "matrix": t(f"{_NS}.roof_matrix"),
        "x": t(f"{_NS}.ridges_x"),
    }
    matrix = [r.value for r in rows if r.kind == "matrix"]
    table = pd.DataFrame(
        {
            t(f"{_NS}.col_device"): [r.device for r in rows],
            t(f"{_NS}.col_unit"): [words[r.kind] for r in rows],
            "FLOP/byte": [round(r.value, 2) for r in rows],
        }
    )
    charts.show(
        ridges(rows, words, SOURCE_RIDGE, t(f"{_NS}.claimed", ridge=SOURCE_RIDGE)),
        key="rf_ridges",
        title=t(f"{_NS}.ridges"),
        alt=t(
            f"{_NS}.ridges_alt",
            n=len({r.device for r in rows}),
            low=number(min(matrix), lang, 2),
            high=number(max(matrix), lang, 2),
            here=number(ridge_of(*here), lang) if here else "–",
        ),
        table=table,
        provenance=lambda: _ridge_lines(runs, here is not None),
    )


def _ridge_lines(runs: Mapping[str, Run], measured: bool) -> None:
    note(f"{badge('spec')} {t(f'{_NS}.ridges_where')}")
    if measured:
        provenance(*(p.run for p in points(runs).values()))


# ------------------------------------------------------------------------------------------------- comparison
def comparison(runs: Mapping[str, Run]) -> None:
    """Times beside the roof's, and the crossing measured beside modelled."""
    lang = language()
    found, roof = points(runs), ceilings(runs)
    chosen = [found[role] for role in ("decode_1", "decode_16", "prefill_8", "prefill_512") if role in found]
    rows = [_time_row(point, roof) for point in chosen]
    one, longest = found["decode_1"], found["prefill_512"]
    ridge = ridge_of(*roof) if roof else None
    modelled = crossing_tokens(one.run.header.model, ridge) if ridge else None
    measured = measured_crossing(one, longest)
    rows.append(
        compare.Row(
            t(f"{_NS}.row_cross"),
            measured,
            modelled,
            t(f"{_NS}.tokens", n=number(round(measured), lang)),
            t(f"{_NS}.tokens", n=number(modelled, lang)),
            t(
                f"{_NS}.formula_cross",
                ridge=number(ridge, lang),
                modelled=number(modelled, lang),
                decode=milliseconds(one.forward_s * 1e3, lang),
                token=milliseconds(longest.forward_s / longest.size * 1e3, lang),
                measured=number(measured, lang),
            ),
        )
    )
    compare.table(rows, *(p.run for p in chosen), key="rf_compare")
    st.markdown(t(f"{_NS}.compare_note"))


def _time_row(point: Point, roof: tuple[float, float] | None) -> compare.Row:
    lang = language()
    measured = point.forward_s * 1e3
    modelled = point.modelled_s(*roof) * 1e3 if roof else None
    formula = t("compare.no_model")
    if roof:
        read, rate = roof
        formula = t(
            f"{_NS}.formula_time",
            bytes=byte_count(point.num_bytes, lang),
            read=number(read, lang),
            bytes_ms=milliseconds(point.num_bytes / read / 1e6, lang),
            flops=flop_count(point.flops, lang),
            rate=number(rate, lang),
            flops_ms=milliseconds(point.flops / rate / 1e9, lang),
            result=milliseconds(modelled, lang),
        )
    return compare.Row(
        name_of(point), measured, modelled, milliseconds(measured, lang), milliseconds(modelled, lang), formula
    )


def device_name(device_id: str) -> str:
    """A catalogue device as people call it."""
    return catalogue.device(device_id).name
