"""The measured ceilings of this device, when and how they were measured, and the datasheet beside them.

The engine measures them when it is idle and keeps them; while a measurement was disturbed it repeats it by itself. This
module shows what the engine reports, or, without it, what the Runs recorded. It decides only which catalogue entry is
this device, and says so where there is none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st
from pydantic import ValidationError

from engine.lab import catalogue
from engine.lab.records import DeviceInfo
from engine.lab.roof import Ceilings, Rate
from pages._ui.badges import badge, escape, note, shows_recorded
from pages._ui.i18n import language, t
from pages._ui.units import number, percent

_MAKERS = frozenset({"nvidia", "geforce", "amd", "instinct", "tesla"})
_UNSAID = frozenset({"sxm"})  # a driver names the PCIe variant, and leaves this one out now and then


def datasheet_of(name: str, memory_bytes: int) -> catalogue.Device | None:
    """The catalogue's entry for a device by the name its driver gives; the nearest memory size decides. Pure."""
    here = set(_words(name))
    fitting = []
    for device in catalogue.devices():
        words = _words(device.name)
        if set(words) - _UNSAID <= here and not ("pcie" in here and "sxm" in words):
            gap = abs((device.memory_gb.value if device.memory_gb else 0) - memory_bytes / 1e9)
            fitting.append((-len(set(words) & here), gap, device))
    return min(fitting, key=lambda entry: entry[:2])[2] if fitting else None


def _words(name: str) -> list[str]:
    """The parts of a name that tell devices apart: no maker, no memory size, SXM4 as SXM."""
    bare = re.sub(r"\d+ ?gb\b", " ", name.lower())
    words = (re.sub(r"^sxm\d$", "sxm", word) for word in re.findall(r"[a-z0-9]+", bare))
    return [word for word in words if word not in _MAKERS]


def measured(about: Mapping[str, Any] | None) -> Ceilings | None:
    """The ceilings in the engine's report of its device; None where it has none yet. Pure."""
    try:
        return Ceilings.model_validate((about or {}).get("ceilings"))
    except ValidationError:
        return None


def draw(about: Mapping[str, Any] | None, recorded: DeviceInfo, dtype: str) -> None:
    """``about``: the engine's report, None without an engine; ``recorded``: the device in the header of a Run."""
    lang = language()
    st.subheader(t("ceilings.title"), anchor=False)
    found = measured(about)
    if found is not None and (found.device != recorded.name or shows_recorded()):
        found = None  # the Runs are of another machine: its ceilings are those that they recorded
    rows = _rows(found) if found else _recorded_rows(recorded, dtype)
    if not rows:
        st.info(t("ceilings.none"), icon=":material/straighten:")
        return
    spec = datasheet_of(recorded.name, recorded.memory_bytes)
    frame = pd.DataFrame(
        {
            t("ceilings.col_what"): [t("ceilings.read") if what == "read" else _matmul(what) for what, *_ in rows],
            t("compare.measured"): [
                f"**{number(value, lang)} {unit}** {badge('measured')}" for _, value, unit, _ in rows
            ],
            t("ceilings.col_spread"): ["–" if r is None else percent(r.spread, lang) for *_, r in rows],
            t("ceilings.col_spec"): [_spec(spec, what, unit) for what, _, unit, _ in rows],
        }
    )
    with st.container(key="ceilings_table"):
        st.table(frame, hide_index=True, border="horizontal", alt=t("ceilings.alt"))
    if spec is None:
        note(t("ceilings.no_spec", device=escape(recorded.name)))
    else:
        source = escape(spec.bandwidth_gbps.source if spec.bandwidth_gbps else "")
        note(f"{badge('spec')} {t('common.sourced', name=escape(spec.name), source=source)}")
    if found is None:
        note(t("ceilings.from_run"))
        return
    when = found.measured_utc[:16].replace("T", " ")
    between = "；" if language() == "zh" else "; "
    how = between.join(dict.fromkeys(_how(rate.how) for rate in (found.read, *found.matmul.values())))
    note(t("ceilings.when", when=when, seconds=number(round(found.seconds), lang), how=how))
    if found.disturbed or found.noisy:
        st.warning(t("ceilings.disturbed" if found.disturbed else "ceilings.noisy"), icon=":material/vibration:")


def _how(words: str) -> str:
    """How a rate was measured, in the language of the page; as the engine says it where it says something new."""
    if read := re.fullmatch(r"sum over a float32 buffer of (\d+) MB(?:, in (\d+) threads?)?", words):
        return t("ceilings.how_read", size=f"{read[1]} MB", threads=read[2] or "–")
    if product := re.fullmatch(r"(\d+) x (\d+) matmul in (\w+)", words):
        return t("ceilings.how_matmul", rows=product[1], columns=product[2], dtype=product[3])
    return escape(words)


_Row = tuple[str, float, str, Rate | None]


def _rows(found: Ceilings) -> list[_Row]:
    rows: list[_Row] = [("read", found.read.value, "GB/s", found.read)]
    return rows + [(dtype, rate.value, "TFLOP/s", rate) for dtype, rate in found.matmul.items()]


def _recorded_rows(device: DeviceInfo, dtype: str) -> list[_Row]:
    rows = [("read", device.read_gbps, "GB/s", None), (dtype, device.matmul_tflops, "TFLOP/s", None)]
    return [row for row in rows if row[1]]


def _matmul(dtype: str) -> str:
    return t("ceilings.matmul", dtype=dtype)


def _spec(device: catalogue.Device | None, what: str, unit: str) -> str:
    if device is None:
        return "–"
    fact = device.bandwidth_gbps if what == "read" else device.rate(what) or device.rate(what, "vector")
    return f"{number(fact.value, language())} {unit} {badge('spec')}" if fact else "–"
