"""A sweep's numbers are those of predict; its bytes do not depend on workers, interruptions or damaged files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sweep_support import design, inputs, swept

from twin.errors import CatalogueError, TwinError
from twin.lane.catalogue import catalogue_roots, load_lane
from twin.lane.override import override
from twin.planning import sweep
from twin.planning.predict import CellRequest, make_predictor
from twin.planning.sensitivity import RUN, half_widths, saltelli, sensitivity
from twin.planning.store import ChunkStore
from twin.planning.sweep import METRICS, columns, evaluate, run
from twin.workers import InProcess, worker_pool


def rows_of(body: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in body.splitlines()]


def test_a_cell_is_the_cell_of_predict() -> None:
    """At equal samples, seven digits (what a row is rounded to)."""
    grid = design("k=0,5", "streams=1,6", "placement.hot=290,300", lanes=["sidecar"])
    for row in rows_of(swept(grid, samples=100)):
        lane = override(load_lane("sidecar", catalogue_roots()), [f"placement.hot={row['placement.hot']}"])
        predictor = make_predictor(lane, str(row["traffic"]), catalogue_roots(), calibration=None, samples=100)
        cell = predictor.cell(CellRequest(int(str(row["k"])), int(str(row["streams"])), str(row["verification"]), 2048))
        for metric in METRICS:
            interval = getattr(cell, metric)
            assert [row[metric], row[f"{metric}_p05"], row[f"{metric}_p95"]] == pytest.approx(
                [interval.mean, interval.p05, interval.p95], rel=1e-6
            )


def test_every_row_has_the_columns_in_order() -> None:
    grid = design("k=0,1", "placement.hot=300,384", lanes=["sidecar"])
    for row in rows_of(swept(grid)):
        assert list(row) == columns(grid) if not row["refused"] else set(row) <= set(columns(grid))


def test_what_cannot_be_is_a_row_that_says_why() -> None:
    by_hot = {
        row["placement.hot"]: row for row in rows_of(swept(design("placement.hot=0,300,9999", lanes=["sidecar"])))
    }
    assert "does not fit" in str(by_hot["0"]["refused"]) and "384" in str(by_hot["9999"]["refused"])
    assert by_hot["300"]["refused"] == "" and by_hot["300"]["fits_memory"] is True


def test_a_key_that_does_not_exist_is_refused_before_anything_runs() -> None:
    with pytest.raises(CatalogueError, match=r"--grid .*placement\.hot"):
        inputs(design("placement.hott=1", lanes=["sidecar"]))


def test_the_same_bytes_whatever_the_worker_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "CHUNK_CELLS", 7)
    grid = design("k=0..3", "streams=1..5")
    with worker_pool(2) as pool:
        assert swept(grid, pool) == swept(grid)


def test_chunk_size_changes_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = design("k=0..3", "streams=1..5")
    whole = swept(grid)
    monkeypatch.setattr(sweep, "CHUNK_CELLS", 3)
    assert swept(grid) == whole


def test_an_interrupted_sweep_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "CHUNK_CELLS", 5)
    grid, store = design("k=0..3", "streams=1..5"), ChunkStore(tmp_path)
    calls = []

    class Stops(InProcess):
        def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
            if len(calls) == 4:
                raise KeyboardInterrupt
            calls.append(args)
            return super().submit(fn, *args, **kwargs)

    with pytest.raises(KeyboardInterrupt):
        list(run(grid, inputs(grid), Stops(), store=store, ahead=3))
    assert len(list(tmp_path.iterdir())) == 4  # also the chunks whose turn had not come
    calls.clear()

    class Counts(InProcess):
        def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
            calls.append(args)
            return super().submit(fn, *args, **kwargs)

    assert swept(grid, Counts(), store=store) == swept(grid)
    assert len(calls) == 8 - 4
    assert store.corrupt == []


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-40], lambda b: b.replace(b'"k": 1', b'"k": 2', 1), lambda b: b"", lambda b: b"\xff\n" * 9]
)
def test_a_damaged_file_is_found_and_computed_again(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    grid, store = design("k=0..1", lanes=["tp4"]), ChunkStore(tmp_path)
    clean = swept(grid, store=store)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert swept(grid, store=store) == clean
    assert store.corrupt == [path.name]
    assert swept(grid, store=ChunkStore(tmp_path)) == clean


def test_another_question_is_another_key() -> None:
    one, two = design("k=0..1"), design("k=0..2")
    keys = {next(iter(sweep.chunks(d, inputs(d, samples)))).key for d in (one, two) for samples in (8, 9)}
    assert len(keys) == 4


def test_a_worker_with_other_files_refuses() -> None:
    grid = design("k=1", lanes=["tp4"])
    planned = inputs(grid, samples=9)
    changed = sweep.Inputs(
        planned.roots, None, 0, 9, tuple((n, "0" if n == "lane tp4" else h) for n, h in planned.sha256)
    )
    with pytest.raises(CatalogueError, match="differs from the one of the sweep"):
        evaluate(next(iter(sweep.chunks(grid, changed))))


def test_a_cluster_that_is_not_there_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="needs Dask distributed: pip install 'twin-lane[cluster]'")
    monkeypatch.setattr("twin.workers.CONNECT_TIMEOUT_S", 1)
    for address, says in (("tcp://127.0.0.1:9", "cannot be reached"), ("nonsense", "not an address")):
        with pytest.raises(TwinError, match=f"--cluster.*{says}"), worker_pool(1, address):
            pass


def test_sensitivity_of_an_answer_that_hangs_on_one_thing() -> None:
    """Tokens per step hang on acceptance alone; plain decoding keeps one token whatever happens."""
    lane = load_lane("tp4", catalogue_roots())
    predictor = make_predictor(lane, "mixed", catalogue_roots(), samples=8)
    found = sensitivity(predictor, CellRequest(3, 4, "token", 2048), "tokens_per_step", points=64)
    assert found[0].parameter == "acceptance of the class" and found[0].total == pytest.approx(1.0, abs=0.2)
    assert all(i.total < 1e-9 for i in found[1:])
    step = sensitivity(predictor, CellRequest(3, 4, "token", 2048), "step_ms", points=128)
    assert sum(i.first for i in step) == pytest.approx(1.0, abs=0.25)  # nearly additive in the logs
    assert {i.parameter for i in step if i.total > 0.02} >= {RUN}
    with pytest.raises(TwinError, match="nothing uncertain"):
        sensitivity(predictor, CellRequest(0, 1, "token", 2048), "tokens_per_step", points=64)


def test_indices_of_a_function_whose_indices_are_known() -> None:
    """Ishigami and Homma (1990): sin x1 + 7 sin^2 x2 + 0.1 x3^4 sin x1, x uniform on -pi to pi; 1,024 points."""
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-np.pi, np.pi, (2, 3, 1024))
    mixed = np.stack([np.where(np.arange(3)[:, None] == i, b, a) for i in range(3)])
    f_a, f_b, f_ab = (_ishigami(x)[..., None, :] for x in (a, b, mixed))
    first, total = (found[0] for found in saltelli(f_a, f_b, f_ab))
    width = half_widths(f_a, f_b, f_ab, seed=1)
    assert first == pytest.approx([0.314, 0.442, 0.0], abs=0.12)
    assert total == pytest.approx([0.558, 0.442, 0.244], abs=0.12)
    assert np.all((width > 0.01) & (width < 0.2))
    assert half_widths(f_a, f_b, f_ab, seed=1).tolist() == width.tolist()


def _ishigami(x: np.ndarray) -> np.ndarray:
    one, two, three = (x[..., i, :] for i in range(3))
    return np.asarray(np.sin(one) + 7.0 * np.sin(two) ** 2 + 0.1 * three**4 * np.sin(one))
