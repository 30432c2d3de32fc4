"""`twin check`."""

from __future__ import annotations

from dataclasses import asdict

import click

from twin.cli import options


@click.command("check")
@options.catalogue
@click.option("--strict", is_flag=True, help="Warnings fail too.")
@options.as_json
def command(catalogue: str | None, strict: bool, as_json: bool) -> None:
    """Check the catalogue: every value has a source, placements fit, units are plausible. Lists what is only assumed."""
    from twin.errors import GateFailed
    from twin.lane.catalogue import catalogue_roots
    from twin.lane.check import check_catalogue
    from twin.report.terminal import literal, print_table

    findings = check_catalogue(catalogue_roots(catalogue))
    failing = [f for f in findings if f.level == "error" or (strict and f.level == "warning")]
    if as_json:
        options.print_json(
            {"schema_version": 1, "command": "check", "ok": not failing, "findings": [asdict(f) for f in findings]}
        )
    else:
        for level, title in (
            ("assumed", "Assumed: nobody measured these yet"),
            ("warning", "Warnings"),
            ("error", "Errors"),
        ):
            rows = [[f.where, f.message] for f in findings if f.level == level]
            if rows:
                print_table(title, ["where", "what"], literal(rows), left=(0, 1))
    if failing:
        raise GateFailed(
            f"check: {len(failing)} finding{'s' if len(failing) > 1 else ''} failed; the first: {failing[0].where}: {failing[0].message}"
        )
    if not as_json:
        counts = sum(f.level == "assumed" for f in findings)
        click.echo(f"ok: every value has a source, every placement fits; {counts} values are only assumed.")
