"""What clients may ask, in OpenAI's words, and the shapes of the answers and errors.

Unknown fields are ignored, as servers do. What would change the meaning of an answer and is not simulated (several
choices, log-probabilities, echo) is refused with a reason instead of being ignored.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

#: completions without max_tokens, as OpenAI and vLLM have it
COMPLETION_TOKENS = 16
#: what a simulated answer can be at most, to keep one request's bookkeeping small
MOST_TOKENS = 16_000_000
MAX_STOPS = 64


class ApiError(Exception):
    """An answer in OpenAI's error format: `status` is HTTP's, `param` the field that is wrong."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, frozen=True)


class StreamOptions(_Lenient):
    """`include_usage`: a last chunk with the usage and no choices."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


Stop = Annotated[str, Field(max_length=1000)]
Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]


class _Common(_Lenient):
    model: str | None = Field(default=None, max_length=1000)
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Tokens | None = None
    min_tokens: int = Field(default=0, ge=0, le=MOST_TOKENS)
    ignore_eos: bool = False
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    n: int | None = None
    best_of: int | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = None

    @property
    def stops(self) -> list[str]:
        """Stop texts, empty ones left out."""
        found = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [s for s in found if s]

    @property
    def usage_in_stream(self) -> bool:
        """Whether the last chunk of a stream carries the usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class Part(_Lenient):
    """One part of a message's content."""

    type: str = Field(max_length=100)
    text: str | None = None


class Message(_Lenient):
    """One message of a conversation."""

    role: str = Field(max_length=100)
    content: str | list[Part] | None = None

    def text(self) -> str:
        """The message's text; raises ApiError for parts that are none."""
        if isinstance(self.content, list):
            for part in self.content:
                if part.type != "text" or part.text is None:
                    raise ApiError(400, f"content of type {part.type!r} is not simulated; text only.", param="messages")
            return "\n".join(part.text or "" for part in self.content)
        return self.content or ""


class ChatRequest(_Common):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, max_length=100_000)
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None

    @property
    def limit(self) -> int | None:
        """Most output tokens; None: what the context leaves."""
        return self.max_completion_tokens or self.max_tokens

    def prompt(self) -> str:
        """All texts, one after the other; a chat template's own tokens are not counted."""
        return "\n".join(message.text() for message in self.messages)


class CompletionRequest(_Common):
    """POST /v1/completions."""

    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: int | None = None
    echo: bool = False

    @property
    def limit(self) -> int | None:
        """Most output tokens."""
        return self.max_tokens or COMPLETION_TOKENS

    def one_prompt(self) -> str | list[int]:
        """The prompt, text or token ids."""
        prompt: Any = self.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            if len(prompt) > 1:
                raise ApiError(400, f"{len(prompt)} prompts in one request; send one request each.", param="prompt")
            prompt = prompt[0]
        if not prompt:
            raise ApiError(400, "the prompt is empty; at least one token is needed.", param="prompt")
        return prompt  # type: ignore[no-any-return]


Asked = TypeVar("Asked", ChatRequest, CompletionRequest)


def parse(kind: type[Asked], body: bytes) -> Asked:
    """A validated request. Raises ApiError with the field that is wrong."""
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON ({str(error)[:200]}).") from None
    if not isinstance(raw, dict):
        raise ApiError(400, f"the body is a JSON {type(raw).__name__}; expected an object.")
    try:
        asked = kind.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        param = ".".join(str(p) for p in first["loc"])[:200]
        raise ApiError(400, f"{param}: {first['msg']}", param=param) from None
    for name, meant in (("n", asked.n), ("best_of", asked.best_of)):
        if meant not in (None, 1):
            raise ApiError(400, f"{name} = {meant} is not simulated; expected 1.", param=name)
    if asked.logprobs:
        raise ApiError(400, "logprobs are not simulated: the text is filler.", param="logprobs")
    if isinstance(asked, CompletionRequest) and asked.echo:
        raise ApiError(400, "echo is not simulated.", param="echo")
    return asked


def usage(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class Shape:
    """The JSON of one answer, chat or completion: `head` is what all its chunks share."""

    def __init__(self, chat: bool, identity: str, model: str, created: int) -> None:
        self.chat = chat
        self._head = {"id": identity, "created": created, "model": model}

    def chunk(self, text: str, *, first: bool = False, finish: str | None = None) -> dict[str, Any]:
        """One chunk of a stream."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish}
        if self.chat:
            delta: dict[str, str] = {"role": "assistant", "content": text} if first else {"content": text}
            return self._head | {"object": "chat.completion.chunk", "choices": [choice | {"delta": delta}]}
        return self._head | {"object": "text_completion", "choices": [choice | {"text": text}]}

    def usage_chunk(self, used: dict[str, Any]) -> dict[str, Any]:
        """The last chunk: no choices, the usage."""
        name = "chat.completion.chunk" if self.chat else "text_completion"
        return self._head | {"object": name, "choices": [], "usage": used}

    def whole(self, text: str, finish: str, used: dict[str, Any]) -> dict[str, Any]:
        """An answer that is not streamed."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish}
        if self.chat:
            choice |= {"message": {"role": "assistant", "content": text}}
            return self._head | {"object": "chat.completion", "choices": [choice], "usage": used}
        return self._head | {"object": "text_completion", "choices": [choice | {"text": text}], "usage": used}


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
