"""The workload of the prefix caching lesson: questions about a few reports, all behind the same instruction.

``none`` computes every prompt from its first token. ``hash`` and ``radix`` keep what was computed and find it again, in
order of arrival; ``aware`` is ``radix`` with those first whose beginning is in the cache. All requests are there at the
start and the reports take turns, so that a small pool has to forget one before it is asked for again. Answers have a
fixed length, since only prompts matter here. The texts are English in both languages, to be equally long.
"""

from __future__ import annotations

from engine.lab.scenario import DEFAULT_MODEL, DType, Scenario, ScenarioError
from lessons.parts import Part
from lessons.text import Lang

PARTS = ("none", "hash", "radix", "aware")
REPORTS: tuple[int, ...] = (2, 4, 6)
POOL_POSITIONS: tuple[int, ...] = (384, 640, 1_280)  # what the pool holds in all, however it is cut into blocks
BLOCK_SIZES: tuple[int, ...] = (8, 16, 32)
DEFAULT_REPORTS, DEFAULT_POOL_POSITIONS, DEFAULT_BLOCK_SIZE = 4, POOL_POSITIONS[0], 16
QUESTIONS_PER_REPORT = 3
PLACES = 2
ANSWER_TOKENS = 8

_INSTRUCTION = (
    "You are the assistant of a town archive. Below is one report from its files, then one question about it. Answer "
    "in a single short sentence, use nothing but the report, and say so if the report does not tell.\n\nReport: "
)
_TEXTS = (
    "On the night of 3 March the lamp of the north lighthouse went out for eleven minutes. The keeper, Ada "
    "Brandt, had seen the oil run low, but the delivery by boat was four days late because of the ice. She "
    "burned the last candles of the house in the lamp room until her son came over the frozen bay with two cans "
    "of oil on a sledge. Two ships passed in that time, and neither came to harm.",
    "The bakery in Mill Lane had stood closed for nine years when the Okafor sisters opened it again in the "
    "autumn. They kept the old brick oven, which needs three hours to get hot, and bought a new mixer from a "
    "school kitchen for two hundred crowns. On the first morning sixty people stood in line before six o'clock. "
    "The rye bread was sold out at seven, the plum cake at half past eight.",
    "The branch line to Hollow Hill was built in 1891 for the slate quarry and has carried no stone since 1962. "
    "A club of forty members now runs a steam train on it every second Sunday from May to October. The engine "
    "is named Thistle; it burns half a ton of coal on a day of six journeys. Last year the club paid more for "
    "the insurance than it did for the coal, and it is looking for members who can weld.",
    "The botanical garden lost the roof of its palm house in the storm of 12 January. Two gardeners, Ruiz and "
    "Halvorsen, spent the night covering the oldest palm with blankets and a parachute that the flying club had "
    "lent. The palm is one hundred and thirty years old and eleven metres high. It kept all but four of its "
    "leaves. The new roof is to be ready before the first frost and will cost less than was feared.",
    "The observatory on Table Hill opens its dome to visitors on clear Fridays. Its telescope has a mirror of "
    "sixty centimetres, ground by hand by the watchmaker Silas Meyer between 1927 and 1931. A school class "
    "found a comet with it in 1974, which bears the name of the class. Since the new street lamps were put up "
    "in the valley, only the brighter half of the stars in its old catalogue can still be seen.",
    "The town's last ferry was taken out of service on 30 September, when the new bridge was opened. She was "
    "called Margarete and had crossed the river forty times a day for fifty-one years. Her pilot, Jonas Lind, "
    "was given the wheel as a present and drives a bus over the bridge now. The hull was bought by a puppet "
    "theatre, which plays on board in summer and stores its puppets in the engine room in winter.",
)
_QUESTIONS = (
    "\n\nQuestion: Who did the most in this report?\nAnswer:",
    "\n\nQuestion: Which number in it surprised you, and why?\nAnswer:",
    "\n\nQuestion: What is told first in the report?\nAnswer:",
)


def archive(
    part: str,
    reports: int = DEFAULT_REPORTS,
    pool_positions: int = DEFAULT_POOL_POSITIONS,
    block_size: int = DEFAULT_BLOCK_SIZE,
    dtype: DType = "float32",
    *,
    model: str = DEFAULT_MODEL,
) -> Scenario:
    """All questions at once, under one part's way with prefixes. Raises: ScenarioError."""
    if part not in PARTS:
        raise ScenarioError(f"part is {part[:40]!r}; allowed: {', '.join(PARTS)}", "part")
    if not 1 <= reports <= len(_TEXTS):
        raise ScenarioError(f"reports is {reports}; allowed: 1 to {len(_TEXTS)}", "reports")
    return Scenario.parse(
        {
            "name": f"prefix_caching/{part}",
            "model": model,
            "policy": "cache_aware" if part == "aware" else "chunked",
            "limits": {
                "max_requests": PLACES,
                "max_batch_tokens": 256,
                "num_blocks": pool_positions // block_size,
                "prefix_cache": "radix" if part == "aware" else part,
            },
            "dtype": dtype,
            "block_size": block_size,
            "requests": [
                {
                    "request_id": f"{'ABCDEF'[report]}{number}",
                    "prompt": _INSTRUCTION + _TEXTS[report] + question,
                    "max_tokens": ANSWER_TOKENS,
                    "ignore_eos": True,
                }
                for number, question in enumerate(_QUESTIONS[:QUESTIONS_PER_REPORT], start=1)
                for report in range(reports)
            ],
        }
    )


def default_parts(lang: Lang) -> list[Part]:
    """See ``lessons.parts``. The texts are English in both languages."""
    return [Part(part, archive(part)) for part in PARTS]
