"""The OpenAI API: models, completions and chat completions, streamed and not.

A handler validates and tokenizes (a bad request never queues), puts one job into the queue and passes on what the
worker delivers. The status line is sent when the engine has taken the request, so every refusal has its HTTP code.
Invariant: however a handler ends (answered, failed, client gone), its job is cancelled or over, and its blocks are free
within one step.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from engine.server import openai_schema
from engine.server.jobs import Delta, Failure, GenerationJob, GenerationSpec, JobQueue, QueueFull
from engine.server.openai_schema import Ask
from engine.server.protocols import LoadedModel
from engine.server.sentences import is_for_the_user
from engine.server.wire import ApiError, read_json
from engine.server.worker import DeviceWorker

T = TypeVar("T")


@dataclass(frozen=True)
class Shape:
    """What differs between the two endpoints: ids, object names and how text is wrapped."""

    id_prefix: str
    whole: str
    chunk: str
    choice: Callable[[str, str | None, bool], dict]  # (text, finish_reason, is_chunk) -> choice


def _text_choice(text: str, finish_reason: str | None, is_chunk: bool) -> dict:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}


def _chat_choice(text: str, finish_reason: str | None, is_chunk: bool) -> dict:
    if is_chunk:
        delta = {"content": text} if text or finish_reason is None else {}
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    message = {"role": "assistant", "content": text, "refusal": None}
    return {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}


COMPLETION = Shape("cmpl-", "text_completion", "text_completion", _text_choice)
CHAT = Shape("chatcmpl-", "chat.completion", "chat.completion.chunk", _chat_choice)


def openai_routes(queue: JobQueue, worker: DeviceWorker) -> list[Route]:
    """The routes under /v1. Pure."""
    api = _OpenAI(queue, worker)
    return [
        Route("/v1/models", api.models, methods=["GET"]),
        Route("/v1/models/{model:path}", api.model, methods=["GET"]),
        Route("/v1/completions", api.completions, methods=["POST"]),
        Route("/v1/chat/completions", api.chat_completions, methods=["POST"]),
    ]


class _OpenAI:
    def __init__(self, queue: JobQueue, worker: DeviceWorker) -> None:
        self._queue = queue
        self._worker = worker
        self._created = int(time.time())

    async def models(self, request: Request) -> Response:
        loaded = self._worker.loaded
        return JSONResponse({"object": "list", "data": [self._card(loaded)] if loaded else []})

    async def model(self, request: Request) -> Response:
        loaded = self._loaded()
        self._check_model(request.path_params["model"], loaded)
        return JSONResponse(self._card(loaded))

    async def completions(self, request: Request) -> Response:
        return await self._generate(request, COMPLETION)

    async def chat_completions(self, request: Request) -> Response:
        return await self._generate(request, CHAT)

    # -- one request --------------------------------------------------------------------------------------------

    async def _generate(self, request: Request, shape: Shape) -> Response:
        ask = openai_schema.parse(await read_json(request), chat=shape is CHAT)
        loaded = self._loaded()
        self._check_model(ask.model, loaded)
        spec = await run_in_threadpool(to_spec, ask, loaded)
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Delta | Failure]()
        job = GenerationJob(spec, lambda event: loop.call_soon_threadsafe(events.put_nowait, event))
        answer = _Answer(shape, shape.id_prefix + secrets.token_hex(12), int(time.time()), loaded.info.name)
        streaming = False
        try:
            self._queue.submit_generation(job)
            first = await _unless_gone(request, events.get())
            if isinstance(first, Failure):
                raise ApiError(first.status, first.message, param=first.param, code=first.code)
            if ask.stream:
                streaming = True
                body = answer.stream(first, events, ask.include_usage)
                return _EventStream(body, lambda: self._queue.cancel_generation(job))
            return JSONResponse(await _unless_gone(request, answer.collect(first, events)))
        except QueueFull as error:
            raise ApiError(429, str(error), code="rate_limit_exceeded", retry_after_s=2) from None
        finally:
            if not streaming:
                self._queue.cancel_generation(job)

    def _loaded(self) -> LoadedModel:
        readiness = self._worker.readiness
        if self._worker.loaded is None or readiness.state != "ready":
            raise ApiError(503, f"the engine is not ready: {readiness.message}", code="not_ready", retry_after_s=2)
        return self._worker.loaded

    def _check_model(self, name: str, loaded: LoadedModel) -> None:
        if name not in (loaded.info.name, self._worker.model):
            raise ApiError(
                404,
                f"the model {name!r} does not exist here; this engine serves {loaded.info.name!r}",
                code="model_not_found",
                param="model",
            )

    def _card(self, loaded: LoadedModel) -> dict:
        return {
            "id": loaded.info.name,
            "object": "model",
            "created": self._created,
            "owned_by": "token-by-token",
            "max_model_len": loaded.max_positions,
        }


def to_spec(ask: Ask, loaded: LoadedModel) -> GenerationSpec:
    """Tokenize and check against the model. Called in a pool thread. Pure. Raises: ApiError(400)."""
    param = "messages" if ask.is_chat else "prompt"
    if ask.token_ids is not None:
        vocab_size = loaded.info.vocab_size
        wrong = next((token_id for token_id in ask.token_ids if not 0 <= token_id < vocab_size), None)
        if wrong is not None:
            message = f"prompt holds token id {wrong}; allowed: 0 to {vocab_size - 1}"
            raise ApiError(400, message, param=param, code="invalid_value")
        token_ids = ask.token_ids
    else:
        token_ids = _encode(ask, loaded, param)
    room = loaded.max_positions - len(token_ids)
    default = openai_schema.DEFAULT_CHAT_TOKENS if ask.is_chat else openai_schema.DEFAULT_COMPLETION_TOKENS
    max_tokens = ask.max_tokens if ask.max_tokens is not None else max(1, min(default, room))
    if max_tokens > room:
        message = (
            f"this model's maximum context length is {loaded.max_positions} tokens; the prompt has {len(token_ids)} "
            f"and up to {max_tokens} more were asked for; shorten the prompt or lower max_tokens"
        )
        raise ApiError(400, message, param=param, code="context_length_exceeded")
    return GenerationSpec(
        prompt=token_ids,
        max_tokens=max_tokens,
        temperature=ask.temperature,
        top_p=ask.top_p,
        top_k=ask.top_k,
        seed=ask.seed,
        stop=ask.stop,
        ignore_eos=ask.ignore_eos,
    )


def _encode(ask: Ask, loaded: LoadedModel, param: str) -> list[int]:
    try:
        if ask.messages is not None:
            return loaded.tokenizer.encode_chat(ask.messages)
        assert ask.text is not None, "parse() sets exactly one of text, token_ids and messages"
        return loaded.tokenizer.encode(ask.text)
    except ValueError as error:  # a chat template that refuses these roles in this order, for one
        if is_for_the_user(error):
            raise ApiError(400, str(error), param=param, code="invalid_value") from None
        raise


@dataclass(frozen=True)
class _Answer:
    shape: Shape
    id: str
    created: int
    model: str

    async def collect(self, first: Delta, events: asyncio.Queue[Delta | Failure]) -> dict:
        """The whole answer. Raises: ApiError when the engine fails on the way."""
        event, texts = first, [first.text]
        while event.finish_reason is None:
            following = await events.get()
            if isinstance(following, Failure):
                raise ApiError(following.status, following.message, param=following.param)
            event = following
            texts.append(event.text)
        choice = self.shape.choice("".join(texts), event.finish_reason, False)
        return {**self._head(self.shape.whole), "choices": [choice], "usage": _usage(event)}

    async def stream(
        self, first: Delta, events: asyncio.Queue[Delta | Failure], include_usage: bool
    ) -> AsyncIterator[str]:
        """Server-sent events, ended by ``[DONE]``. A failure on the way is one error event; the client raises on it."""
        head = self._head(self.shape.chunk)
        if include_usage:
            head["usage"] = None
        if self.shape is CHAT:
            role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
            yield _sse({**head, "choices": [role]})
        event: Delta | Failure = first
        while isinstance(event, Delta):
            # Text may be held back (half a character, the head of a stop string): then there is nothing to send yet.
            if event.text or event.finish_reason is not None:
                yield _sse({**head, "choices": [self.shape.choice(event.text, event.finish_reason, True)]})
            if event.finish_reason is not None:
                break
            event = await events.get()
        if isinstance(event, Failure):
            yield _sse({"error": {"message": event.message, "type": "server_error", "param": None, "code": None}})
            return
        if include_usage:
            yield _sse({**head, "choices": [], "usage": _usage(event)})
        yield "data: [DONE]\n\n"

    def _head(self, kind: str) -> dict:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


class _EventStream(StreamingResponse):
    """A stream that runs ``on_close`` however it ends; a generator's ``finally`` alone waits for its collection."""

    def __init__(self, body: AsyncIterator[str], on_close: Callable[[], None]) -> None:
        super().__init__(body, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_close()


async def _unless_gone(request: Request, work: Coroutine[object, object, T]) -> T:
    """The result of ``work``, or ClientDisconnect as soon as the client closes its connection."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _usage(event: Delta) -> dict:
    prompt, output = event.num_prompt_tokens, event.num_output_tokens
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def _sse(value: dict) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"
