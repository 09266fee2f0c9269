"""What a Prometheus server can scrape from ``/metrics``, under the field's usual names.

A registry of its own, so that nothing else in the process leaks in and tests can have as many as they like. It counts
what the worker tells it and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from engine.server.jobs import GenerationJob

PREFIX = "token_by_token"
LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
TPOT_BUCKETS_S = (0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)


class TokensEvent(Protocol):
    text: str
    finish_reason: str | None
    num_prompt_tokens: int
    num_output_tokens: int


class Metrics:
    """Counters, gauges and histograms of one server. ``counts`` (the queue's) is read at scrape time."""

    def __init__(self, counts: Callable[[], dict[str, int]]) -> None:
        self._registry = CollectorRegistry()
        for name, key, text in (
            ("num_requests_running", "requests_running", "OpenAI requests being served"),
            ("num_requests_waiting", "requests_waiting", "OpenAI requests in the queue"),
            ("num_lab_runs_running", "runs_running", "lab runs on the device (0 or 1)"),
            ("num_lab_runs_waiting", "runs_waiting", "lab runs in the queue"),
        ):
            self._gauge(name, text).set_function(lambda key=key: counts()[key])
        self._kv_usage = self._gauge("kv_cache_usage_perc", "share of the serving engine's KV blocks in use, 0 to 1")
        self._prompt_tokens = self._counter("prompt_tokens", "prompt tokens of finished OpenAI requests")
        self._generation_tokens = self._counter("generation_tokens", "tokens generated for OpenAI requests")
        self._requests = self._counter("requests", "OpenAI requests by how they ended", ("finished_reason",))
        self._runs = self._counter("lab_runs", "lab runs by how they ended", ("outcome",))
        self._ttft = self._histogram("time_to_first_token_seconds", "arrival to first token", LATENCY_BUCKETS_S)
        self._tpot = self._histogram("time_per_output_token_seconds", "mean gap after the first token", TPOT_BUCKETS_S)
        self._e2e = self._histogram("e2e_request_latency_seconds", "arrival to last token", LATENCY_BUCKETS_S)
        for outcome in ("done", "failed", "cancelled"):
            self._runs.labels(outcome)
        for reason in ("stop", "length", "abort", "error", "refused"):
            self._requests.labels(reason)

    def run_ended(self, outcome: str) -> None:
        self._runs.labels(outcome).inc()

    def request_ended(self, reason: str) -> None:
        self._requests.labels(reason).inc()

    def kv_blocks(self, num_in_use: int, num_total: int) -> None:
        self._kv_usage.set(num_in_use / num_total if num_total else 0.0)

    def tokens_made(self, job: GenerationJob, event: TokensEvent, now_s: float) -> None:
        """Effect: count the tokens of one event and, on the last one, the request's latencies. Times in seconds."""
        new_tokens = event.num_output_tokens - job.num_output_tokens
        job.num_output_tokens = event.num_output_tokens
        self._generation_tokens.inc(max(0, new_tokens))
        if job.first_token_s is None and new_tokens > 0:
            job.first_token_s = now_s
            self._ttft.observe(now_s - job.submitted_s)
        if event.finish_reason in ("stop", "length"):
            self._prompt_tokens.inc(event.num_prompt_tokens)
            self._e2e.observe(now_s - job.submitted_s)
            if job.first_token_s is not None and event.num_output_tokens > 1:
                self._tpot.observe((now_s - job.first_token_s) / (event.num_output_tokens - 1))

    def exposition(self) -> bytes:
        """The text a Prometheus server reads. Pure."""
        return generate_latest(self._registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", text, registry=self._registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"{PREFIX}_{name}", text, buckets=buckets, registry=self._registry)
