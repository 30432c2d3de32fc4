"""The HTTP side: routes, size limits, errors, and clients that leave or read slowly."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from twin import __version__
from twin.endpoint.answer import Answer
from twin.endpoint.clock import Clock
from twin.endpoint.engine import Driver, LiveEngine
from twin.endpoint.protocol import ApiError, ChatRequest, CompletionRequest, parse

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

MAX_BODY_BYTES = 8 * 2**20
#: a client that takes nothing for so long is taken to be gone
WRITE_TIMEOUT_S = 60.0
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

log = logging.getLogger("twin.endpoint")


class EventStream:
    """Sends an answer's events, watching for the client to leave; either way the request does not outlive it."""

    def __init__(self, answer: Answer, write_timeout_s: float) -> None:
        self._answer, self._timeout_s = answer, write_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application of one response."""
        sender = asyncio.ensure_future(self._send(send))
        left = asyncio.ensure_future(_until_gone(receive))
        try:
            await asyncio.wait((sender, left), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sender, left):
                task.cancel()
            await asyncio.gather(sender, left, return_exceptions=True)
            self._answer.leave()
        # What went wrong while sending (a slow reader, a broken pipe) ends this connection and nothing else.

    async def _send(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for data in self._answer.events():
            async with asyncio.timeout(self._timeout_s):
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def make_app(
    engine: LiveEngine, clock: Clock, *, models: tuple[str, ...], max_body_bytes: int = MAX_BODY_BYTES,
    write_timeout_s: float = WRITE_TIMEOUT_S,
) -> Starlette:  # fmt: skip
    """The application. `models` are the names it answers to, the first is its own."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    driver = Driver(engine, clock)
    created = int(time.time())

    async def ask(request: Request, kind: Any) -> Any:
        asked = parse(kind, await _body(request, max_body_bytes))
        if asked.model is not None and asked.model not in models:
            raise ApiError(
                404, f"The model `{asked.model}` does not exist; this server has {', '.join(models)}.", param="model",
                code="model_not_found",
            )  # fmt: skip
        answer = Answer(driver, asked, models[0])
        if asked.stream:
            return EventStream(answer, write_timeout_s)
        gone = asyncio.ensure_future(_until_gone(request.receive))
        whole = asyncio.ensure_future(answer.whole())
        try:
            await asyncio.wait((gone, whole), return_when=asyncio.FIRST_COMPLETED)
            return JSONResponse(whole.result()) if whole.done() else Response(status_code=499)
        finally:
            gone.cancel()
            whole.cancel()
            await asyncio.gather(gone, whole, return_exceptions=True)
            answer.leave()

    async def chat(request: Request) -> Any:
        return await ask(request, ChatRequest)

    async def completions(request: Request) -> Any:
        return await ask(request, CompletionRequest)

    def _model(name: str) -> dict[str, Any]:
        length = engine.server.limits.max_context_tokens
        return {"id": name, "object": "model", "created": created, "owned_by": "twin", "max_model_len": length}

    async def list_models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_model(name) for name in models]})

    async def one_model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in models:
            raise ApiError(404, f"The model `{name}` does not exist.", param="model", code="model_not_found")
        return JSONResponse(_model(name))

    async def health(request: Request) -> Response:
        task: asyncio.Task[None] = request.app.state.engine
        return Response(status_code=503 if task.done() else 200)

    async def version(request: Request) -> Response:
        return JSONResponse({"version": f"twin {__version__}"})

    async def metrics(request: Request) -> Response:
        driver.catch_up()
        return PlainTextResponse(engine.page(), media_type=METRICS_TYPE)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return JSONResponse(error.body(), status_code=error.status)

    async def plain(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        found = ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
        return JSONResponse(found.body(), status_code=error.status_code, headers=error.headers)

    async def broken(request: Request, error: Exception) -> Response:
        return JSONResponse(ApiError(500, "the twin failed on this request; its log says why.").body(), status_code=500)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(driver.run())
        task.add_done_callback(_report)
        app.state.engine = task
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/models", list_models),
            Route("/v1/models/{name:path}", one_model),
            Route("/health", health),
            Route("/ping", health),
            Route("/version", version),
            Route("/metrics", metrics),
        ],
        exception_handlers={ApiError: refused, HTTPException: plain, Exception: broken},
        lifespan=lifespan,
    )


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.critical("the engine stopped; restart the server", exc_info=task.exception())


async def _body(request: Request, most: int) -> bytes:
    """The body, read no further than `most` bytes."""
    from starlette.requests import ClientDisconnect

    error = ApiError(413, f"the body is larger than {most} bytes; shorten the prompt.", code="request_too_large")
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and (len(stated) > 20 or int(stated) > most):
        raise error
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise error
            parts.append(part)
    except ClientDisconnect:  # nobody reads this answer; it keeps a client that leaves from being logged as a fault
        raise ApiError(400, "the client left before the end of the body.") from None
    return b"".join(parts)
