"""Shared by the endpoint's tests: a served lane, the endpoint on a free port in a thread, and a plain load generator."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import httpx
import uvicorn

from twin.endpoint.app import make_app
from twin.endpoint.clock import Clock
from twin.endpoint.engine import LiveEngine
from twin.endpoint.run import bind, configured
from twin.endpoint.setup import served
from twin.lane.catalogue import catalogue_roots
from twin.planning.server import Server


@lru_cache(maxsize=4)
def lane_server(max_seqs: int = 32) -> Server:
    """The sidecar lane on mixed traffic, as `twin serve --lane sidecar --traffic mixed` has it."""
    return served("sidecar", ["mixed"], {"max_seqs": max_seqs}, catalogue_roots(None), 0)


@contextlib.contextmanager
def endpoint(engine: LiveEngine, clock: Clock, **options: Any) -> Iterator[str]:
    """The endpoint at work; gives its address."""
    app = make_app(engine, clock, models=("sidecar",), **options)
    sock = bind("127.0.0.1", 0)
    server = uvicorn.Server(configured(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        sock.close()


@dataclass
class Sample:
    """What a client saw of one request: seconds, the text of each chunk, the usage; and when it was free again."""

    sent_s: float
    number: int = 0
    chunks_s: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    next_s: float = 0.0
    usage: dict[str, Any] = field(default_factory=dict)
    finish: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def ttft_s(self) -> float:
        return self.chunks_s[0] - self.sent_s


def prompt_ids(number: int, tokens: int) -> list[int]:
    """A prompt no other number shares a block with."""
    return [number * 100_000 + i for i in range(tokens)]


async def ask(client: httpx.AsyncClient, number: int, prompt_tokens: int, output_tokens: int) -> Sample:
    """One streamed completion."""
    body = {
        "prompt": prompt_ids(number, prompt_tokens), "max_tokens": output_tokens, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True}, "seed": number,
    }  # fmt: skip
    sample = Sample(time.perf_counter(), number)
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        async for row in answer.aiter_lines():
            if not row.startswith("data: ") or row == "data: [DONE]":
                continue
            data = json.loads(row[6:])
            if data["choices"]:
                sample.chunks_s.append(time.perf_counter())
                sample.texts.append(data["choices"][0]["text"])
                sample.finish = data["choices"][0]["finish_reason"] or sample.finish
            else:
                sample.usage = data["usage"]
    sample.next_s = time.perf_counter()
    return sample


async def closed_loop(
    url: str, users: int, requests: int, prompt_tokens: int, output_tokens: int
) -> tuple[list[Sample], float]:
    """`users` who each send the next request when the answer is there; and the resolution of a clock at the client.

    That is the 90 % quantile of round trips of the same request made impossible (n = 2), sent beside the others: it
    costs the same bytes and the same parsing, waits for the same event loops, and for nothing that is simulated.
    """
    numbers = iter(range(requests))
    samples: list[Sample] = []
    trips_s: list[float] = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=users + 1)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits, trust_env=False) as client:

        async def user() -> None:
            for number in numbers:
                samples.append(await ask(client, number, prompt_tokens, output_tokens))

        async def probe() -> None:
            while True:
                start_s = time.perf_counter()
                body = {"prompt": prompt_ids(0, prompt_tokens), "n": 2, "stream": True}
                answer = await client.post("/v1/completions", json=body)
                assert answer.status_code == 400
                trips_s.append(time.perf_counter() - start_s)
                await asyncio.sleep(0.03)

        probing = asyncio.create_task(probe())
        await asyncio.gather(*(user() for _ in range(users)))
        probing.cancel()
    return samples, statistics.quantiles(trips_s, n=10)[-1]
