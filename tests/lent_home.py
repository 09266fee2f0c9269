"""A home of its own for a lab under test: models and kernels of the user's are lent to it, records are not.

Its ceilings are made up and quiet. An engine that finds none measures the machine as soon as it is idle, with all cores
for some twenty seconds, and again while others disturb it: in the middle of somebody's test.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from engine.lab.device import describe_device
from engine.lab.roof import Ceilings, Rate, _key, torch_version
from engine.settings import settings


def lend_home(home: Path) -> Path:
    """Effect: ``home`` has links to models and kernels, and ceilings. Returns it, for TOKEN_BY_TOKEN_HOME."""
    for name in ("models", "kernels"):
        lent = settings().home / name
        lent.mkdir(parents=True, exist_ok=True)
        (home / name).symlink_to(lent, target_is_directory=True)
    info = describe_device()
    ceilings = Ceilings(
        device=info.name,
        device_type=info.type,
        threads=info.threads,
        torch_version=torch_version(),
        measured_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=1.0,
        read=_made_up(20.0, "GB/s"),
        matmul={dtype: _made_up(0.1, "TFLOP/s") for dtype in ("float32", "bfloat16", "float16")},
    )
    key = _key(info.name, info.type, info.threads, torch_version())
    (home / "ceilings.json").write_text(json.dumps({key: ceilings.model_dump(mode="json")}), encoding="utf-8")
    return home


def _made_up(value: float, unit: str) -> Rate:
    return Rate(value=value, unit=unit, low=value, high=value, median=value, count=10, noisy=False, how="made up")
