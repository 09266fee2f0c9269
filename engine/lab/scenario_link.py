"""A Scenario as a short text for a link, and back.

It decides the form: what differs from the defaults, as compressed JSON in letters that a link keeps. It never trusts a
link: what comes back is bounded in size and goes through ``Scenario.parse`` like any other scenario. Pure.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib

from engine.lab.scenario import Scenario, ScenarioError

MOST_BYTES = 200_000  # of the JSON; a link of a kilobyte could otherwise unfold to a gigabyte


def encode(scenario: Scenario) -> str:
    """The text of a scenario, of letters, digits, ``-`` and ``_``. Two equal scenarios have one text."""
    data = scenario.model_dump(mode="json", exclude_defaults=True)
    packed = zlib.compress(json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8"), 9)
    return base64.urlsafe_b64encode(packed).decode("ascii").rstrip("=")


def decode(text: str) -> Scenario:
    """The scenario of a text. Raises: ScenarioError, also for a text that was cut or made up."""
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        unpacking = zlib.decompressobj()
        raw = unpacking.decompress(packed, MOST_BYTES)
        if not unpacking.eof:
            raise ScenarioError(f"the scenario in the link is cut off or longer than {MOST_BYTES} bytes; copy it again")
        data = json.loads(raw)
    except (binascii.Error, zlib.error, ValueError, RecursionError) as error:
        if isinstance(error, ScenarioError):
            raise
        raise ScenarioError("the link holds no scenario; copy it again from the address bar") from None
    return Scenario.parse(data)
