"""The same bytes whatever the worker count, for everything that runs through the one seam."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from heavy import HEAVY

from twin.cli.main import cli
from twin.errors import TwinError
from twin.workers import InProcess, executor_map, stop, worker_pool


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with worker_pool(2) as executor:
        yield executor


@pytest.mark.parametrize("heavy", HEAVY, ids=lambda f: f.__name__)
def test_two_processes_give_the_bytes_of_one(heavy: Callable[[Executor | None], str], pool: Executor) -> None:
    assert heavy(pool) == heavy(None)


@pytest.mark.parametrize("name", ["sweep", "fit", "validate", "plan", "simulate"])
def test_every_heavy_command_has_both_options(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    options = {option for p in command.params for option in p.opts}
    assert {"--workers", "--cluster"} <= options


@pytest.mark.parametrize(
    "arguments",
    [
        ["sweep", "--lane", "tp4", "--grid", "k=1"],
        ["fit", "--lane", "tp4"],
        ["validate", "--lane", "tp4"],
        ["plan", "--lane", "tp4", "--slo", "p95 TTFT 2 s"],
        ["simulate", "--lane", "tp4", "-c", "1", "--requests", "2", "--output", "5", "--replications", "2"],
    ],
    ids=lambda a: a[0],
)
def test_an_address_that_is_none_is_refused_by_every_command(arguments: list[str]) -> None:
    pytest.importorskip("distributed", reason="needs Dask distributed: pip install 'twin-lane[cluster]'")
    found = CliRunner().invoke(cli, [*arguments, "--cluster", "scheduler"])
    assert isinstance(found.exception, TwinError) and "'scheduler' is not an address" in str(found.exception)


def test_without_an_executor_the_work_is_done_as_it_is_asked_for() -> None:
    called: list[int] = []

    def work(i: int) -> int:
        called.append(i)
        return i * i

    results = executor_map(None, work, range(3))
    assert next(results) == 0 and called == [0]
    assert list(executor_map(InProcess(), work, range(3))) == [0, 1, 4]


def _wait(path: str) -> None:
    import time

    Path(path).touch()
    time.sleep(60)


def test_workers_can_be_stopped_in_the_middle(tmp_path: Path) -> None:
    with worker_pool(2) as executor:
        future = executor.submit(_wait, str(tmp_path / "began"))
        while not (tmp_path / "began").exists():
            pass
        stop(executor)
        assert future.exception(timeout=30) is not None
    stop(InProcess())
