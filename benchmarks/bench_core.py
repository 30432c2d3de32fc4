"""The core under pytest-benchmark, for comparing two commits: `python -m pytest benchmarks/bench_core.py`.

`python -m benchmarks.report` measures the same cases and writes docs/performance.md.
"""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.cases import Case, core


@pytest.mark.parametrize("case", list(core()), ids=lambda case: case.name)
def test_speed(benchmark: Any, case: Case) -> None:
    """One case; the rate is in the extra columns of --benchmark-json."""
    benchmark(case.call)
    benchmark.extra_info[f"{case.unit} a second"] = case.amount / benchmark.stats.stats.median
