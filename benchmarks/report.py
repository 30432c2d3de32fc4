"""Measure everything and write docs/performance.md: `python -m benchmarks.report`.

About five minutes. `--quick` leaves out the sweep of 100,000 cells and keeps what the page said of it.
"""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.cases import core
from benchmarks.growth import growths
from benchmarks.precision import MANY, precision
from benchmarks.timing import measure
from twin.lane.catalogue import catalogue_roots
from twin.planning.grid import make_design, parse_axis
from twin.planning.sweep import SAMPLES, plan_inputs, run
from twin.workers import worker_pool

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
SWEEP_LANES = ("sidecar", "tp4", "gb10x4-vllm", "rtx4-vllm-adaptive")
SWEEP_AXES = ("k=0..9", "streams=1..500", "traffic=prose,code,mixed,json,math")


def machine() -> str:
    """What the numbers were measured on."""
    with open("/proc/cpuinfo", encoding="utf-8") as stream:
        model = next(
            (line.partition(":")[2].strip() for line in stream if line.startswith("model name")), platform.processor()
        )
    return f"{model}, {os.cpu_count()} shared cores, load {os.getloadavg()[0]:.1f} when it began; Python {platform.python_version()}, NumPy {np.__version__}"


def core_table() -> Iterator[str]:
    """One row a case."""
    yield "| what | aim | median, processor time | median, wall | fastest call |"
    yield "|---|---|---|---|---|"
    for case in core():
        t = measure(case.call)
        if case.at_most_s is not None:
            aim, show = f"at most {1e3 * case.at_most_s:.0f} ms", lambda s: f"{1e3 * s:.1f} ms"
        else:
            aim, show = f"{case.at_least:,.0f} {case.unit}/s", _rate(case.amount)
        yield f"| {case.name} | {aim} | {show(t.cpu_s)} | {show(t.wall_s)} | {show(t.best_s)} |"


def _rate(amount: int) -> Callable[[float], str]:
    return lambda s: f"{amount / s:,.0f}/s"


def process_table() -> Iterator[str]:
    """Whole processes, as a person waits for them."""
    python = [sys.executable, "-m", "twin.cli.main"]
    commands = {"twin --help": (["--help"], 0.15), "twin predict --lane tp4": (["predict", "--lane", "tp4"], 0.4)}
    yield "| process | aim | median, processor time | median, wall | fastest |"
    yield "|---|---|---|---|---|"
    for name, (arguments, aim) in commands.items():
        wall, cpu = [], []
        for _ in range(9):
            w, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([*python, *arguments], check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            wall.append(time.perf_counter() - w)
            cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        yield f"| `{name}` | {aim} s | {median(cpu):.2f} s | {median(wall):.2f} s | {min(wall):.2f} s |"


def sweep_table() -> Iterator[str]:
    """100,000 cells on two processes, and a tenth of them, for memory."""
    yield "| sweep on two processes | wall | processor time | cells a processor second | largest process |"
    yield "|---|---|---|---|---|"
    for streams in (50, 500):
        design = make_design(SWEEP_LANES, [parse_axis(a.replace("1..500", f"1..{streams}")) for a in SWEEP_AXES])
        inputs = plan_inputs(design, catalogue_roots(), calibration=None, seed=0, samples=SAMPLES)
        before = _used()
        start = time.perf_counter()
        with worker_pool(2) as executor:
            for _ in run(design, inputs, executor, ahead=8):
                pass
        wall, used = time.perf_counter() - start, _used() - before
        peak = max(resource.getrusage(w).ru_maxrss for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
        yield f"| {len(design):,} cells, {SAMPLES} samples each | {wall:.0f} s | {used:.0f} s | {len(design) / used:,.0f} | {peak:.0f} MB |"


def _used() -> float:
    both = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in both)


def growth_table() -> Iterator[str]:
    """Sizes, times, exponents."""
    yield "| over | sizes | processor time | time exponent | memory exponent |"
    yield "|---|---|---|---|---|"
    for g in growths():
        times = ", ".join(f"{1e3 * s:.3g}" for s in g.seconds)
        yield f"| {g.name} | {', '.join(f'{s:,}' for s in g.sizes)} | {times} ms | {g.time_exponent:.2f} | {g.memory_exponent:.2f} |"


def precision_table() -> Iterator[str]:
    """Few samples against many."""
    yield "| samples a cell | metric | error of the mean (median) | error of the width p05 to p95 (median) | (90 % of cells) |"
    yield "|---|---|---|---|---|"
    for samples, metric, mean, width, worst in precision():
        yield f"| {samples:,} | {metric} | {100 * mean:.2f} % | {100 * width:.0f} % | {100 * worst:.0f} % |"


SECTIONS: list[tuple[str, str, Callable[[], Iterator[str]]]] = [
    ("Sweep", "Cells are k x streams x lanes x traffic. Memory is that of the largest process: the same for a tenth of the cells.", sweep_table),
    ("Core, one core", "An engine's step is one verify step of one sample. `resolved` means durations are there; `with sampling` draws the experts of every layer from common random numbers first.", core_table),
    ("Whole processes", "From the shell to the end, files of the catalogue in the system's cache.", process_table),
    ("Growth", "Exponent b of time (memory) = a x size^b, fitted over all sizes. Linear or below; a few hundredths more where the arrays of a cell outgrow the cache (samples), less where a fixed part still counts.", growth_table),
    ("Samples of a sweep", f"Random cells of two lanes, five seeds, against {MANY:,} samples. All cells of a sweep share their draws, so the error between two cells of one sweep is smaller.", precision_table),
]  # fmt: skip


def main() -> None:
    """Measure and write the page."""
    quick = "--quick" in sys.argv[1:]
    before = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    lines: list[str] = [
        "# Performance", "", "Written by `python -m benchmarks.report`; do not edit.", "", f"Measured on: {machine()}.",
        "Other programs used the same cores, so wall times are what a busy machine gives; processor time is what the code asks for",
        "(hardware threads that share a core slow each other in both).", "",
    ]  # fmt: skip
    for title, text, table in SECTIONS:
        lines += [f"## {title}", "", text, ""]
        old = _section(before, title) if quick and title == "Sweep" else None
        lines += (old or list(table())) + [""]
        print(f"{title}: done", file=sys.stderr)
    PAGE.write_text("\n".join(lines), encoding="utf-8")


def _section(page: str, title: str) -> list[str]:
    rest: Any = page.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return [line for line in rest.splitlines() if line.startswith("|")]


if __name__ == "__main__":
    main()
