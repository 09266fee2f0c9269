"""The Run: one Scenario executed by the engine on one device, as records that drive every picture and number.

A Run is a header, one record per step (a step is one forward pass) and one record per request, stored as JSON lines in
that order. Everything a page shows is a pure function of these records. This module only holds their shape: the replay
that checks them is ``engine.lab.check``, what can be computed from them is ``engine.lab.metrics``.

Times are seconds on a monotonic clock, 0 = the start of the run, except the fields that end in ``_ms``.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

SCHEMA_VERSION = 1

Phase = Literal["prefill", "decode", "recompute", "padding"]
Reason = Literal["no_blocks", "token_budget", "request_limit", "batch_not_drained"]
BlockOp = Literal["alloc", "share", "publish", "evict", "release"]
FinishReason = Literal["stop", "length", "abort"]
Backend = Literal["eager", "compiled", "graph"]


class RunFileError(ValueError):
    """A Run file that cannot be read as one. The message names the line."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="allow")  # a later version may add fields; a reader must not choke on them


class DeviceInfo(_Record):
    """Where the run happened. ``read_gbps`` and ``matmul_tflops`` are measured, None while they are not."""

    name: str
    type: str  # cpu | cuda
    threads: int
    memory_bytes: int
    read_gbps: float | None = None
    matmul_tflops: float | None = None


class ModelInfo(_Record):
    """Shape and size of the served model. ``weight_bytes`` is what one decode step reads of the weights."""

    name: str
    source: str
    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    num_parameters: int
    weight_bytes: int


class Observed(_Record):
    """What a Run that was watched from outside knows of itself, and what it lacks (``engine.lab.observed``).

    ``lacks`` names what a page cannot show of it: steps, queue, blocks, device, model, token_ids, prompt_tokens,
    arrivals, or every token's own time (single_tokens).
    """

    source: str  # the address of the server, or the name of the file
    server: str  # what it calls itself
    lacks: list[str]


class WorkerInfo(_Record):
    """One engine process of a Run that had several. Its blocks are [first_block, first_block + num_blocks)."""

    name: str
    threads: int
    first_block: int = 0
    num_blocks: int = 0


class Disturbance(_Record):
    """What else the machine did while a Run went on, as shares of all its core time; None where it is not known.

    ``is_noisy``: more than timings bear, so seconds of this Run are not to be compared closely with another's.
    """

    steal_share: float | None  # core time that the hypervisor gave to other guests
    others_share: float | None  # core time that other processes used
    is_noisy: bool


class Header(_Record):
    kind: Literal["header"] = "header"
    schema_version: int = Field(SCHEMA_VERSION, alias="schema")
    run_id: str
    created_utc: str
    scenario: dict[str, Any]
    device: DeviceInfo
    model: ModelInfo
    dtype: str
    kv_dtype: str
    block_size: int
    num_blocks: int
    versions: dict[str, str]
    observed: Observed | None = Field(None, exclude_if=lambda value: value is None)
    workers: list[WorkerInfo] = Field([], exclude_if=lambda value: not value)  # empty: one engine process
    disturbance: Disturbance | None = Field(None, exclude_if=lambda value: value is None)

    model_config = ConfigDict(extra="allow", populate_by_name=True)


class Scheduled(_Record):
    """One request's share of a step: its positions [start, start + num_tokens).

    The last ``num_draft_tokens`` of them were guesses. One fewer than its outputs of the step was right; the others
    are as if they had not been, and their positions are computed again.
    """

    request_id: str
    start: int
    num_tokens: int
    phase: Phase
    num_cached_tokens: int = 0
    is_last_chunk: bool = True
    num_draft_tokens: int = 0


class Queues(_Record):
    waiting: int
    running: int
    finished: int


class Blocks(_Record):
    """State of the block pool AFTER the step: free + cached + in_use == total."""

    total: int
    free: int
    cached: int
    in_use: int


class BlockEvent(_Record):
    op: BlockOp
    block_id: int
    request_id: str | None = None


class Refused(_Record):
    """A waiting request that was not scheduled in this step, with the reason the scheduler had."""

    request_id: str
    why: Reason


class Output(_Record):
    request_id: str
    token_id: int | None  # None when a request ends without a token in this step (an abort)
    finish_reason: FinishReason | None = None


class TimeMs(_Record):
    schedule: float = 0.0
    prepare: float = 0.0
    forward: float = 0.0
    sample: float = 0.0
    commit: float = 0.0


class Work(_Record):
    """What the step had to do, computed from shapes (``engine.lab.work``), so that time can be read against it."""

    tokens: int = 0
    padding_tokens: int = 0
    flops: int = 0
    weight_bytes: int = 0
    kv_read_bytes: int = 0
    kv_write_bytes: int = 0


class Transfer(_Record):
    """Keys and values of a request that came from the prefill worker: what was sent, counted by who received it.

    ``ready_s``: the prompt was computed; [t_begin_s, t_end_s): the sender began, the receiver had the last byte.
    """

    request_id: str
    num_tokens: int
    num_blocks: int
    num_bytes: int
    ready_s: float
    t_begin_s: float
    t_end_s: float


class RingSpan(_Record):
    """What one worker of a ring did for one layer: computed with the part of ``source``, or sent it on to the next."""

    worker: int
    layer: int
    source: int  # whose keys and values
    op: Literal["compute", "send"]
    t_begin_s: float
    t_end_s: float
    num_bytes: int = 0


class RingStep(_Record):
    """A step over a ring of workers: the lists have one entry per worker.

    ``kv_bytes``: keys and values kept, after the step. ``buffer_bytes``: parts of others on their way through, at most.
    ``pairs``: query-key pairs computed, all layers. ``spans`` of the prompt's pass; decode steps have none.
    """

    positions: list[int]
    kv_bytes: list[int]
    buffer_bytes: list[int]
    sent_bytes: list[int]
    pairs: list[int]
    spans: list[RingSpan] = []


class StepRecord(_Record):
    kind: Literal["step"] = "step"
    step: int
    t_begin_s: float
    t_end_s: float
    policy: str
    backend: Backend
    scheduled: list[Scheduled]
    queues: Queues
    blocks: Blocks
    block_events: list[BlockEvent] = []
    admitted: list[str] = []
    preempted: list[str] = []
    refused: list[Refused] = []
    outputs: list[Output] = []
    time_ms: TimeMs = TimeMs()
    work: Work = Work()
    worker: str | None = Field(None, exclude_if=lambda value: value is None)  # which process, where there are two
    received: list[Transfer] = Field([], exclude_if=lambda value: not value)  # by this worker since its last step
    ring: RingStep | None = Field(None, exclude_if=lambda value: value is None)


class RequestRecord(_Record):
    kind: Literal["request"] = "request"
    request_id: str
    num_prompt_tokens: int
    num_output_tokens: int
    arrival_s: float
    first_scheduled_s: float | None
    first_token_s: float | None
    completion_s: float | None
    num_preemptions: int
    num_cached_tokens: int
    finish_reason: FinishReason | None
    output_token_ids: list[int]
    token_times_s: list[float] | None = Field(None, exclude_if=lambda value: value is None)  # only of an observed Run


class Run(BaseModel):
    """A whole run. Immutable by convention: views read it, nothing writes to it."""

    header: Header
    steps: list[StepRecord]
    requests: list[RequestRecord]

    @property
    def run_id(self) -> str:
        return self.header.run_id

    def to_jsonl(self) -> str:
        """The Run file: header, steps, requests, one JSON object a line. Pure."""
        records: Iterable[_Record] = (self.header, *self.steps, *self.requests)
        return "".join(r.model_dump_json(by_alias=True) + "\n" for r in records)

    @classmethod
    def from_jsonl(cls, text: str) -> Run:
        """Parse a Run file. Raises: RunFileError naming the line and what is wrong with it."""
        header: Header | None = None
        steps: list[StepRecord] = []
        requests: list[RequestRecord] = []
        for number, line in enumerate(text.split("\n"), start=1):  # not splitlines: a prompt may hold U+2028
            if not line.strip():
                continue
            try:
                data = json.loads(line)
                kind = data.get("kind") if isinstance(data, dict) else None
                if kind == "header" and header is None and number == 1:
                    header = Header.model_validate(data)
                    if header.schema_version != SCHEMA_VERSION:
                        raise RunFileError(
                            f"line 1: schema {header.schema_version}; this lab reads schema {SCHEMA_VERSION}"
                        )
                elif kind == "step" and header is not None and not requests:
                    steps.append(StepRecord.model_validate(data))
                elif kind == "request" and header is not None:
                    requests.append(RequestRecord.model_validate(data))
                else:
                    raise RunFileError(
                        f"line {number}: a record of kind {kind!r} cannot stand here; "
                        "the order is header, steps, requests"
                    )
            except RunFileError:
                raise
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                where = ".".join(str(p) for p in first["loc"])
                raise RunFileError(f"line {number}: {where}: {first['msg']}") from None
            except (ValueError, RecursionError) as error:  # a number of thousands of digits is a plain ValueError
                raise RunFileError(f"line {number}: not JSON ({error})") from None
        if header is None:
            raise RunFileError("the file is empty; a Run begins with a header record")
        return cls(header=header, steps=steps, requests=requests)

    def save(self, path: str | Path) -> None:
        """Write the Run file. Effect: the file appears whole or not at all. Raises: OSError."""
        path = Path(path)
        partial = path.with_name(path.name + ".partial")
        try:
            partial.write_text(self.to_jsonl(), encoding="utf-8")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Read a Run file, packed by gzip if its name ends so. Raises: RunFileError, also when it cannot be read."""
        try:
            content = Path(path).read_bytes()
            return cls.from_jsonl((gzip.decompress(content) if str(path).endswith(".gz") else content).decode("utf-8"))
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise RunFileError(f"cannot read {path}: {error}") from None
