"""The workloads of the real-server lesson: one, two, four and eight requests at once, to a server and to our engine.

It decides that both sides get the same texts, each request a text of its own (a server with a prefix cache would skip
what it has seen), and that all requests of a part are sent at the same moment: nothing has to be known of the server
to size such a load. It opens no connection.
"""

from __future__ import annotations

from typing import Literal

from engine.lab.scenario import DEFAULT_MODEL, DType, Limits, RequestSpec, Scenario, ScenarioError, ServerTarget
from lessons.parts import Part
from lessons.text import Lang

Api = Literal["completions", "chat"]
APIS: tuple[Api, ...] = ("completions", "chat")
SIZES = (1, 2, 4, 8)
SIDES = ("server", "ours")
ROLES = tuple(f"{side}_{size}" for side in SIDES for size in SIZES)
OUTPUT_TOKENS = 32
NUM_BLOCKS = 96
DEFAULT_URL = "http://127.0.0.1:8000"

_PROMPTS: dict[Lang, tuple[str, ...]] = {
    "en": (
        "Tell me about a river that changed its course.",
        "Describe a kitchen early in the morning.",
        "Why do people keep diaries for many years?",
        "Explain how a bridge carries the weight of a train.",
        "What does a gardener do in the first week of spring?",
        "Write about a letter that arrived far too late.",
        "How does a choir learn a difficult new song?",
        "Name some reasons why a town grows near a harbour.",
    ),
    "zh": (
        "讲一讲一条改过道的河。",
        "描写清晨时分的一间厨房。",
        "为什么有人多年坚持写日记？",
        "解释一座桥怎样承受火车的重量。",
        "春天的第一个星期，园丁要做些什么？",
        "写一写一封来得太晚的信。",
        "合唱团怎样学会一首难唱的新歌？",
        "说说港口附近为什么会长出一座城。",
    ),
}


def scenario(
    role: str,
    url: str = DEFAULT_URL,
    server_model: str | None = None,
    api: Api = "completions",
    dtype: DType = "float32",
    lang: Lang = "en",
    *,
    model: str = DEFAULT_MODEL,
) -> Scenario:
    """The part ``role``, one side and one size. Raises: ScenarioError, also for an address that is none."""
    if role not in ROLES:
        raise ScenarioError(f"role is {role[:40]!r}; allowed: {', '.join(ROLES)}", "role")
    side, _, size = role.partition("_")
    requests = tuple(
        RequestSpec(
            request_id=f"r{index}", prompt=prompt, chat=api == "chat", max_tokens=OUTPUT_TOKENS, ignore_eos=True
        )
        for index, prompt in enumerate(_PROMPTS[lang][: int(size)], start=1)
    )
    asked = {
        "name": f"real_server/{role}",
        "model": model,
        "policy": "chunked",
        "limits": Limits(max_requests=max(SIZES), max_batch_tokens=512, num_blocks=NUM_BLOCKS).model_dump(),
        "dtype": dtype,
        "requests": [request.model_dump() for request in requests],
    }
    if side == "server":
        asked["server"] = {"url": url, "model": server_model or None, "api": api}
    return Scenario.parse(asked)


def target(url: str, server_model: str | None, api: Api) -> ServerTarget:
    """The server as a scenario holds it. Raises: ScenarioError in one sentence."""
    found = scenario("server_1", url, server_model, api).server
    assert found is not None
    return found


def default_parts(lang: Lang) -> list[Part]:
    """See ``lessons.parts``. To record them, serve something at ``DEFAULT_URL`` first."""
    return [Part(role, scenario(role, lang=lang)) for role in ROLES]
