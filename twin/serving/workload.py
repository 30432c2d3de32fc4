"""Who asks for what: mixes of traffic classes, open loops, and closed loops of users who think between turns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from twin.errors import TrafficError
from twin.serving.draws import DrawSource
from twin.serving.request import FINISHED, Request

BLOCK = 1024
#: a session's blocks are numbered from session * SESSION_BLOCKS, a class's shared prefix below zero
SESSION_BLOCKS = 1 << 24


class Lengths(Protocol):
    """A distribution of whole token counts (`twin.acceptance.traffic.Tokens` is one)."""

    def draw(self, rng: np.random.Generator, samples: int) -> Any:
        """Token counts of at least 1, shape (samples,)."""
        ...


@dataclass(frozen=True, slots=True)
class FixedLength:
    """Always `tokens`."""

    tokens: int

    def draw(self, rng: np.random.Generator, samples: int) -> Any:
        """`tokens`, repeated."""
        return np.full(samples, self.tokens)


@dataclass(frozen=True, slots=True)
class Source:
    """One class in a mix. `weight` is its share of requests; clients give up after the timeouts (seconds from
    arrival).

    The first `shared_prefix_tokens` of every prompt are the same text (a system prompt).
    """

    name: str
    prompt: Lengths
    output: Lengths
    weight: float = 1.0
    priority: int = 0
    timeout_s: float = math.inf
    first_token_timeout_s: float = math.inf
    shared_prefix_tokens: int = 0


class RequestMaker:
    """Makes requests of a mix, drawing classes, lengths and acceptance profiles in blocks from one seed."""

    def __init__(
        self, sources: Sequence[Source], seed: int, *, draws: DrawSource | None = None, prefix_block_tokens: int = 0,
        max_context_tokens: int = 1 << 40,
    ) -> None:  # fmt: skip
        total = sum(s.weight for s in sources)
        if not sources or any(not (math.isfinite(s.weight) and s.weight >= 0) for s in sources) or total <= 0:
            raise TrafficError("a mix needs at least one class, weights of at least 0, and one above 0.")
        self.sources = list(sources)
        self.made = 0
        self._weights = np.array([s.weight for s in sources]) / total
        self._rng = np.random.default_rng([seed, 11])
        self._draws = draws
        self._block_tokens = prefix_block_tokens
        self._max_context = max_context_tokens
        self._prefixes = [self._prefix(i, s) for i, s in enumerate(sources)]
        self._drawn = self._draw()

    def make(self, time_s: float) -> Request:
        """The next request, arriving at `time_s`."""
        traffic, prompt, output, profile = next(self._drawn)
        return self.build(time_s, traffic, prompt, output, profile=profile, blocks=self._prefixes[traffic])

    def build(
        self, time_s: float, traffic: int, prompt: int, output: int, *, profile: int = 0, blocks: tuple[int, ...] = (),
        session: int = -1,
    ) -> Request:  # fmt: skip
        """A request of a given class and size. The prompt is cut to the context limit, the output takes what
        remains."""
        source = self.sources[traffic]
        prompt = min(prompt, self._max_context - 1)
        output = min(output, self._max_context - prompt)
        request = Request(
            self.made, time_s, prompt, output, traffic=traffic, priority=source.priority, timeout_s=source.timeout_s,
            first_token_timeout_s=source.first_token_timeout_s, blocks=blocks, session=session,
        )  # fmt: skip
        request.profile = profile
        self.made += 1
        return request

    def draw_one(self) -> tuple[int, int, int, int]:
        """(class, prompt tokens, output tokens, profile) of one more request, without making it."""
        return next(self._drawn)

    def _prefix(self, index: int, source: Source) -> tuple[int, ...]:
        if not self._block_tokens:
            return ()
        whole = source.shared_prefix_tokens // self._block_tokens
        return tuple(-(index * SESSION_BLOCKS + i + 1) for i in range(whole))

    def _draw(self) -> Iterator[tuple[int, int, int, int]]:
        rng = self._rng
        while True:
            classes = rng.choice(len(self.sources), size=BLOCK, p=self._weights)
            prompts = np.zeros(BLOCK, dtype=np.int64)
            outputs = np.zeros(BLOCK, dtype=np.int64)
            profiles = np.zeros(BLOCK, dtype=np.int64)
            for i, source in enumerate(self.sources):
                mine = classes == i
                n = int(mine.sum())
                prompts[mine] = source.prompt.draw(rng, n)
                prompts[mine] += source.shared_prefix_tokens
                outputs[mine] = source.output.draw(rng, n)
                if self._draws is not None:
                    profiles[mine] = self._draws.choose_profiles(i, rng, n)
            columns = (classes, np.maximum(prompts, 1), np.maximum(outputs, 1), profiles)
            yield from zip(*(c.tolist() for c in columns), strict=True)


def open_loop(
    times: Iterator[float], maker: RequestMaker, *, until_s: float, limit: int | None = None
) -> Iterator[Request]:
    """Requests at the given times, up to `until_s` or `limit` of them."""
    for made, time_s in enumerate(times):
        if time_s >= until_s or (limit is not None and made >= limit):
            return
        yield maker.make(time_s)


class ClosedLoop:
    """`users` who each send a request, read the answer, think, and send the next one.

    `think_s` is the mean pause, exponential or constant. With `turns` > 1 a user's next prompt is the whole
    conversation so far plus a new message of the class's prompt length (the prefix cache can serve the old part);
    after that many turns the user starts a new conversation. `start_over_s` spreads the users' first requests evenly,
    so that they do not march in step.
    """

    def __init__(
        self, users: int, maker: RequestMaker, *, think_s: float = 0.0,
        think: Literal["exponential", "constant"] = "exponential", turns: int = 1, limit: int | None = None,
        start_over_s: float = 0.0, seed: int = 0, prefix_block_tokens: int = 0, max_context_tokens: int = 1 << 40,
    ) -> None:  # fmt: skip
        if users < 1:
            raise TrafficError(f"closed loop: {users} users; expected at least 1.")
        if not (math.isfinite(think_s) and think_s >= 0):
            raise TrafficError(f"closed loop: a think time of {think_s!r} s; expected 0 or more.")
        if turns < 1:
            raise TrafficError(f"closed loop: {turns} turns a conversation; expected at least 1.")
        self.users, self.limit = users, limit
        self._maker, self._think_s, self._think, self._turns = maker, think_s, think, turns
        self._start_over_s = start_over_s
        self._rng = np.random.default_rng([seed, 13])
        self._block_tokens, self._max_context = prefix_block_tokens, max_context_tokens
        self._conversations: dict[int, tuple[int, int, int]] = {}  # session -> (turn, class, tokens so far)
        self._sessions = 0
        self._sent = 0

    def start(self) -> Iterator[Request]:
        """The first request of every user, in order of time."""
        for user in range(self.users):
            request = self._fresh(self._start_over_s * user / self.users)
            if request is None:
                return
            yield request

    def follow(self, request: Request, now_s: float) -> Request | None:
        """What the user of an ended request sends next, and when (`arrival_s`); None when the run has enough."""
        time_s = now_s + self._pause_s()
        conversation = self._conversations.pop(request.session, None)
        if conversation is None or conversation[0] >= self._turns or request.status != FINISHED:
            return self._fresh(time_s)
        turn, traffic, _ = conversation
        so_far = request.prompt_tokens + request.output_tokens
        _, message, output, profile = self._maker.draw_one()
        if so_far + message + output > self._max_context:
            return self._fresh(time_s)
        return self._send(time_s, request.session, turn + 1, traffic, so_far + message, output, profile)

    def _fresh(self, time_s: float) -> Request | None:
        if self._turns == 1:
            if self._enough():
                return None
            return self._maker.make(time_s)
        traffic, prompt, output, profile = self._maker.draw_one()
        self._sessions += 1
        return self._send(time_s, self._sessions, 1, traffic, prompt, output, profile)

    def _send(
        self, time_s: float, session: int, turn: int, traffic: int, prompt: int, output: int, profile: int
    ) -> Request | None:
        if self._enough():
            return None
        self._conversations[session] = (turn, traffic, prompt)
        whole = prompt // self._block_tokens if self._block_tokens else 0
        first = session * SESSION_BLOCKS
        blocks = tuple(range(first, first + whole))
        return self._maker.build(time_s, traffic, prompt, output, profile=profile, blocks=blocks, session=session)

    def _enough(self) -> bool:
        if self.limit is not None and self._sent >= self.limit:
            return True
        self._sent += 1
        return False

    def _pause_s(self) -> float:
        if self._think_s == 0 or self._think == "constant":
            return self._think_s
        return float(self._rng.exponential(self._think_s))
