"""Tokens kept by each verify step of a stream, drawn in blocks and handed out one by one.

Acceptance is drawn per request and per step. A NumPy call for every step would cost more than the step itself, so a
block of draws is taken at a time for each (class, profile, k) and every stream of that kind takes the next ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, Protocol

import numpy as np

from twin.serving.request import Request

BLOCK = 4096


class AcceptanceDraw(Protocol):
    """Acceptance of one traffic class."""

    def kept(self, streams: int, k: int, rng: np.random.Generator) -> Any:
        """Tokens kept by one verify step of each of `streams` streams: integers from 1 to k + 1, bonus included."""
        ...


class FixedAcceptance:
    """Independent positions with one conditional acceptance `p`: P(kept > j) = p^j. For tests and for
    `--acceptance`."""

    def __init__(self, p: float) -> None:
        self.p = p

    def kept(self, streams: int, k: int, rng: np.random.Generator) -> Any:
        """Geometric, cut off at k + 1."""
        if self.p <= 0.0 or k == 0:
            return np.ones(streams, dtype=int)
        if self.p >= 1.0:
            return np.full(streams, k + 1)
        return np.minimum(rng.geometric(1.0 - self.p, size=streams), k + 1)


class ProfileDraw:
    """Acceptance from survival by position: `survival_of_k[k][p - 1]` is P(first p drafts all accepted)."""

    def __init__(self, survival_of_k: dict[int, Sequence[float]]) -> None:
        self._survival = {k: np.asarray(s, dtype=float)[::-1] for k, s in survival_of_k.items()}

    def kept(self, streams: int, k: int, rng: np.random.Generator) -> Any:
        """1 + the number of positions whose survival exceeds a uniform draw."""
        falling = self._survival[k]  # reversed: rising
        return 1 + falling.size - np.searchsorted(falling, rng.random(streams), side="right")


class DrawSource:
    """Turns the acceptance of each class into iterators; every (class, profile, k) has random numbers of its own."""

    def __init__(
        self,
        classes: Sequence[Sequence[AcceptanceDraw]],
        seed: int,
        *,
        weights: Sequence[Sequence[float]] | None = None,
    ) -> None:
        """`classes[traffic][profile]`: a class may have several profiles, and a request follows one of them.

        `weights[traffic]` are the shares of requests by profile; equal without.
        """
        self._classes = classes
        self._seed = seed
        self._weights = weights
        self._iterators: dict[tuple[int, int, int], Iterator[int]] = {}

    def __call__(self, request: Request, k: int) -> Iterator[int]:
        """The iterator a stream takes its kept tokens from at draft length k."""
        key = (request.traffic, request.profile, k)
        iterator = self._iterators.get(key)
        if iterator is None:
            rng = np.random.default_rng([self._seed, 7, *key])
            iterator = self._iterators[key] = _endless(self._classes[key[0]][key[1]], k, rng)
        return iterator

    def choose_profiles(self, traffic: int, rng: np.random.Generator, requests: int) -> Any:
        """A profile for each of `requests` requests of a class, shape (requests,)."""
        profiles = len(self._classes[traffic])
        if profiles == 1:
            return np.zeros(requests, dtype=np.int64)
        if self._weights is None:
            return rng.integers(profiles, size=requests)
        weights = np.asarray(self._weights[traffic], dtype=float)
        return rng.choice(profiles, size=requests, p=weights / weights.sum())


def _endless(acceptance: AcceptanceDraw, k: int, rng: np.random.Generator) -> Iterator[int]:
    if k == 0:
        return repeat(1)
    return _blocks(acceptance, k, rng)


def _blocks(acceptance: AcceptanceDraw, k: int, rng: np.random.Generator) -> Iterator[int]:
    while True:
        yield from np.asarray(acceptance.kept(BLOCK, k, rng)).tolist()
