"""What the wire would have to carry on a card of the catalogue, all modelled: keys and values of a prompt over the time
its prefill takes there.

It decides which cards can be offered (those that state a 16-bit rate). Nothing here is measured; sources stand beside
the figure.
"""

from __future__ import annotations

import pandas as pd

from engine.lab import catalogue
from engine.lab.work import kv_bytes_per_token, prefill_flops
from pages._ui import charts
from pages._ui import disaggregation_charts as figures
from pages._ui.badges import badge, escape, note
from pages._ui.i18n import language, t
from pages._ui.units import byte_count, number, seconds

_NS = "disaggregation"
LENGTHS = (512, 2_048, 8_192, 32_768, 131_072)  # prompt tokens


def _rate(device: catalogue.Device) -> catalogue.Fact | None:
    return device.rate("bfloat16") or device.rate("float16")


DEVICES = tuple(d.id for d in catalogue.devices() if _rate(d))
MODELS = tuple(m.id for m in catalogue.models())
DEFAULT_DEVICE, DEFAULT_MODEL = "h100", "llama-3-8b"


def draw(device_id: str, model_id: str) -> None:
    """The rate a link needs for sending to take no longer than computing, over prompt lengths."""
    lang = language()
    device, model = catalogue.device(device_id), catalogue.model(model_id)
    info, rate = model.info("bfloat16"), _rate(device)
    assert rate is not None
    sizes = [kv_bytes_per_token(info, 2.0) * length for length in LENGTHS]
    times = [prefill_flops(info, length) / (rate.value * 1e12) for length in LENGTHS]
    needed = [size / time_s / 1e9 for size, time_s in zip(sizes, times, strict=True)]
    table = pd.DataFrame(
        {
            t(f"{_NS}.x_prompt"): LENGTHS,
            t(f"{_NS}.col_kv"): [byte_count(size, lang) for size in sizes],
            t(f"{_NS}.col_prefill"): [seconds(time_s, lang) for time_s in times],
            t(f"{_NS}.y_needed"): [round(value, 3) for value in needed],
        }
    )
    names = [number(length, lang) for length in LENGTHS]
    charts.show(
        figures.needed_rates(names, needed, {"x": t(f"{_NS}.x_prompt"), "y": t(f"{_NS}.y_needed")}),
        key="dg_elsewhere",
        title=t(f"{_NS}.elsewhere", model=model.name, device=device.name),
        alt=t(
            f"{_NS}.elsewhere_alt",
            model=model.name,
            device=device.name,
            short=number(needed[0], lang),
            long=number(needed[-1], lang),
        ),
        table=table,
        provenance=lambda: _sources(device, model, rate),
    )
    note(t(f"{_NS}.elsewhere_note"))


def _sources(device: catalogue.Device, model: catalogue.Model, rate: catalogue.Fact) -> None:
    note(f"{badge('spec')} {t(f'{_NS}.spec_where', device=escape(device.name), source=escape(rate.source))}")
    note(f"{badge('spec')} {t(f'{_NS}.spec_where', device=escape(model.name), source=escape(model.source))}")
    note(f"{badge('modelled')} {t(f'{_NS}.modelled_there')}")


def device_name(device_id: str) -> str:
    return catalogue.device(device_id).name


def model_name(model_id: str) -> str:
    return catalogue.model(model_id).name
