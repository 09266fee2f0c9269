"""A scenario as a link and back: the same scenario, short, and nothing from a link is trusted."""

from __future__ import annotations

import base64
import json
import zlib

import pytest

from engine.lab.scenario import Scenario, ScenarioError
from engine.lab.scenario_link import MOST_BYTES, decode, encode

SCENARIO = Scenario.parse(
    {
        "policy": "paged",
        "limits": {"num_blocks": 64, "prefix_cache": "radix"},
        "requests": [
            {"prompt": "为什么天是蓝的？ “x” <b>", "max_tokens": 5},
            {"prompt_token_ids": [1, 2], "arrival_s": 0.25},
        ],
    }
)


def packed(data: object) -> str:
    return base64.urlsafe_b64encode(zlib.compress(json.dumps(data).encode())).decode().rstrip("=")


def test_what_comes_back_is_what_went_in() -> None:
    text = encode(SCENARIO)
    assert decode(text) == SCENARIO
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
    assert len(text) < 300


@pytest.mark.parametrize(
    "text", ["", "x", "<b>", "äöü", encode(SCENARIO)[:-9], packed("[" * 9), packed([]), packed({})]
)
def test_a_link_that_was_cut_or_made_up_is_one_sentence(text: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        decode(text)
    assert "\n" not in str(caught.value)


def test_a_link_cannot_unfold_without_bound() -> None:
    bomb = base64.urlsafe_b64encode(zlib.compress(b"[" * (100 * MOST_BYTES), 9)).decode().rstrip("=")
    with pytest.raises(ScenarioError, match="longer than"):
        decode(bomb)
