"""How fast the serving simulation is on one core: `python benchmarks/bench_serving.py`. Figures are printed, not asserted.

The aims: an hour of the Azure 2023 conversation trace (19,366 requests, 22 million prompt tokens) through one lane in under
10 s and 300 MB; the cost of a simulated step flat as the trace grows 1, 4, 16 times; a plan search in under two minutes.
Each case runs in a process of its own, so that its peak memory is its own; CPU seconds do not count what others do.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

TRACE = Path(__file__).parent / "data" / "azure_conv_2023.csv.gz"


def replay_trace(repeat: int) -> str:
    """The trace `repeat` times through the sidecar lane."""
    from twin.lane.catalogue import catalogue_roots
    from twin.planning.server import make_server, serve
    from twin.planning.study import Arrivals, Extent, Option, TrafficShare

    option = Option(name="sidecar", lane="sidecar", max_seqs=64)
    start = time.process_time()
    server = make_server(option, [TrafficShare(name="mixed")], catalogue_roots())
    ready = time.process_time()
    run = serve(server, Arrivals(kind="trace", trace=str(TRACE), repeat=repeat), Extent())
    seconds = time.process_time() - ready
    result = run.result
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return (
        f"Azure conversation x {repeat:<3} {result.requests.finished:>8,} requests {result.steps:>10,} steps "
        f"{seconds:7.2f} s {1e6 * seconds / result.steps:6.1f} us/step {result.requests.finished / seconds:8,.0f} requests/s "
        f"{peak_mb:6.0f} MB   (step table {ready - start:.2f} s)"
    )


def queue(n: int) -> str:
    """One-token requests through one server: the floor of cost per request."""
    from itertools import repeat

    from twin.serving.config import Deployment, Limits
    from twin.serving.request import Request
    from twin.serving.simulate import simulate
    from twin.serving.steptime import ConstantStepTime

    requests = (Request(i, 0.03 * i, 1, 1) for i in range(n))
    start = time.process_time()
    simulate(
        Deployment(limits=Limits(max_seqs=1)),
        ConstantStepTime(0.02),
        [0, 0],
        lambda r, k: repeat(1),
        requests,
        warmup_s=0.0,
    )
    seconds = time.process_time() - start
    return f"one-token requests    {n:>10,} requests {seconds:7.2f} s {n / seconds:8,.0f} requests/s"


def plan_search(_: int) -> str:
    """The largest rate of one lane under an SLO, four replications, in one process."""
    from twin.lane.catalogue import catalogue_roots
    from twin.planning.capacity import largest_load
    from twin.planning.server import make_server
    from twin.planning.slo import parse_slo
    from twin.planning.study import Arrivals, Extent, Option, TrafficShare

    start = time.process_time()
    server = make_server(Option(name="sidecar", lane="sidecar"), [TrafficShare(name="mixed")], catalogue_roots())
    found = largest_load(server, Arrivals(rate=1.0), Extent(), parse_slo("p95 TTFT 2 s, p99 TPOT 25 ms"))
    seconds = time.process_time() - start
    return f"plan search           {found.runs:>10} runs {seconds:13.2f} s   largest rate {found.load:.2f} a second"


def read_rows(n: int) -> str:
    """A plain CSV trace of n rows, read in a stream."""
    import tempfile

    from twin.serving.trace_formats import open_trace

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        with path.open("w") as out:
            out.write("arrival_s,prompt_tokens,output_tokens\n")
            for i in range(n):
                out.write(f"{i * 0.01:.2f},{100 + i % 900},{50 + i % 300}\n")
        start = time.process_time()
        rows = sum(1 for _ in open_trace(path).rows())
        seconds = time.process_time() - start
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return f"reading a trace       {rows:>10,} rows {seconds:13.2f} s {rows / seconds:10,.0f} rows/s {peak_mb:6.0f} MB"


CASES: tuple[tuple[Callable[[int], str], int], ...] = (
    (replay_trace, 1), (replay_trace, 4), (replay_trace, 16), (queue, 200_000), (read_rows, 1_000_000), (plan_search, 0),
)  # fmt: skip


def main() -> None:
    """Run every case in a fresh process."""
    for case, size in CASES:
        with get_context("spawn").Pool(1) as pool:
            print(pool.apply(case, (size,)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
