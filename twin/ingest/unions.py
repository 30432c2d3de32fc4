"""Unions of an ordered expert trace, folded while it is read: distinct experts in windows of consecutive tokens.

A trace of one text can hold gigabytes; what a fit wants of it are a few means. Windows of one length do not overlap; the
scatter between passages of them gives the mean's standard error. Layers see the same text, so their errors are taken as common:
the mean over layers is no more certain than one of them (an upper bound).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from twin.routing.fitting import LENGTHS, MIN_PASSAGES, PASSAGE_TOKENS, passage_error

Floats = npt.NDArray[np.float64]
#: least common multiple of the lengths: pieces of it cut no window in two
PIECE_TOKENS = 48
MIN_WINDOWS = 4


@dataclass
class UnionFold:
    """Running sums by window length and layer, and routes by layer and expert, of the tokens added so far."""

    top_k: int
    tokens: int = 0
    largest_id: int = 0
    sums: dict[int, Floats] = field(default_factory=dict)
    squares: dict[int, Floats] = field(default_factory=dict)
    windows: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict)
    #: passages so far and, over them, the sums of S^2, S n and n^2 (`passage_error`), by length and layer
    passages: dict[int, Floats] = field(default_factory=dict)
    routes: Floats = field(default_factory=lambda: np.zeros((0, 0)))

    def add(self, ids: npt.NDArray[Any], first_layer: int = 0) -> None:
        """Fold consecutive tokens of one stream in, shape (tokens, layers, K); the layers start at `first_layer`.

        A window never spans two calls, so pieces should be multiples of PIECE_TOKENS where the stream goes on.
        """
        tokens, layers, top_k = ids.shape
        last = first_layer + layers
        self.tokens += tokens if first_layer == 0 else 0
        self.largest_id = max(self.largest_id, int(ids.max()))
        self._count(ids, first_layer)
        for m in LENGTHS:
            self.sums[m] = _grown(self.sums.get(m), last)
            self.squares[m] = _grown(self.squares.get(m), last)
            self.windows[m] = _grown(self.windows.get(m), last).astype(np.int64)
            self.passages[m] = _grown(self.passages.get(m, np.zeros((0, 4))), last)
            blocks = tokens // m
            if blocks == 0:
                continue
            flat = ids[: blocks * m].reshape(blocks, m, layers, top_k).swapaxes(1, 2).reshape(blocks, layers, m * top_k)
            flat = np.sort(flat, axis=2)
            distinct = 1.0 + (np.diff(flat, axis=2) != 0).sum(axis=2)
            self.sums[m][first_layer:last] += distinct.sum(axis=0)
            self.squares[m][first_layer:last] += (distinct**2).sum(axis=0)
            self.windows[m][first_layer:last] += blocks
            width = PASSAGE_TOKENS // m
            starts = np.arange(0, blocks, width)
            sums = np.add.reduceat(distinct, starts, axis=0)
            sizes = np.diff(np.append(starts, blocks)).astype(float)[:, None]
            told = np.ones_like(sums), sums**2, sums * sizes, sizes**2 + 0.0 * sums
            self.passages[m][first_layer:last] += np.stack([part.sum(axis=0) for part in told], axis=1)

    @property
    def layers(self) -> int:
        """Layers seen so far."""
        return int(self.routes.shape[0])

    def means(self, least: int = 1) -> dict[int, tuple[float, float, int]]:
        """By window length: distinct experts a layer, the standard error, and the windows of a layer; lengths with
        fewer than `least` windows in some layer are left out.
        """
        found = {}
        for m in sorted(self.sums):
            count = self.windows[m]
            if int(count.min()) < least:
                continue
            mean = self.sums[m] / count
            variance = np.maximum(self.squares[m] / count - mean**2, 0.0) * count / np.maximum(count - 1, 1)
            error = np.sqrt(variance / count)
            passages, squares, cross, sizes = self.passages[m].T
            if passages.min() >= MIN_PASSAGES:
                error = passage_error(mean, count, passages, squares, cross, sizes)
            found[m] = float(mean.mean()), float(np.mean(error)), int(count.min())
        return found

    def _count(self, ids: npt.NDArray[Any], first_layer: int) -> None:
        layers, experts = first_layer + ids.shape[1], int(ids.max()) + 1
        if layers > self.routes.shape[0] or experts > self.routes.shape[1]:
            grown = np.zeros((max(layers, self.routes.shape[0]), max(experts, self.routes.shape[1])))
            grown[: self.routes.shape[0], : self.routes.shape[1]] = self.routes
            self.routes = grown
        width = self.routes.shape[1]
        for layer in range(ids.shape[1]):
            self.routes[first_layer + layer] += np.bincount(ids[:, layer].ravel(), minlength=width)


def _grown(values: npt.NDArray[Any] | None, size: int) -> npt.NDArray[Any]:
    if values is None:
        return np.zeros(size)
    missing = (size - len(values), *values.shape[1:])
    return values if len(values) >= size else np.concatenate([values, np.zeros(missing, values.dtype)])
