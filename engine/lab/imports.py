"""Files of other tools as Runs: the detailed result of ``vllm bench serve``, and the Chrome trace this lab exports.

It decides which facts of such a file a Run can carry: when each request was sent and when its tokens came. What the
file does not hold is not made up but named in ``header.observed.lacks``. A Run file of this lab is read and checked as
always. It never opens a file itself; it is given text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from engine.lab.check import check_run
from engine.lab.export import REQUESTS
from engine.lab.observed import Seen, check_observed, observed_run
from engine.lab.records import Run

MOST_CHARACTERS = 100_000_000
MOST_REQUESTS = 10_000
ACCEPTED = "a Run file, a result of `vllm bench serve --save-result --save-detailed`, or a Chrome trace exported here"


class ImportFileError(ValueError):
    """A file that cannot become a Run, in one sentence that says what it lacks."""


def import_run(text: str, name: str, run_id: str) -> Run:
    """The file's Run, checked. Pure. ``run_id`` is given to a Run that has none of its own.

    Raises: ImportFileError; RunFileError and CheckError for a Run file.
    """
    if len(text) > MOST_CHARACTERS:
        raise ImportFileError(
            f"{name} has {len(text) // 10**6} million characters; at most {MOST_CHARACTERS // 10**6} million are read"
        )
    first = text.lstrip()[:400]
    if '"kind"' in first.split("\n")[0] and '"header"' in first:
        run = Run.from_jsonl(text)
        check_run(run)
        return run
    data = _decoded(text, name)
    if "traceEvents" in data:
        run = _from_trace(data, name, run_id)
    elif "ttfts" in data or "request_throughput" in data:
        run = _from_vllm(data, name, run_id)
    else:
        raise ImportFileError(f"{name} is none of the files that can be read here; give {ACCEPTED}")
    check_observed(run)
    return run


def _decoded(text: str, name: str) -> Mapping[str, Any]:
    """The JSON object of the file; of JSON lines (results appended to one file) the last one."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        lines = [line for line in text.split("\n") if line.strip()]
        try:
            data = json.loads(lines[-1]) if lines else None
        except (ValueError, RecursionError):
            data = None
    if not text.strip():
        raise ImportFileError(f"{name} is empty; give {ACCEPTED}")
    if isinstance(data, list):
        raise ImportFileError(f"{name} holds a JSON list, not an object; give {ACCEPTED}")
    if not isinstance(data, dict):
        raise ImportFileError(f"{name} is not JSON; give {ACCEPTED}")
    return data


# ------------------------------------------------------------------------------------------------- vLLM's result
def _from_vllm(data: Mapping[str, Any], name: str, run_id: str) -> Run:
    ttfts, itls = _numbers(data, "ttfts", name), data.get("itls")
    if ttfts is None or not isinstance(itls, list) or len(itls) != len(ttfts):
        raise ImportFileError(
            f"{name} holds only sums over all requests; run `vllm bench serve` again with --save-detailed"
        )
    if not 1 <= len(ttfts) <= MOST_REQUESTS:
        raise ImportFileError(f"{name} holds {len(ttfts)} requests; 1 to {MOST_REQUESTS} are read")
    starts = _numbers(data, "start_times", name)
    known_starts = starts is not None and len(starts) == len(ttfts)
    together = data.get("request_rate") in ("inf", None, math.inf) and data.get("max_concurrency") is None
    seen = []
    for index, ttft_s in enumerate(ttfts):
        gaps = itls[index]
        failed = _at(data, "errors", index)
        if failed or not isinstance(gaps, list) or not all(_is_time(g) for g in (ttft_s, *gaps)) or ttft_s <= 0:
            continue  # a request that failed has no first token
        sent_s = starts[index] - min(starts) if known_starts else 0.0
        times = tuple(accumulate([sent_s + ttft_s, *gaps]))
        outputs, prompts = _at(data, "output_lens", index), _at(data, "input_lens", index)
        seen.append(
            Seen(
                request_id=f"r{index}",
                sent_s=sent_s,
                token_times_s=times,
                finish_reason="stop",
                num_prompt_tokens=prompts if isinstance(prompts, int) else None,
                num_output_tokens=outputs if isinstance(outputs, int) and outputs >= len(times) else None,
            )
        )
    if not seen:
        raise ImportFileError(f"{name} holds no request that succeeded; nothing can be drawn of it")
    lacks = ["finish_reason", *([] if known_starts or together else ["arrivals"])]
    if len(seen) < len(ttfts):
        lacks.append("failed_requests")
    model = str(data.get("model_id") or "unknown")[:300]
    server = str(data.get("backend") or data.get("endpoint_type") or "vllm")[:80]
    return observed_run(run_id, name, server, model, seen, lacks=lacks)


def _numbers(data: Mapping[str, Any], field: str, name: str) -> list[float] | None:
    values = data.get(field)
    if values is None:
        return None
    if not isinstance(values, list) or not all(_is_time(value) for value in values):
        raise ImportFileError(f"{name}: {field} is not a list of times in seconds")
    return values


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12


def _at(data: Mapping[str, Any], field: str, index: int) -> Any:
    values = data.get(field)
    return (
        values[index] if isinstance(values, Sequence) and not isinstance(values, str) and index < len(values) else None
    )


# ------------------------------------------------------------------------------------------------- a Chrome trace
def _from_trace(data: Mapping[str, Any], name: str, run_id: str) -> Run:
    """The requests' tracks of a trace that ``engine.lab.export`` wrote."""
    events = data["traceEvents"]
    mine = [e for e in events if isinstance(e, dict) and e.get("pid") == REQUESTS] if isinstance(events, list) else []
    tracks = {
        e.get("tid"): str(e["args"]["name"])
        for e in mine
        if e.get("name") == "thread_name" and isinstance(e.get("args"), dict) and "name" in e["args"]
    }
    seen = [found for track, request_id in tracks.items() if (found := _track(mine, track, request_id)) is not None]
    if not seen:
        raise ImportFileError(
            f"{name} is a trace without tracks of requests: it says what a program did, not when requests came and "
            "when their tokens came out. Only traces that this lab exported hold that"
        )
    about = data.get("otherData") if isinstance(data.get("otherData"), dict) else {}
    model = str(about.get("model") or "unknown")[:300]
    return observed_run(run_id, name, str(about.get("device") or "trace")[:80], model, seen[:MOST_REQUESTS])


def _track(events: Sequence[Mapping[str, Any]], track: object, request_id: str) -> Seen | None:
    arrival_s, ended_s, finish, prompt_tokens = None, None, None, 0
    times: list[float] = []
    for event in events:
        if event.get("tid") != track or not _is_time(event.get("ts")):
            continue
        moment_s, args = event["ts"] / 1e6, event.get("args") if isinstance(event.get("args"), dict) else {}
        kind = str(event.get("name"))
        if kind == "arrival":
            arrival_s = moment_s
        elif kind.startswith("finished"):
            ended_s, finish = moment_s, args.get("reason")
        elif event.get("ph") == "X" and _is_time(event.get("dur")) and event.get("cat") != "waiting":
            if event.get("cat") == "prefill":
                prompt_tokens += args.get("num_tokens", 0) if isinstance(args.get("num_tokens"), int) else 0
            if args.get("token_id") is not None:
                times.append(moment_s + event["dur"] / 1e6)
    if arrival_s is None:
        return None
    reason = finish if finish in ("stop", "length", "abort") else None
    ended = max(ended_s, times[-1]) if ended_s is not None and times else ended_s
    return Seen(request_id, arrival_s, tuple(sorted(times)), reason, prompt_tokens or None, len(times), ended)
