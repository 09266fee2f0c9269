"""The lab API: submit a Scenario, follow it, fetch its Run, cancel it; what the device is; how a text is tokenized.

Handlers are plain functions where they can be: Starlette runs those in a pool thread, so that serialising a long Run
never holds up the event loop. Following a run renews its lease. Every limit of the pages is checked again here.
"""

from __future__ import annotations

import json

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.lab.scenario import MAX_PROMPT_CHARACTERS, Scenario, ScenarioError
from engine.server.jobs import JobQueue, QueueFull
from engine.server.runs import LabRun
from engine.server.wire import ApiError, read_json
from engine.server.worker import DeviceWorker

MAX_CLIENT_ID_CHARACTERS = 128


def lab_routes(queue: JobQueue, worker: DeviceWorker) -> list[Route]:
    """The routes under /lab. Pure."""
    api = _Lab(queue, worker)
    return [
        Route("/lab/device", api.device, methods=["GET"]),
        Route("/lab/tokenize", api.tokenize, methods=["POST"]),
        Route("/lab/runs", api.submit, methods=["POST"]),
        Route("/lab/runs/{run_id}", api.follow, methods=["GET"]),
        Route("/lab/runs/{run_id}", api.cancel, methods=["DELETE"]),
        Route("/lab/runs/{run_id}/run", api.run_file, methods=["GET"]),
        Route("/lab/runs/{run_id}/texts", api.texts, methods=["GET"]),
    ]


class _Lab:
    def __init__(self, queue: JobQueue, worker: DeviceWorker) -> None:
        self._queue = queue
        self._worker = worker

    def device(self, request: Request) -> Response:
        return JSONResponse(self._worker.device_report)

    async def submit(self, request: Request) -> Response:
        body = await read_json(request, status=422)
        extra = sorted(body.keys() - {"scenario", "client_id"})
        if extra:
            raise ApiError(422, f"{extra[0]} is not a field here; send scenario and client_id", param=extra[0])
        client_id = body.get("client_id")
        if not isinstance(client_id, str) or not 1 <= len(client_id) <= MAX_CLIENT_ID_CHARACTERS:
            message = f"client_id must be a text of 1 to {MAX_CLIENT_ID_CHARACTERS} characters"
            raise ApiError(422, message, param="client_id")
        try:
            scenario = await run_in_threadpool(Scenario.parse, body.get("scenario"))
        except ScenarioError as error:
            raise ApiError(422, str(error), param=error.field) from None
        if self._worker.readiness.state == "failed":
            raise ApiError(503, f"the engine is not ready: {self._worker.readiness.message}")
        try:
            run = self._queue.submit_run(scenario, client_id)
        except QueueFull as error:
            raise ApiError(429, str(error), code=error.code, param="client_id", retry_after_s=5) from None
        status = {"run_id": run.run_id, "state": run.state, "position": self._queue.position(run)}
        return JSONResponse({**status, "total_tokens": run.total_tokens, "instance": self._queue.instance}, 202)

    def follow(self, request: Request) -> Response:
        run = self._find(request)
        since = request.query_params.get("since", "0")
        if not since.isascii() or not since.isdigit() or len(since) > 9:
            raise ApiError(422, f"since is {since[:60]!r}; allowed: a whole number from 0 up", param="since")
        return Response(self._status(run, int(since)), media_type="application/json")

    def cancel(self, request: Request) -> Response:
        run = self._find(request)
        self._queue.cancel_run(run, "cancelled on request")
        return Response(self._status(run, since=2**30), media_type="application/json")

    def run_file(self, request: Request) -> Response:
        return Response(self._finished(self._find(request), "run_file"), media_type="application/jsonl")

    def texts(self, request: Request) -> Response:
        return Response(self._finished(self._find(request), "texts"), media_type="application/json")

    async def tokenize(self, request: Request) -> Response:
        body = await read_json(request, status=422)
        text, chat = body.get("text"), body.get("chat", False)
        if not isinstance(text, str) or len(text) > MAX_PROMPT_CHARACTERS:
            message = f"text must be a text of at most {MAX_PROMPT_CHARACTERS} characters"
            raise ApiError(422, message, param="text")
        if not isinstance(chat, bool):
            raise ApiError(422, "chat must be true or false", param="chat")
        loaded = self._worker.loaded
        if loaded is None:
            raise ApiError(503, f"the engine is not ready: {self._worker.readiness.message}")

        def pieces() -> list[str]:
            tokenizer = loaded.tokenizer
            ids = tokenizer.encode_chat([{"role": "user", "content": text}]) if chat else tokenizer.encode(text)
            return [tokenizer.piece(token_id) for token_id in ids]

        found = await run_in_threadpool(pieces)
        return JSONResponse({"num_tokens": len(found), "pieces": found})

    def _find(self, request: Request) -> LabRun:
        run_id = request.path_params["run_id"]
        run = self._queue.follow(run_id)
        if run is not None:
            return run
        if self._queue.made_here(run_id):
            raise ApiError(404, f"run {run_id} is no longer kept; run it again", code="forgotten", param="run_id")
        message = f"run {run_id} is unknown to this engine; it was restarted since, run it again"
        raise ApiError(404, message, code="restarted", param="run_id")

    def _finished(self, run: LabRun, what: str) -> bytes:
        content = run.run_file() if what == "run_file" else run.texts_json()
        if content is None:
            raise ApiError(409, f"run {run.run_id} is {run.state}; its Run file exists when it is done", param="run_id")
        return content

    def _status(self, run: LabRun, since: int) -> bytes:
        position = self._queue.position(run)
        snapshot = run.snapshot(since)
        head = {
            "run_id": snapshot.run_id,
            "state": snapshot.state,
            "position": position if snapshot.state == "queued" else 0,
            "error": snapshot.error,
            "num_steps": snapshot.num_steps,
            "num_tokens": snapshot.num_tokens,
            "total_tokens": snapshot.total_tokens,
            "texts": snapshot.texts,
            "stage": snapshot.stage,
            "instance": self._queue.instance,
        }
        # The step records are JSON already; decoding them only to encode them again would cost more than all the rest.
        text = json.dumps(head, ensure_ascii=False)
        return f'{text[:-1]}, "steps": [{",".join(snapshot.steps)}]}}'.encode("utf-8", "replace")
