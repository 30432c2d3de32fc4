"""One request on its way: what was asked becomes a stream of the engine, its chunks become text and JSON."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from twin.endpoint.engine import Driver, Stream
from twin.endpoint.protocol import ApiError, ChatRequest, CompletionRequest, Shape, event, usage
from twin.endpoint.text import block_names, cut_at_stop, filler, tokens_of
from twin.serving.request import CANCELLED, REFUSED

DONE = b"data: [DONE]\n\n"


class Answer:
    """An admitted request and the text it produces. Raises ApiError when it can never run."""

    def __init__(self, driver: Driver, asked: ChatRequest | CompletionRequest, model: str) -> None:
        engine = driver.engine
        limits = engine.server.limits
        prompt = asked.prompt() if isinstance(asked, ChatRequest) else asked.one_prompt()
        tokens: list[Any] = tokens_of(prompt) if isinstance(prompt, str) else prompt
        self.prompt_tokens = max(len(tokens), 1)
        room = limits.max_context_tokens - self.prompt_tokens
        if room < (asked.limit or 1):
            raise ApiError(
                400,
                f"This model's maximum context length is {limits.max_context_tokens} tokens. The request has "
                f"{self.prompt_tokens} in the prompt and asks for {asked.limit or 1} more. Shorten one of them.",
                param="messages" if isinstance(asked, ChatRequest) else "prompt",
                code="context_length_exceeded",
            )
        self._driver = driver
        self._offset = asked.seed % 1000 if asked.seed is not None else len(tokens) + len(engine.streams)
        self._shown_limit: int | None = None
        most = asked.limit if asked.limit is not None else room
        driver.catch_up()
        self.stream = self._submit(asked, most, block_names(tokens, limits.prefix_block_tokens))
        driver.ring()
        if self.stream.request.status == REFUSED:
            raise _never_fits(self.stream)
        chat = isinstance(asked, ChatRequest)
        self.shape = Shape(chat, f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}", model, int(time.time()))
        self.with_usage = asked.usage_in_stream
        self._told = 0
        self._shown = 0

    def _submit(self, asked: ChatRequest | CompletionRequest, most: int, blocks: tuple[int, ...]) -> Stream:
        engine = self._driver.engine
        if asked.stops:
            cut = cut_at_stop(self._offset, most, asked.stops)
            if cut is not None and cut[0] >= asked.min_tokens:
                # The class may end the answer before the stop text comes; then it ends there.
                tokens, text = cut
                stream = engine.submit(
                    self.prompt_tokens, tokens if asked.ignore_eos else None, most=tokens, blocks=blocks,
                    stops_by_itself=True, least=asked.min_tokens,
                )  # fmt: skip
                stream.stops_by_itself = True
                if stream.request.output_tokens == tokens:
                    self._shown_limit = len(text)
                return stream
        output = most if asked.ignore_eos else None
        return engine.submit(self.prompt_tokens, output, most=most, blocks=blocks, least=asked.min_tokens)

    def used(self) -> dict[str, Any]:
        """The usage so far."""
        return usage(self.prompt_tokens, self._told, self.stream.request.cached_tokens)

    def _text(self, tokens: int) -> str:
        text = filler(self._offset, self._told, tokens)
        self._told += tokens
        if self._shown_limit is not None:
            text = text[: max(self._shown_limit - self._shown, 0)]
        self._shown += len(text)
        return text

    def leave(self) -> None:
        """The client is gone, or has everything."""
        self._driver.catch_up()
        self._driver.engine.cancel(self.stream)
        self._driver.ring()

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events: one a verify step, the finish reason with the last, then the usage if asked for."""
        shape, stream = self.shape, self.stream
        first = True
        while tokens := await stream.next_chunk():
            last = stream.ended and not stream.chunks
            finish = stream.reason if last else None
            yield event(shape.chunk(self._text(tokens), first=first, finish=finish))
            first = False
        if stream.reason not in ("stop", "length"):
            yield event(_failed(stream).body())
        if self.with_usage:
            yield event(shape.usage_chunk(self.used()))
        yield DONE

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece. Raises ApiError when the request failed."""
        parts = []
        while tokens := await self.stream.next_chunk():
            parts.append(self._text(tokens))
        if self.stream.reason not in ("stop", "length"):
            raise _failed(self.stream)
        return self.shape.whole("".join(parts), self.stream.reason, self.used())


def _never_fits(stream: Stream) -> ApiError:
    request = stream.request
    return ApiError(
        400,
        f"{request.prompt_tokens} prompt and {request.output_tokens} output tokens can never fit into the lane's KV "
        "memory or context; ask for fewer.",
        code="context_length_exceeded",
    )


def _failed(stream: Stream) -> ApiError:
    if stream.request.status == REFUSED:
        return _never_fits(stream)
    if stream.request.status == CANCELLED:
        return ApiError(499, "the request was cancelled.")
    return ApiError(500, "the simulated replica lost the request.")
