"""Plain counters and histograms that are turned into Prometheus families when somebody asks.

A decode step books a gap for every stream; weights keep that one addition however many streams there are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

#: bucket edges of vLLM's histograms, seconds
TTFT_EDGES = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
TPOT_EDGES = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_EDGES = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
STEP_TOKEN_EDGES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
LENGTH_EDGES = tuple(m * 10**e for e in range(7) for m in (1, 2, 5))


class WeightedHistogram:
    """Counts by bucket, `edges` rising and inclusive above, with the sum of what was observed."""

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = tuple(float(e) for e in edges)
        self.total = 0.0
        self.count = 0
        self._counts = [0] * (len(self.edges) + 1)

    def add(self, value: float, times: int = 1) -> None:
        """Observe `value` so many times."""
        self._counts[bisect_left(self.edges, value)] += times
        self.total += value * times
        self.count += times

    def buckets(self) -> list[tuple[str, float]]:
        """(upper edge as Prometheus writes it, cumulative count), +Inf last."""
        found, so_far = [], 0
        for edge, n in zip((*map(str, self.edges), "+Inf"), self._counts, strict=True):
            so_far += n
            found.append((edge, float(so_far)))
        return found
