"""What 128 K tokens would take on cards of the catalogue, all modelled: memory, prefill time and the link for a ring.

It decides which cards can be offered (those that state memory and a 16-bit rate). Nothing here is measured; sources
stand beside the figure.
"""

from __future__ import annotations

import pandas as pd

from engine.lab import catalogue
from engine.lab.ring import hiding_bytes_per_s
from engine.lab.work import kv_cache_bytes, prefill_flops
from pages._ui import charts
from pages._ui import ring_attention_charts as figures
from pages._ui.badges import badge, escape, note
from pages._ui.i18n import language, t
from pages._ui.units import byte_count, number, seconds

_NS = "ring_attention"
COUNTS = (1, 2, 4, 8, 16)  # devices
LONG_TOKENS = 131_072


def _rate(device: catalogue.Device) -> catalogue.Fact | None:
    return device.rate("bfloat16") or device.rate("float16")


DEVICES = tuple(d.id for d in catalogue.devices() if d.memory_gb and _rate(d))
MODELS = tuple(m.id for m in catalogue.models())
DEFAULT_DEVICE, DEFAULT_MODEL = "rtx-4090", "llama-3-8b"


def draw(device_id: str, model_id: str) -> None:
    """Prefill of 128 K tokens over 1 to 16 devices: memory, time, and the link that hides the transfers."""
    lang = language()
    device, model = catalogue.device(device_id), catalogue.model(model_id)
    info, rate = model.info("bfloat16"), _rate(device)
    assert rate is not None and device.memory_gb is not None
    room = device.memory_gb.value * 1e9
    weights, cache = 2 * info.num_parameters, kv_cache_bytes(info, LONG_TOKENS, 2.0)
    taken = [weights + cache / n for n in COUNTS]
    fits = [size <= room for size in taken]
    times = [prefill_flops(info, LONG_TOKENS) / n / (rate.value * 1e12) for n in COUNTS]
    needed = [
        None if n == 1 else hiding_bytes_per_s(info, LONG_TOKENS, n, rate.value * 1e12, 2.0) / 1e9 for n in COUNTS
    ]
    table = pd.DataFrame(
        {
            t(f"{_NS}.x_devices"): COUNTS,
            t(f"{_NS}.col_kv_each"): [byte_count(cache / n, lang) for n in COUNTS],
            t(f"{_NS}.col_memory"): [byte_count(size, lang) for size in taken],
            t(f"{_NS}.col_fits"): [t(f"{_NS}.fits_{'yes' if fit else 'no'}") for fit in fits],
            t(f"{_NS}.y_seconds"): [seconds(value, lang) for value in times],
            t(f"{_NS}.col_link"): ["–" if value is None else number(value, lang) for value in needed],
        }
    )
    words = {name: t(f"{_NS}.{name}") for name in ("fits", "too_large")}
    charts.show(
        figures.devices(COUNTS, times, fits, {**words, "x": t(f"{_NS}.x_devices"), "y": t(f"{_NS}.y_seconds")}),
        key="ra_elsewhere",
        title=t(f"{_NS}.elsewhere", model=model.name, device=device.name),
        alt=t(
            f"{_NS}.elsewhere_alt",
            model=model.name,
            device=device.name,
            one=seconds(times[0], lang),
            most=seconds(times[-1], lang),
        ),
        table=table,
        provenance=lambda: _sources(device, model, rate),
    )
    first = next((n for n, fit in zip(COUNTS, fits, strict=True) if fit), None)
    values = {"weights": byte_count(weights, lang), "cache": byte_count(cache, lang), "room": byte_count(room, lang)}
    told = t(f"{_NS}.fits_from", n=first, **values) if first else t(f"{_NS}.fits_never", n=COUNTS[-1], **values)
    note(f"{told} {badge('modelled')}")
    if model.context < LONG_TOKENS:
        note(t(f"{_NS}.beyond_context", model=model.name, context=number(model.context, lang)))


def _sources(device: catalogue.Device, model: catalogue.Model, rate: catalogue.Fact) -> None:
    listed = "; ".join(dict.fromkeys([rate.source, device.memory_gb.source]))
    note(f"{badge('spec')} {t(f'{_NS}.spec_where', device=escape(device.name), source=escape(listed))}")
    note(f"{badge('spec')} {t(f'{_NS}.spec_where', device=escape(model.name), source=escape(model.source))}")
    note(f"{badge('modelled')} {t(f'{_NS}.modelled_there')}")


def device_name(device_id: str) -> str:
    return catalogue.device(device_id).name


def model_name(model_id: str) -> str:
    return catalogue.model(model_id).name
