"""The endpoint over HTTP: the `openai` client, wrong requests, clients that leave, read slowly or come in crowds."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator

import httpx
import pytest
from endpoint_support import ask, endpoint, lane_server
from prometheus_client.parser import text_string_to_metric_families

from twin.endpoint.clock import EventClock, WallClock
from twin.endpoint.engine import LiveEngine
from twin.endpoint.text import filler, tokens_of

openai = pytest.importorskip("openai")
CHAT = [{"role": "user", "content": "how long does a verify step take on this box?"}]


@pytest.fixture(scope="module")
def live() -> Iterator[tuple[str, LiveEngine]]:
    engine = LiveEngine(lane_server(), model="sidecar")
    with endpoint(engine, EventClock(), max_body_bytes=100_000) as url:
        yield url, engine


@pytest.fixture
def url(live: tuple[str, LiveEngine]) -> str:
    return live[0]


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="sidecar", messages=CHAT, max_tokens=33, extra_body={"ignore_eos": True}
    )
    text = answer.choices[0].message.content
    assert len(tokens_of(text)) == answer.usage.completion_tokens == 33
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == len(tokens_of(CHAT[0]["content"]))


def test_chat_streamed_with_usage_in_the_last_chunk(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="sidecar", messages=CHAT, max_completion_tokens=50, stream=True,
            stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
        )
    )  # fmt: skip
    *body, last = chunks
    assert last.choices == [] and last.usage.completion_tokens == 50
    texts = [c.choices[0].delta.content for c in body]
    assert sum(len(tokens_of(t)) for t in texts) == 50
    assert body[0].choices[0].delta.role == "assistant"
    assert max(len(tokens_of(t)) for t in texts) > 1  # a chunk is a verify step, not a token
    assert [c.choices[0].finish_reason for c in body] == [None] * (len(body) - 1) + ["length"]


def test_completion_with_stop(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="sidecar", prompt="x y z", max_tokens=200, stop=["keeps"], extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].finish_reason == "stop"
    assert "keeps" not in answer.choices[0].text
    assert answer.usage.completion_tokens == len(tokens_of(answer.choices[0].text)) + 1
    streamed = client.completions.create(
        model="sidecar", prompt="x y z", max_tokens=200, stop=["keeps"], stream=True, extra_body={"ignore_eos": True}
    )
    assert "".join(c.choices[0].text for c in streamed) == answer.choices[0].text


def test_prompt_ids_are_counted_and_cached(client: openai.OpenAI) -> None:
    ids = list(range(5000, 5640))
    first = client.completions.create(model="sidecar", prompt=ids, max_tokens=4)
    again = client.completions.create(model="sidecar", prompt=ids, max_tokens=4)
    assert first.usage.prompt_tokens == 640 and first.usage.prompt_tokens_details.cached_tokens == 0
    assert again.usage.prompt_tokens_details.cached_tokens >= 384  # whole blocks less the replayed window


def test_models(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == ["sidecar"]
    assert client.models.retrieve("sidecar").id == "sidecar"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_errors_as_the_client_library_knows_them(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.chat.completions.create(model="gpt", messages=CHAT)
    with pytest.raises(openai.BadRequestError, match="logprobs"):
        client.chat.completions.create(model="sidecar", messages=CHAT, logprobs=True)
    with pytest.raises(openai.BadRequestError, match="maximum context length") as caught:
        client.chat.completions.create(model="sidecar", messages=CHAT, max_tokens=2_000_000)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"", 400, None),
        (b"{", 400, None),
        (b"[1]", 400, None),
        (b"[" * 50_000, 400, None),
        (b"{}", 400, "messages"),
        (b'{"messages": []}', 400, "messages"),
        (b'{"messages": "hi"}', 400, "messages"),
        (b'{"messages": [{"content": "x"}]}', 400, "messages.0.role"),
        (b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', 400, "messages"),
        (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}', 400, "max_tokens"),
        (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1e999}', 400, "max_tokens"),
        (b'{"messages": [{"role": "user", "content": "x"}], "n": 3}', 400, "n"),
        (b'{"messages": [{"role": "user", "content": "x"}], "temperature": "hot"}', 400, "temperature"),
        (b'{"messages": [{"role": "user", "content": "' + b"x" * 200_000 + b'"}]}', 413, None),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', 400, None),
    ],
)
def test_malformed_requests_get_openai_errors(url: str, body: bytes, status: int, param: str | None) -> None:
    answer = httpx.post(f"{url}/v1/chat/completions", content=body, trust_env=False)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"].startswith(param)


def test_large_bodies_without_a_length_are_cut_off(url: str) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(50):
            yield b"x" * 10_000

    answer = httpx.post(f"{url}/v1/completions", content=parts(), trust_env=False)
    assert answer.status_code == 413


def test_paths_and_methods(url: str) -> None:
    assert httpx.get(f"{url}/health", trust_env=False).status_code == 200
    assert httpx.get(f"{url}/v1/chat/completions", trust_env=False).json()["error"]["type"] == "invalid_request_error"
    assert httpx.get(f"{url}/nothing", trust_env=False).status_code == 404


def test_metrics_speak_vllms_names(url: str, client: openai.OpenAI) -> None:
    client.completions.create(model="sidecar", prompt="a", max_tokens=40, extra_body={"ignore_eos": True})
    answer = httpx.get(f"{url}/metrics", trust_env=False)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    names = {s.name for f in text_string_to_metric_families(answer.text) for s in f.samples}
    for name in (
        "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_queries_total",
        "prefix_cache_hits_total", "prompt_tokens_total", "generation_tokens_total", "request_success_total",
        "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_sum", "e2e_request_latency_seconds_count",
        "request_time_per_output_token_seconds_bucket", "spec_decode_num_drafts_total", "num_preemptions_total",
        "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total",
        "spec_decode_num_accepted_tokens_per_pos_total", "iteration_tokens_total_count",
    ):  # fmt: skip
        assert f"vllm:{name}" in names


async def _settled(url: str) -> tuple[float, float]:
    """Running and waiting once nothing changes any more."""
    for _ in range(100):
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            page = (await client.get("/metrics")).text
        levels = [
            float(row.rsplit(" ", 1)[1]) for row in page.splitlines() if row.startswith("vllm:num_requests_")
        ]  # fmt: skip
        if levels == [0.0, 0.0]:
            break
        await asyncio.sleep(0.02)
    return levels[0], levels[1]


def test_dropped_connections_leave_nothing() -> None:
    """Clients vanish before the first token, in the middle of a stream, and while an unstreamed answer is made."""
    engine = LiveEngine(lane_server(), model="sidecar")

    async def drop(client: httpx.AsyncClient, chunks: int, stream: bool) -> None:
        body = {"prompt": [1, 2, 3], "max_tokens": 100_000, "ignore_eos": True, "stream": stream}
        if not stream:
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/v1/completions", json=body, timeout=0.2)
            return
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            seen = 0
            async for _ in answer.aiter_lines():
                seen += 1
                if seen > chunks:
                    return

    async def crowd(url: str) -> tuple[float, float]:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            await asyncio.gather(*(drop(client, i % 5, i % 4 != 0) for i in range(40)))
        return await _settled(url)

    with endpoint(engine, WallClock(1.0)) as url:
        assert asyncio.run(crowd(url)) == (0.0, 0.0)
    assert not engine.streams
    assert engine.metrics.finished["abort"] == 40
    assert engine._cluster.replicas[0].scheduler.kv.used_tokens == 0


def test_slow_readers_hold_nobody_up() -> None:
    """Readers that take nothing: their requests end in the engine, others are served, then they are cut off."""
    engine = LiveEngine(lane_server(), model="sidecar")
    with endpoint(engine, EventClock(), write_timeout_s=0.5) as url:
        host, port = url.removeprefix("http://").split(":")
        body = json.dumps({"prompt": [1], "max_tokens": 40_000, "ignore_eos": True, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        slow = []
        for _ in range(4):
            reader = socket.socket()
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect((host, int(port)))
            reader.sendall(head + body)
            slow.append(reader)
        answer = httpx.post(
            f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 30}, trust_env=False, timeout=30
        )
        assert answer.status_code == 200
        until_s = time.monotonic() + 15
        while engine.streams and time.monotonic() < until_s:
            time.sleep(0.05)
        for reader in slow:
            reader.close()
    assert not engine.streams


def test_256_streams_lose_and_repeat_nothing() -> None:
    """A crowd at once: every text is the filler of its offset, complete and once."""
    engine = LiveEngine(lane_server(256), model="sidecar")

    async def crowd(url: str) -> list[bool]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits, trust_env=False) as client:
            samples = await asyncio.gather(*(ask(client, i, 64, 60 + i % 32) for i in range(256)))
        return [
            s.text == filler(i, 0, 60 + i % 32) and s.usage["completion_tokens"] == 60 + i % 32 and s.finish == "length"
            for i, s in enumerate(samples)
        ]

    with endpoint(engine, EventClock()) as url:
        assert all(asyncio.run(crowd(url)))
    assert not engine.streams
