"""A real Dask cluster: a scheduler and two worker processes on loopback, one of them killed in the middle."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import heavy
import pytest
from sweep_support import design, inputs, swept

from twin.planning import sweep
from twin.workers import worker_pool

distributed = pytest.importorskip("distributed", reason="needs Dask distributed: pip install 'twin-lane[cluster]'")

# Tornado and Dask warn about their own shutdown when a worker is killed; that is what the last test does.
pytestmark = pytest.mark.filterwarnings("default")
CHUNKS = 40
KILL_AFTER = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        silence_logs=50,
    ) as found:
        yield found


def _pids(cluster: Any) -> set[int]:
    with distributed.Client(cluster.scheduler_address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=30)
        return set(client.run(os.getpid).values())


@pytest.mark.parametrize("work", [heavy.fit_from_several_starts, heavy.plan], ids=lambda f: f.__name__)
def test_a_cluster_gives_the_bytes_of_one_process(work: Any, cluster: Any) -> None:
    """The scheduler is reached by its address, as on several machines."""
    assert cluster.scheduler_address.startswith("tcp://127.0.0.1:")
    with worker_pool(1, cluster.scheduler_address) as executor:
        assert work(executor) == work(None)


def test_a_killed_worker_changes_no_byte(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "CHUNK_CELLS", 10)
    grid = design("k=0..9", "streams=1..20")
    pids = _pids(cluster)
    assert len(pids) == 2 and os.getpid() not in pids
    bodies = []
    with worker_pool(2, cluster.scheduler_address) as executor:
        for body in sweep.run(grid, inputs(grid, 64), executor, ahead=8):
            bodies.append(body)
            if len(bodies) == KILL_AFTER:
                # Eight chunks are on their way and more are to come: the loss falls into the middle.
                os.kill(min(pids), signal.SIGKILL)
    assert len(bodies) == CHUNKS > KILL_AFTER
    assert b"".join(bodies) == swept(grid, samples=64)
