"""What the quick commands import: start-up time is a matter of modules, so that is what is tested, not seconds."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    "scipy",
    "matplotlib",
    "simpy",
    "starlette",
    "uvicorn",
    "httpx",
    "jinja2",
    "distributed",
    "dask",
    "pyarrow",
    "pandas",
    "emcee",
}
_RUN = """
import contextlib, io, json, sys
from twin.cli.main import cli
with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
    try:
        cli.main(sys.argv[1:], standalone_mode=False)
    except SystemExit:
        pass
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def imported(*arguments: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", _RUN, *arguments], check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "--lane", "tp4", "--k", "3", "--json"],
        ["predict", "--lane", "sidecar", "-c", "1,4"],
        ["sweep", "--lane", "tp4", "--grid", "k=0..1", "--samples", "8", "--format", "csv"],
    ],
)
def test_predict_and_sweep_stay_light(arguments: list[str]) -> None:
    assert not imported(*arguments) & HEAVY


def test_help_does_not_even_need_numpy() -> None:
    assert not imported("--help") & (HEAVY | {"numpy", "pydantic", "rich"})
