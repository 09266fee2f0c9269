"""Many impatient clients at once: whatever they do, the line empties, every block is free, the server still answers."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import httpx
import pytest

from tests.fake_runtime import NUM_BLOCKS, Knobs
from tests.live_server import Live, eventually, live_server, scenario

NUM_CLIENTS = 12
NUM_ACTIONS = 25


def one_client(live: Live, seed: int) -> int:
    """A client that submits, follows, cancels, asks and leaves at random. Returns how many answers were 5xx."""
    rng = random.Random(seed)
    num_bugs = 0
    with httpx.Client(base_url=live.url, timeout=20, trust_env=False) as http:
        for _ in range(NUM_ACTIONS):
            action = rng.choice(["run", "run and cancel", "ask", "stream and leave", "nonsense"])
            if action.startswith("run"):
                body = {"scenario": scenario(rng.randint(1, 20)), "client_id": f"client {seed}"}
                response = http.post("/lab/runs", json=body)
                if response.status_code == 202:
                    path = f"/lab/runs/{response.json()['run_id']}"
                    if action == "run and cancel":
                        response = http.delete(path)
                    else:
                        eventually(lambda path=path: http.get(path).json()["state"] not in ("queued", "running"))
            elif action == "nonsense":
                response = http.post(rng.choice(["/lab/runs", "/v1/completions"]), content=rng.randbytes(20))
            else:
                body = {"model": "fake", "prompt": "x", "max_tokens": rng.randint(1, 40), "stream": "leave" in action}
                with http.stream("POST", "/v1/completions", json=body) as response:
                    if action == "ask":
                        response.read()
                    else:
                        next(response.iter_bytes(), None)
            num_bugs += response.status_code >= 500
    return num_bugs


@pytest.mark.timeout(120)
def test_a_crowd_leaves_nothing_behind():
    with live_server(Knobs(step_s=0.0005)) as live:
        with ThreadPoolExecutor(NUM_CLIENTS) as pool:
            assert sum(pool.map(lambda seed: one_client(live, seed), range(NUM_CLIENTS))) == 0
        eventually(lambda: sum(live.server.queue.counts().values()) == 0)
        assert live.knobs.serving.free_blocks == NUM_BLOCKS
        assert not live.server.queue._open_runs and not live.server.queue._open_generations
        stretches = sorted((begin, end) for _, _, begin, end in live.knobs.stretches)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(stretches))
        assert live.http.get("/readyz").status_code == 200
