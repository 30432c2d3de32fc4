"""Requests that wait, in order of priority and then of arrival, and the deadlines of everybody.

Both are heaps with lazy deletion: an entry counts only while its request still has the order number it was pushed
with.
"""

from __future__ import annotations

import heapq
import math

from twin.serving.request import WAITING, Request


class WaitingQueue:
    """Waiting requests; `len()` counts those that really wait."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Request]] = []
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def push(self, request: Request) -> None:
        """Put a request in its place; one that was preempted returns to the place it had."""
        heapq.heappush(self._heap, (request.priority, request.order, request))
        self._waiting += 1

    def head(self) -> Request:
        """The next in line. There must be one."""
        heap = self._heap
        while heap[0][2].status != WAITING or heap[0][2].order != heap[0][1]:
            heapq.heappop(heap)  # it left while it waited
        return heap[0][2]

    def pop(self) -> None:
        """Take the head out; `head` was just called."""
        heapq.heappop(self._heap)
        self._waiting -= 1

    def forget(self) -> None:
        """One waiting request has left; its entry is dropped when it comes up."""
        self._waiting -= 1

    def clear(self) -> list[Request]:
        """Empty the queue and return who waited."""
        waited = [r for _, order, r in self._heap if r.status == WAITING and r.order == order]
        self._heap.clear()
        self._waiting = 0
        return waited


class Deadlines:
    """When clients give up: on the first token, then on the whole answer."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []

    def add(self, request: Request) -> None:
        """Watch a request's next deadline, if it has one."""
        deadline_s = next_deadline_s(request)
        if deadline_s < math.inf:
            heapq.heappush(self._heap, (deadline_s, request.order, request))

    def due(self, now_s: float) -> bool:
        """Whether `expired` may have something to say."""
        return bool(self._heap) and self._heap[0][0] <= now_s

    def expired(self, now_s: float) -> list[Request]:
        """Requests whose clients have given up by `now_s`; each is returned once."""
        gone = []
        while self.due(now_s):
            _, order, request = heapq.heappop(self._heap)
            if request.order != order:
                continue
            if request.first_token_s <= request.first_deadline_s and request.deadline_s > now_s:
                self.add(request)  # the first token came in time; the whole answer has its own deadline
            else:
                gone.append(request)
        return gone

    def clear(self) -> None:
        """Watch nobody."""
        self._heap.clear()


def next_deadline_s(request: Request) -> float:
    """When the client gives up next: before the first token whichever deadline is earlier."""
    if math.isnan(request.first_token_s):
        return min(request.deadline_s, request.first_deadline_s)
    return request.deadline_s
