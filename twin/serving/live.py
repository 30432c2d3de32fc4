"""The requests of one replica that hold a place: who decodes, who is in its prefill, who waits, and their KV.

State and the transitions between places. Who is let in is decided in `admission.py`, who is thrown out in
`preemption.py`, what a step gave in `completion.py`; `scheduler.py` puts them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count

from twin.serving.allocation import free, held_tokens
from twin.serving.config import Limits
from twin.serving.kvcache import KvCache
from twin.serving.queue import WaitingQueue
from twin.serving.request import Request

#: (request, k) -> how many tokens each further verify step of that stream keeps, bonus token included
Draws = Callable[[Request, int], Iterator[int]]


class LiveRequests:
    """Everything a replica remembers between steps.

    `k` is the draft length of the last step (-1 before the first), `lookahead` the most tokens a stream can gain in
    one step, `growers` streams whose pages will not last another one, `context_tokens` the sum over decoding streams,
    `outgoing` requests handed off whose KV is still here.
    """

    __slots__ = (
        "context_tokens", "decoding", "draws", "growers", "hit_tokens", "host_hit_tokens", "k", "kv", "limits",
        "lookahead", "looked_up_tokens", "orders", "outgoing", "preemptions", "prefilling", "queue",
    )  # fmt: skip

    def __init__(self, limits: Limits, most_k: int, draws: Draws, orders: Iterator[int] | None) -> None:
        self.limits = limits
        self.kv = KvCache(
            limits.kv_capacity_tokens,
            page_tokens=limits.page_tokens,
            block_tokens=limits.prefix_block_tokens,
            host_capacity_tokens=limits.host_tier_tokens,
        )
        self.decoding: list[Request] = []
        self.prefilling: list[Request] = []
        self.queue = WaitingQueue()
        self.growers: list[Request] = []
        self.outgoing: dict[int, Request] = {}
        self.context_tokens = 0
        self.k = -1
        self.lookahead = most_k + 1
        self.draws = draws
        self.orders = count() if orders is None else orders
        self.preemptions = self.hit_tokens = self.host_hit_tokens = self.looked_up_tokens = 0

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""
        return len(self.decoding) + len(self.prefilling)

    def set_k(self, k: int) -> None:
        """The draft length of the step being planned; another one means other acceptance."""
        if k != self.k:
            self.k = k
            for request in self.decoding:
                request.draw = self.draws(request, k)

    def join(self, request: Request) -> None:
        """A computed prompt goes on to decode."""
        context = request.context_tokens
        request.room = held_tokens(self.kv, request) - context
        if request.room < self.lookahead:
            self.growers.append(request)
        if self.k >= 0:
            request.draw = self.draws(request, self.k)
        self.context_tokens += context
        self.decoding = [*self.decoding, request]  # a new list: the plan of a running step keeps the old one

    def drop(self, request: Request) -> None:
        """A running request loses its slot; its KV is the caller's to free."""
        if request.computed >= request.target:
            self.decoding.remove(request)
            self.context_tokens -= request.context_tokens
        else:
            self.prefilling.remove(request)

    def end(self, request: Request, status: int, now_s: float) -> None:
        """A request is over, and its KV free."""
        free(self.kv, request)
        request.status = status
        request.finish_s = now_s

    def take_all(self) -> Sequence[Request]:
        """Empty every place but the KV; who was there, in no order."""
        everyone = [*self.decoding, *self.prefilling, *self.queue.clear(), *self.outgoing.values()]
        self.decoding, self.prefilling, self.growers = [], [], []
        self.outgoing.clear()
        self.context_tokens = 0
        return everyone
