"""Small hand-made Runs for the tests of the timeline player. Every step takes 10 ms unless said otherwise."""

from __future__ import annotations

from engine.lab.records import (
    Blocks,
    DeviceInfo,
    Header,
    ModelInfo,
    Output,
    Queues,
    Refused,
    RequestRecord,
    Run,
    Scheduled,
    StepRecord,
)

STEP_S = 0.01


def make_step(number: int, begin_s: float, scheduled: list[tuple], *, length_s: float = STEP_S, **fields) -> StepRecord:
    """A step from tuples (request_id, phase, start, num_tokens[, num_cached_tokens])."""
    chunks = [
        Scheduled(request_id=c[0], phase=c[1], start=c[2], num_tokens=c[3], num_cached_tokens=c[4] if len(c) > 4 else 0)
        for c in scheduled
    ]
    in_use, cached = fields.pop("in_use", len(chunks)), fields.pop("cached", 0)
    fields["refused"] = [Refused(request_id=r, why=w) for r, w in fields.pop("refused", [])]
    fields["outputs"] = [Output(request_id=r, token_id=7, finish_reason=f) for r, f in fields.pop("outputs", [])]
    return StepRecord(
        step=number,
        t_begin_s=begin_s,
        t_end_s=begin_s + length_s,
        policy="chunked",
        backend="eager",
        scheduled=chunks,
        queues=Queues(waiting=len(fields["refused"]), running=len(chunks), finished=0),
        blocks=Blocks(total=64, free=64 - in_use - cached, cached=cached, in_use=in_use),
        **fields,
    )


def make_run(steps: list[StepRecord], requests: list[RequestRecord], run_id: str = "run-000000000001") -> Run:
    model = ModelInfo(
        name="tiny", source="random", architecture="llama", num_layers=2, hidden_size=8, num_heads=2, num_kv_heads=1,
        head_dim=4, vocab_size=32, num_parameters=100, weight_bytes=400,
    )  # fmt: skip
    header = Header(
        run_id=run_id,
        created_utc="2026-01-01T00:00:00+00:00",
        scenario={"policy": "chunked", "limits": {"max_requests": 4, "max_batch_tokens": 64, "num_blocks": 64}},
        device=DeviceInfo(name="test CPU", type="cpu", threads=2, memory_bytes=1),
        model=model,
        dtype="float32",
        kv_dtype="float32",
        block_size=16,
        num_blocks=64,
        versions={},
    )
    return Run(header=header, steps=steps, requests=requests)


def make_request(request_id: str, arrival_s: float, first_s: float, token_s: float, end_s: float, **fields):
    values = {"num_prompt_tokens": 8, "num_output_tokens": 3, "num_preemptions": 0, "num_cached_tokens": 0}
    values |= {"finish_reason": "length"} | fields
    return RequestRecord(
        request_id=request_id,
        arrival_s=arrival_s,
        first_scheduled_s=first_s,
        first_token_s=token_s,
        completion_s=end_s,
        output_token_ids=[7] * values["num_output_tokens"],
        **values,
    )


def eventful_run(run_id: str = "run-000000000001") -> Run:
    """Everything a timeline can show: chunks, waiting, preemption, recompute, padding, cached prefix, abort, pause.

    A prefills 8+4 tokens and decodes; B waits for a block, is preempted and recomputed; C takes 16 of its 24 prompt
    tokens from the prefix cache and is aborted; D arrives at 150 ms, after a pause that begins at 90 ms.
    """

    def at(k: int) -> float:
        return k * STEP_S

    steps = [
        make_step(0, at(0), [("A", "prefill", 0, 8)], admitted=["A"], refused=[("B", "no_blocks")]),
        make_step(1, at(1), [("A", "prefill", 8, 4), ("B", "prefill", 0, 8)], admitted=["B"], in_use=3,
                  outputs=[("A", None), ("B", None)], refused=[("C", "request_limit")]),
        make_step(2, at(2), [("A", "decode", 12, 1), ("B", "decode", 8, 1)], in_use=3,
                  outputs=[("A", None), ("B", None)], refused=[("C", "request_limit")]),
        make_step(3, at(3), [("A", "decode", 13, 1)], preempted=["B"], in_use=2, cached=2, outputs=[("A", None)],
                  refused=[("B", "no_blocks"), ("C", "no_blocks")]),
        make_step(4, at(4), [("A", "decode", 14, 1), ("C", "prefill", 16, 8, 16)], admitted=["C"], in_use=4, cached=1,
                  outputs=[("A", "length"), ("C", None)], refused=[("B", "no_blocks")]),
        make_step(5, at(5), [("A", "padding", 14, 1), ("B", "recompute", 0, 10), ("C", "decode", 24, 1)], in_use=4,
                  cached=1, outputs=[("B", None), ("C", "abort")]),
        make_step(6, at(6), [("A", "padding", 14, 1), ("B", "decode", 10, 1)], in_use=3, outputs=[("B", None)]),
        make_step(7, at(7), [("A", "padding", 14, 1), ("B", "decode", 11, 1)], in_use=3, outputs=[("B", None)]),
        make_step(8, at(8), [("A", "padding", 14, 1), ("B", "decode", 12, 1)], in_use=0, outputs=[("B", "stop")]),
        make_step(9, at(15), [("D", "prefill", 0, 12)], admitted=["D"], in_use=1, outputs=[("D", None)]),
        make_step(10, at(16), [("D", "decode", 12, 1)], in_use=0, outputs=[("D", "length")]),
    ]  # fmt: skip
    requests = [
        make_request("A", 0.0, 0.0, 0.02, 0.05, num_prompt_tokens=12, num_output_tokens=4),
        make_request("B", 0.0, 0.01, 0.02, 0.09, num_output_tokens=6, num_preemptions=1, finish_reason="stop"),
        make_request("C", 0.004, 0.04, 0.05, 0.06, num_prompt_tokens=24, num_output_tokens=2, num_cached_tokens=16,
                     finish_reason="abort"),
        make_request("D", 0.15, 0.15, 0.16, 0.17, num_prompt_tokens=12, num_output_tokens=2),
    ]  # fmt: skip
    return make_run(steps, requests, run_id)


def long_run(num_steps: int, num_requests: int, max_running: int, tokens: int = 60) -> Run:
    """A long, busy run: requests join as others finish, the rest waits at the request limit."""
    waiting, running, steps, records = list(range(num_requests)), {}, [], {}
    made: dict[int, int] = {}
    for k in range(num_steps):
        begin = k * 0.013
        chunks, outputs, admitted = [], [], []
        if len(running) < max_running and waiting:
            new = waiting.pop(0)
            running[new] = 0
            admitted.append(f"r{new}")
            records.setdefault(new, [0.0, begin, begin + 0.012, None])
        for r in list(running):
            name = f"r{r}"
            if running[r] == 0:
                chunks.append((name, "prefill", 0, 32 + r % 7))
                running[r] = 32 + r % 7
                made[r] = 1
                outputs.append((name, None))
                continue
            chunks.append((name, "decode", running[r], 1))
            running[r] += 1
            made[r] += 1
            done = made[r] >= tokens + r % 11
            outputs.append((name, "length" if done else None))
            if done:
                records[r][3] = begin + 0.012
                del running[r]
        refused = [(f"r{r}", "request_limit") for r in waiting]
        steps.append(make_step(k, begin, chunks, length_s=0.0121, admitted=admitted, outputs=outputs,
                           in_use=min(64, len(running) * 2), refused=refused))  # fmt: skip
        if not running and not waiting:
            break
    requests = [
        make_request(f"r{r}", *times, num_output_tokens=made[r]) for r, times in sorted(records.items())
    ]  # fmt: skip
    return make_run(steps, requests, "run-0000000000ff")
