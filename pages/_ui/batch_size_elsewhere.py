"""What a batch would gain on a card of the catalogue, all modelled: throughput, and what ends the gain there.

It decides which cards can be offered (those that state memory, bandwidth and a 16-bit rate) and says in one sentence
whether ridge or memory comes first. Nothing here is measured; sources stand beside the figure.
"""

from __future__ import annotations

import pandas as pd
import streamlit as st

from engine.lab import catalogue
from engine.lab.records import ModelInfo
from engine.lab.work import kv_bytes_per_token, num_requests_that_fit, stored_weight_bytes
from lessons.batch_size.facts import SHORT_CONTEXT, SOURCE_DEVICE, SOURCE_MODEL
from lessons.batch_size.points import crossing_batch, shared_step
from pages._ui import batch_size_charts as figures
from pages._ui import charts
from pages._ui.badges import badge, escape, note
from pages._ui.i18n import language, t
from pages._ui.prose import mend
from pages._ui.units import byte_count, number

_NS = "batch_size"
SIZES = tuple(2**k for k in range(10))  # requests, in the modelled picture


def _rate(device: catalogue.Device) -> catalogue.Fact | None:
    """Arithmetic rate for a model in 16 bits."""
    return device.rate("bfloat16") or device.rate("float16")


DEVICES = tuple(d.id for d in catalogue.devices() if d.bandwidth_gbps and d.memory_gb and _rate(d))
MODELS = tuple(m.id for m in catalogue.models())
DEFAULT_DEVICE, DEFAULT_MODEL = SOURCE_DEVICE, SOURCE_MODEL


def draw(device_id: str, model_id: str) -> None:
    """Throughput over the batch on a card of the catalogue, with the batches at which ridge and memory end the gain."""
    lang = language()
    device, model = catalogue.device(device_id), catalogue.model(model_id)
    info, rate = model.info("bfloat16"), _rate(device)
    read, room = device.bandwidth_gbps.value, device.memory_gb.value * 1e9
    steps = [shared_step(info, size, SHORT_CONTEXT, read, rate.value) for size in SIZES]
    fit = num_requests_that_fit(info, room, SHORT_CONTEXT, 2.0)
    crossing = crossing_batch(info, SHORT_CONTEXT, rate.value * 1e3 / read)
    limits = []
    if fit >= 1 and fit <= SIZES[-1]:
        limits.append(figures.Limit(fit, t(f"{_NS}.limit_memory", n=fit)))
    if crossing is not None and crossing <= SIZES[-1]:
        limits.append(figures.Limit(crossing, t(f"{_NS}.limit_ridge", n=crossing)))
    table = pd.DataFrame(
        {
            t(f"{_NS}.x"): SIZES,
            t(f"{_NS}.col_modelled"): [round(s.seconds * 1e3, 3) for s in steps],
            t(f"{_NS}.y_rate"): [round(s.tokens_per_s, 1) for s in steps],
            t(f"{_NS}.col_util_modelled"): [round(100 * s.utilization, 2) for s in steps],
            t(f"{_NS}.col_fits"): [t(f"{_NS}.fits_yes" if size <= fit else f"{_NS}.fits_no") for size in SIZES],
        }
    )
    words = {"name": t(f"{_NS}.modelled_name", model=model.name), "x": t(f"{_NS}.x"), "y": t(f"{_NS}.y_rate")}
    charts.show(
        figures.modelled_throughput(SIZES, [s.tokens_per_s for s in steps], limits, words),
        key="bs_elsewhere",
        title=t(f"{_NS}.elsewhere", model=model.name, device=device.name),
        alt=t(
            f"{_NS}.elsewhere_alt",
            model=model.name,
            device=device.name,
            one=number(steps[0].tokens_per_s, lang),
            fit=number(fit, lang),
        ),
        table=table,
        provenance=lambda: _spec_lines(device, model, rate),
    )
    st.markdown(mend(_elsewhere_words(info, fit, crossing, rate.value * 1e3 / read)))


def _elsewhere_words(info: ModelInfo, fit: int, crossing: int | None, ridge: float) -> str:
    """What ends the gain there, in a sentence."""
    lang = language()
    own = byte_count(kv_bytes_per_token(info, 2.0) * SHORT_CONTEXT, lang)
    weights = byte_count(stored_weight_bytes(info), lang)
    values = {"fit": fit, "own": own, "weights": weights, "ridge": number(ridge, lang), "context": SHORT_CONTEXT}
    if fit < 1:
        text = t(f"{_NS}.ends_no_room", **values)
    elif crossing is None:
        text = t(f"{_NS}.ends_never", **values)
    else:
        text = t(f"{_NS}.ends_{'memory' if fit < crossing else 'ridge'}", crossing=crossing, **values)
    return f"{text} {badge('modelled')}"


def _spec_lines(device: catalogue.Device, model: catalogue.Model, rate: catalogue.Fact) -> None:
    sources = [device.bandwidth_gbps.source, rate.source, device.memory_gb.source]
    listed = "; ".join(dict.fromkeys(sources))
    note(f"{badge('spec')} {t(f'{_NS}.spec_where', device=escape(device.name), source=escape(listed))}")
    note(f"{badge('spec')} {t(f'{_NS}.spec_where', device=escape(model.name), source=escape(model.source))}")
    note(f"{badge('modelled')} {t(f'{_NS}.modelled_there', context=SHORT_CONTEXT)}")


def device_name(device_id: str) -> str:
    return catalogue.device(device_id).name


def model_name(model_id: str) -> str:
    return catalogue.model(model_id).name
