"""Key-value memory of one replica: a pool counted in tokens, a prefix cache inside it, and a host tier behind it.

The pool is split into private tokens (running requests, in pages), pinned prefix blocks (in use by a running request)
and idle prefix blocks (kept in case somebody asks again, least recently used first out). What the pool evicts goes to
the host tier, again least recently used first out. A prefix block is named by a hash of everything up to its end, so
the leading run of known names is exactly the reusable prefix.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class KvCache:
    """`capacity_tokens` in pages of `page_tokens`; prefix blocks of `block_tokens` (0: no prefix cache)."""

    def __init__(
        self, capacity_tokens: int, *, page_tokens: int = 16, block_tokens: int = 0, host_capacity_tokens: int = 0
    ) -> None:
        self.page_tokens = page_tokens
        self.capacity_tokens = capacity_tokens // page_tokens * page_tokens
        self.block_tokens = block_tokens
        self.host_capacity_blocks = host_capacity_tokens // block_tokens if block_tokens else 0
        self.private_tokens = 0
        self._pins: dict[int, int] = {}  # block -> running requests that hold it
        self._idle: OrderedDict[int, None] = OrderedDict()  # oldest first
        self._host: OrderedDict[int, None] = OrderedDict()
        self.evicted_blocks = 0

    @property
    def used_tokens(self) -> int:
        """Tokens that running requests hold; idle prefix blocks are not counted."""
        return self.private_tokens + len(self._pins) * self.block_tokens

    @property
    def free_tokens(self) -> int:
        """Tokens nobody holds, idle prefix blocks not counted as free."""
        return self.capacity_tokens - self.used_tokens - len(self._idle) * self.block_tokens

    def pages(self, tokens: int) -> int:
        """`tokens` rounded up to whole pages, in tokens."""
        page = self.page_tokens
        return (tokens + page - 1) // page * page

    def fits(self, tokens: int) -> bool:
        """Whether `tokens` can be had, evicting idle blocks if need be."""
        return self.used_tokens + tokens <= self.capacity_tokens

    def take(self, tokens: int) -> bool:
        """Allocate `tokens` (a multiple of the page) privately; False and nothing changed when they do not fit."""
        if self.used_tokens + tokens > self.capacity_tokens:
            return False
        while self.free_tokens < tokens:
            self._evict_one()
        self.private_tokens += tokens
        return True

    def give_back(self, tokens: int) -> None:
        """Return privately held tokens."""
        self.private_tokens -= tokens

    def matched_blocks(self, blocks: Sequence[int]) -> tuple[int, int]:
        """(leading blocks on the device, further ones that follow in the host tier or on the device)."""
        pins, idle, host = self._pins, self._idle, self._host
        on_device = 0
        for block in blocks:
            if block not in pins and block not in idle:
                break
            on_device += 1
        behind = 0
        if host:
            for block in blocks[on_device:]:
                if block not in host and block not in pins and block not in idle:
                    break
                behind += 1
        return on_device, behind

    def pin(self, blocks: Sequence[int]) -> int | None:
        """Hold all of `blocks`, bringing in from the host tier those that are not on the device.

        Returns how many came from the host, or None (and nothing changed) when they do not fit.
        """
        pins, idle = self._pins, self._idle
        incoming = sum(1 for b in blocks if b not in pins and b not in idle)
        newly_pinned = sum(1 for b in blocks if b not in pins)
        if self.used_tokens + newly_pinned * self.block_tokens > self.capacity_tokens:
            return None
        for block in blocks:
            if block in pins:
                pins[block] += 1
            elif block in idle:
                del idle[block]
                pins[block] = 1
        for block in blocks:
            if block not in pins:
                while self.free_tokens < self.block_tokens:
                    self._evict_one()
                self._host.pop(block, None)
                pins[block] = 1
        return incoming

    def share(self, block: int) -> None:
        """Turn `block_tokens` private tokens into the pinned prefix block `block`, or drop them when it is already
        there."""
        self.private_tokens -= self.block_tokens
        if block in self._pins:
            self._pins[block] += 1
        else:
            self._idle.pop(block, None)
            self._host.pop(block, None)
            self._pins[block] = 1

    def unpin(self, blocks: Sequence[int]) -> None:
        """Let go of `blocks`, deepest first so that the deepest is evicted first."""
        pins = self._pins
        for block in reversed(blocks):
            if pins[block] == 1:
                del pins[block]
                self._idle[block] = None
            else:
                pins[block] -= 1

    def clear(self) -> None:
        """Lose everything, the host tier too (the replica died)."""
        self.private_tokens = 0
        self._pins.clear()
        self._idle.clear()
        self._host.clear()

    def check(self) -> None:
        """Raise AssertionError when the books do not balance; for tests."""
        assert self.private_tokens >= 0, "private tokens negative"
        assert self.private_tokens % self.page_tokens == 0, "private tokens are not whole pages"
        assert self.free_tokens >= 0, "over capacity"
        assert not set(self._pins) & set(self._idle), "a block is pinned and idle"
        assert len(self._host) <= self.host_capacity_blocks, "host tier over capacity"

    def _evict_one(self) -> None:
        block, _ = self._idle.popitem(last=False)
        self.evicted_blocks += 1
        if self.host_capacity_blocks:
            self._host[block] = None
            self._host.move_to_end(block)
            if len(self._host) > self.host_capacity_blocks:
                self._host.popitem(last=False)
