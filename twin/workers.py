"""One seam for everything heavy: a `concurrent.futures.Executor`, in this process, on a pool of processes, or on a
cluster.

What runs through it is a function of a module and plain data, and results are taken in the order of submission, so an
answer has the same bytes wherever it was computed. The cluster is Dask distributed: it schedules, moves data, and runs
again what a lost worker had (the extra `cluster`).
"""

from __future__ import annotations

import importlib
import re
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from twin.errors import TwinError

T = TypeVar("T")
R = TypeVar("R")
CONNECT_TIMEOUT_S = 10
#: `--cluster local`: a Dask cluster of `workers` processes on this machine.
LOCAL = "local"


class InProcess(Executor):
    """Runs what is submitted at once, in this thread."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """A future that is done."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def worker_pool(workers: int, cluster: str | None = None) -> Iterator[Executor]:
    """An executor for the time of the block: `cluster` ("tcp://host:8786", or "local"), else `workers` processes.

    Raises TwinError when there is no cluster to reach or no Dask to reach it with.
    """
    if cluster is not None:
        with _cluster(cluster, workers) as executor:
            yield executor
    elif workers <= 1:
        yield InProcess()
    else:
        pool = ProcessPoolExecutor(max_workers=workers, initializer=_leave_interrupts_to_the_parent)
        try:
            yield pool
        except KeyboardInterrupt:
            stop(pool)
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _cluster(address: str, workers: int) -> Iterator[Executor]:
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        raise TwinError(
            "--cluster needs Dask distributed; install it with: pip install 'twin-lane[cluster]'."
        ) from None
    hint = "expected tcp://HOST:8786 of a running `dask scheduler`, or local"
    if address != LOCAL and not re.fullmatch(r"(tcp|tls)://\S+:\d{1,5}", address):
        raise TwinError(f"--cluster {address!r} is not an address; {hint}.")
    own = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if address == LOCAL:
                own = distributed.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address="127.0.0.1:0")
            client = distributed.Client(own or address, timeout=CONNECT_TIMEOUT_S, set_as_default=False)
        except (OSError, ValueError) as error:
            raise TwinError(f"--cluster {address!r}: cannot be reached ({str(error)[:200]}); {hint}.") from None
        try:
            yield client.get_executor()
        finally:
            client.close()
            if own is not None:
                own.close()


def executor_map(executor: Executor | None, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """`work` of every item in order, on the executor's workers; without one, here and one at a time as asked for."""
    return map(work, items) if executor is None else iter(executor.map(work, items))


def done(result: R) -> Future[R]:
    """A future that holds what is known already."""
    future: Future[R] = Future()
    future.set_result(result)
    return future


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def stop(executor: Executor) -> None:
    """End processes in the middle of what they do: a serving simulation may take minutes, and nobody waits for it."""
    # `terminate_workers` is Python 3.14's; before that a pool's processes are an attribute nobody promises.
    for process in list((getattr(executor, "_processes", None) or {}).values()):
        process.terminate()


@contextmanager
def worker_failures_explained(kept: str) -> Iterator[None]:
    """Workers that are gone for good become a TwinError that says what is `kept`."""
    try:
        yield
    except BrokenExecutor as error:
        raise TwinError(f"a worker process died ({error}); {kept}") from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "distributed":
            raise
        raise TwinError(f"the cluster gave up ({str(error)[:200]}); {kept}") from None
