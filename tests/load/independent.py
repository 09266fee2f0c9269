"""The real server lesson against an independent client, on the same server and the same load.

    python -m tests.load.independent http://127.0.0.1:8000 [1x11 2x5 4x3 8x3]

``4x3``: four requests at once, three rounds. Each round sends the lesson's requests once through the ``openai`` package
and once through ``engine.runtime.outside``, in turns (A B B A), each after the same short request that wakes the server
and leaves nothing in a prefix cache. Printed are medians of mean TTFT and of throughput, and ours over theirs.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Sequence

from openai import AsyncOpenAI

from engine.lab.metrics import run_metrics
from engine.runtime.outside import observe
from lessons.real_server.scenarios import scenario

RUN_ID = "run-0123456789ab"
ROUNDS = ("1x11", "2x5", "4x3", "8x3")
Figures = tuple[float, float, int]  # mean TTFT in s, tokens/s, tokens


async def independent(url: str, prompts: Sequence[str], num_tokens: int) -> Figures:
    """Send all prompts at once, as any user of the ``openai`` package would, and time what comes."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        model = (await client.models.list()).data[0].id

        async def pieces(prompt: str, most: int) -> tuple[float, list[float]]:
            sent_s, times = time.perf_counter(), []
            messages = [{"role": "user", "content": prompt}]
            asked = {"model": model, "messages": messages, "max_tokens": most, "temperature": 0}
            async for chunk in await client.chat.completions.create(**asked, stream=True):
                if chunk.choices and chunk.choices[0].delta.content:
                    times.append(time.perf_counter())
            return sent_s, times

        await pieces("Hello", 2)
        begin_s = time.perf_counter()
        answers = await asyncio.gather(*(pieces(prompt, num_tokens) for prompt in prompts))
        num = sum(len(times) for _, times in answers)
        span_s = max(times[-1] for _, times in answers) - begin_s
        return statistics.fmean(times[0] - sent_s for sent_s, times in answers), num / span_s, num


def of_the_lesson(url: str, size: int) -> Figures:
    metrics = run_metrics(observe(scenario(f"server_{size}", url, api="chat"), RUN_ID).run)
    return metrics.ttft_s.mean, metrics.output_tokens_per_s, metrics.num_output_tokens


def main(url: str, sizes: Sequence[str]) -> None:
    for size, rounds in (map(int, text.split("x")) for text in sizes):
        requests = scenario(f"server_{size}", url, api="chat").requests
        theirs: list[Figures] = []
        ours: list[Figures] = []
        for index in range(rounds + 1):
            for is_ours in (True, False) if index % 2 else (False, True):
                if is_ours:
                    ours.append(of_the_lesson(url, size))
                else:
                    prompts = [request.prompt for request in requests]
                    theirs.append(asyncio.run(independent(url, prompts, requests[0].max_tokens)))
        (ttft, tps, num), (our_ttft, our_tps, our_num) = (
            [statistics.median(values) for values in zip(*figures[1:], strict=True)] for figures in (theirs, ours)
        )
        print(
            f"{size} at once: TTFT {1e3 * ttft:.1f} ms, ours {1e3 * our_ttft:.1f} ({our_ttft / ttft:.3f}); "
            f"{tps:.1f} tokens/s, ours {our_tps:.1f} ({our_tps / tps:.3f}); {num:g} and {our_num:g} tokens",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), sys.argv[2:] or ROUNDS)
