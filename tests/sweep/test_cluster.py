"""A real Dask cluster: a scheduler and two worker processes on loopback, one of them killed in the middle."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
from sweep_support import design, swept

from twin.planning import sweep
from twin.workers import worker_pool

distributed = pytest.importorskip("distributed", reason="needs Dask distributed: pip install 'twin-lane[cluster]'")


# Tornado and Dask warn about their own shutdown when a worker is killed; that is what the test does.
@pytest.mark.filterwarnings("default")
def test_a_killed_worker_changes_no_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "CHUNK_CELLS", 10)
    grid = design("k=0..9", "streams=1..20")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None, silence_logs=50
    ) as cluster:
        seen: dict[str, int] = {}

        def kill_one() -> None:
            with distributed.Client(cluster.scheduler_address, set_as_default=False) as client:
                while True:
                    info = client.scheduler_info()["workers"]
                    busy = {a: w["metrics"].get("task_counts", {}).get("memory", 0) for a, w in info.items()}
                    if len(info) == 2 and any(busy.values()):
                        break
                    time.sleep(0.02)
                pids = client.run(os.getpid)
                address = max(busy, key=lambda a: busy[a])
                seen["pid"] = pids[address]
                os.kill(pids[address], signal.SIGKILL)

        killer = threading.Thread(target=kill_one, daemon=True)
        killer.start()
        with worker_pool(2, cluster.scheduler_address) as executor:
            found = swept(grid, executor, samples=64)
        killer.join(timeout=10)
        assert seen["pid"], "no worker was killed while the sweep ran"
    assert found == swept(grid, samples=64)
