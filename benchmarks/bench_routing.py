"""How long routing takes on one core: `python benchmarks/bench_routing.py`. Figures are printed, not asserted.

The step model asks for 40 layers x 4,000 samples a cell; the aim for 40 layers x 10,000 steps is under a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from twin.routing import exact, weighted
from twin.routing.batch import RoutingNoise, RoutingParameters, RoutingShape, draw_busiest_rank, draw_experts
from twin.routing.evidence import measured_series, read_union, shipped_union
from twin.routing.families import FAMILIES
from twin.routing.selection import Curve, Extrapolation, select

FLASH = RoutingShape(layers=40, experts=384, top_k=6)


def best_of(work: Callable[[], object], repeats: int = 5) -> float:
    """Shortest wall time of a call, seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Print one line a benchmark."""
    what = {"streams": 4, "accepted_rows": 2.8, "rejected_rows": 3.2}
    for samples in (4_000, 10_000):
        noise = RoutingNoise.draw(0, FLASH.layers, samples)
        fixed = RoutingParameters(beta=0.747, cold_share=0.12)
        uncertain = RoutingParameters(
            beta=0.747 + 0.01 * np.linspace(-1, 1, samples), cold_share=np.full(samples, 0.12),
            rejected_weight=np.linspace(0.8, 1.2, samples), diversity=np.linspace(0.8, 1.0, samples),
        )  # fmt: skip
        report(f"draw noise, 40 x {samples:,}", best_of(lambda n=samples: RoutingNoise.draw(0, 40, n)))
        for name, parameters in (("fixed parameters", fixed), ("sampled parameters", uncertain)):
            call = lambda p=parameters, z=noise: draw_experts(FLASH, p, **what, cold_experts=99, noise=z)  # noqa: E731
            report(f"draw experts, 40 x {samples:,}, {name}", best_of(call))
            call = lambda p=parameters, z=noise: draw_busiest_rank(FLASH, p, **what, ranks=4, noise=z)  # noqa: E731
            report(f"busiest of 4 ranks, 40 x {samples:,}, {name}", best_of(call))
    rng = np.random.default_rng(0)
    for name, parameter in (("stretched", 0.75), ("beta_bernoulli", 3.4), ("sticky", 0.42)):
        family = FAMILIES[name](384, 6, parameter)
        report(f"{name}: exact sampling, 6 tokens, 40 x 10,000", best_of(lambda f=family: f.sample(rng, 6, 400_000), 2))
    report("exact distribution, 384/6, 6 tokens", best_of(lambda: exact.distribution(384, 6, 6)))
    report("exact distribution, 512/10, 4,096 tokens", best_of(lambda: exact.distribution(512, 10, 4096)))
    report(
        "exact busiest of 4 ranks, 384/6, 64 tokens", best_of(lambda: exact.largest_rank_distribution(384, 6, 64, 4))
    )
    weights = rng.gamma(1.0, size=384)
    report("inclusion of 384 weighted experts", best_of(lambda: weighted.inclusion(weights, 6)))
    report("variance of 384 weighted experts", best_of(lambda: weighted.variance_unique(weights, 6, 6), 1))
    rows = read_union(shipped_union())
    curve = Curve.of(measured_series(rows)["DeepSeek-V4.1-Flash", "ALL"])
    report("fit four families to one curve", best_of(lambda: Extrapolation(curve), 1))
    report("cross-validate four families on every series", best_of(lambda: select(rows), 1))


def report(name: str, seconds: float) -> None:
    """One aligned line."""
    print(f"{name:60s} {1e3 * seconds:9.2f} ms")


if __name__ == "__main__":
    main()
