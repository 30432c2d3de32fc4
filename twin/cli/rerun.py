"""`twin rerun`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from twin.cli import options

#: commands that only compute and print; a result file of another cannot be rerun
COMMANDS = ("predict", "sweep", "simulate", "plan", "schedule", "explain", "levers", "suggest", "acceptance", "union")
#: keys that say how a result was made, not what it says
_ABOUT = ("version", "numpy_version", "command_line", "settings", "inputs")
_SHOWN = 12


@click.command("rerun")
@click.argument("result", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--tolerance",
    type=options.Finite(0, 1),
    default=1e-9,
    show_default=True,
    help="Relative difference of two numbers that still counts as equal; another processor may differ in last bits.",
)
@options.workers
@options.as_json
def command(result: Path, tolerance: float, workers: int, cluster: str | None, as_json: bool) -> None:
    """Repeat the command that printed RESULT (a file of --json) and compare. Exit 3 when the answers differ.

    Only commands that compute and print are repeated, and nothing is written.
    """
    from twin.errors import GateFailed, TwinError, nearest
    from twin.report.compare import differences
    from twin.report.result_file import read_result

    old = read_result(result)
    name = old["command"]
    if name not in COMMANDS:
        raise TwinError(f"{result}: command {name!r} cannot be repeated; {nearest(name, COMMANDS)}")
    new = _repeat(name, old["settings"], {"workers": workers, "cluster": cluster})
    found = list(differences(_answer(old), _answer(new), tolerance))
    changed = [path for path, digest in old.get("inputs", {}).items() if new.get("inputs", {}).get(path) != digest]
    now, then = (_version(document) for document in (new, old))
    if as_json:
        rows = [{"key": key, "then": a, "now": b} for key, a, b in found]
        options.print_json({
            "schema_version": 1, "command": "rerun", "of": name, "same": not found, "version_then": then,
            "version_now": now, "inputs_changed": changed, "differences": rows,
        })  # fmt: skip
    elif not found:
        exact = not any(True for _ in differences(_answer(old), _answer(new)))
        click.echo(
            f"same: {name} repeated by twin {new['version']}: {'identical' if exact else f'within {tolerance:g}'}."
        )
    else:
        for key, a, b in found[:_SHOWN]:
            click.echo(f"{key}: {_short(a)} then, {_short(b)} now")
        if len(found) > _SHOWN:
            click.echo(f"... and {len(found) - _SHOWN} more.")
    if found:
        raise GateFailed(f"rerun: {len(found)} values differ ({_reasons(found, changed, then, now)}).")


def _repeat(name: str, settings: dict[str, Any], seam: dict[str, Any]) -> dict[str, Any]:
    import contextlib
    import io
    import json

    from twin.cli.main import cli
    from twin.errors import TwinError
    from twin.report.provenance import arguments

    target = cli.get_command(click.Context(cli), name)
    if target is None:
        raise TwinError(f"this installation has no command {name!r}.")
    # Who computes is no part of the question, so it is not in the file: this command's own options say it.
    known = {p.name for p in target.params}
    where = [f"--{key}={value}" for key, value in seam.items() if key in known and value is not None]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        cli.main([name, *where, *arguments(target, settings), "--json"], standalone_mode=False)
    answer: dict[str, Any] = json.loads(printed.getvalue())
    return answer


def _version(document: dict[str, Any]) -> str:
    numpy = document.get("numpy_version")
    return f"{document.get('version', 'an unrecorded version')}" + (f" with NumPy {numpy}" if numpy else "")


def _answer(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in _ABOUT}


def _reasons(found: list[tuple[str, Any, Any]], changed: list[str], then: str, now: str) -> str:
    keys = {key for key, _, _ in found}
    reasons = [f"the file {path} changed" for path in changed[:3]]
    reasons += ["the lane's files changed"] if "lane_sha256" in keys else []
    reasons += ["the calibration changed"] if "calibration.sha256" in keys else []
    reasons += [f"version {then} then, {now} now"] if then != now else []
    return "; ".join(reasons) or "same version and inputs: please report this"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
