"""What few samples cost a sweep: its numbers against those of many samples, over random cells."""

from __future__ import annotations

import json

import numpy as np

from benchmarks.cases import LANES
from twin.lane.catalogue import catalogue_roots
from twin.planning.grid import make_design, parse_axis
from twin.planning.sweep import plan_inputs, run
from twin.workers import InProcess

MANY = 8000
METRICS = ("step_ms", "tok_s_aggregate")


def precision(
    few: tuple[int, ...] = (64, 128, 256, 1000), cells: int = 60
) -> list[tuple[int, str, float, float, float]]:
    """(samples, metric, median relative error of the mean, median and 90 % absolute error of the width p05..p95)."""
    axes = [parse_axis(a) for a in ("k=0..7", "streams=1..32", "traffic=prose,code,mixed")]
    design = make_design(LANES, axes, random=cells // len(LANES))

    def rows(samples: int, seed: int) -> list[dict[str, float]]:
        inputs = plan_inputs(design, catalogue_roots(), calibration=None, seed=seed, samples=samples)
        return [json.loads(line) for body in run(design, inputs, InProcess()) for line in body.splitlines()]

    truth = rows(MANY, 1)
    found = []
    for samples in few:
        runs = [rows(samples, seed) for seed in (2, 3, 4, 5, 6)]
        for metric in METRICS:
            mean, width = [], []
            for run_rows in runs:
                for row, true in zip(run_rows, truth, strict=True):
                    mean.append(abs(row[metric] / true[metric] - 1.0))
                    high, low = f"{metric}_p95", f"{metric}_p05"
                    width.append(abs((row[high] - row[low]) / (true[high] - true[low]) - 1.0))
            found.append(
                (samples, metric, float(np.median(mean)), float(np.median(width)), float(np.quantile(width, 0.9)))
            )
    return found
