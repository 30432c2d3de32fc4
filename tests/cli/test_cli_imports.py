"""Start-up is a matter of what is imported: seconds differ by machine, this list does not."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {
    "scipy",
    "matplotlib",
    "simpy",
    "emcee",
    "pyarrow",
    "distributed",
    "starlette",
    "uvicorn",
    "jinja2",
    "httpx",
    "prometheus_client",
}


def imported(*arguments: str) -> set[str]:
    """Top-level modules in memory after `twin ARGS`."""
    script = (
        "import sys\nfrom twin.cli.main import main\n"
        f"sys.argv = ['twin', *{list(arguments)!r}]\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        "print('MODULES', *sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "--k", "9", "--lane", "tp4"),
        ("predict", "--lane", "sidecar", "-c", "1,8", "--json"),
        ("predict", "--lane", "sidecar", "--csv"),
        ("lanes",),
        ("show", "lane", "sidecar"),
        ("check",),
    ],
    ids=lambda arguments: " ".join(arguments[:1]) + str(len(arguments)),
)
def test_answers_come_without_the_heavy_libraries(arguments: tuple[str, ...]) -> None:
    assert imported(*arguments) & HEAVY == set()


def test_json_and_csv_do_not_need_the_table_printer() -> None:
    assert "rich" not in imported("predict", "--lane", "tp4", "--json")


def test_help_is_only_click() -> None:
    assert imported("--help") & (HEAVY | {"numpy", "pydantic", "rich"}) == set()
    assert imported("--version") & (HEAVY | {"numpy", "pydantic", "rich"}) == set()


def test_importing_the_package_costs_nothing() -> None:
    script = "import sys, twin; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert set(done.stdout.split()) & (HEAVY | {"numpy", "pydantic", "click", "rich"}) == set()
