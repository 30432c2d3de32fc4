"""`twin receipts`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from twin.cli import options


@click.group("receipts")
def command() -> None:
    """Make receipt tables from public tables of runs, with a log of what became of every row."""


@command.command("clean")
@click.argument("table", type=click.Path(path_type=Path))
@click.option(
    "--rules", "rules_file", type=click.Path(path_type=Path), help="Rule file; default: rules.toml beside the table."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="A folder; one file a lane is written into it.",
)
@click.option("--log", "log_file", type=click.Path(path_type=Path), help="Where to write the log as CSV.")
@click.option("--force", is_flag=True, help="Replace what is there.")
@options.as_json
def clean_command(
    table: Path, rules_file: Path | None, output: Path, log_file: Path | None, force: bool, as_json: bool
) -> None:
    """Clean TABLE by rules into receipts, one CSV a lane; every row is in the log with its receipts or its reason."""
    from twin.files import write_text
    from twin.fitting.evidence import clean, log_csv, read_rules
    from twin.fitting.receipts import receipts_csv

    receipts, log = clean(table, read_rules(rules_file or table.parent / "rules.toml"))
    output.mkdir(parents=True, exist_ok=True)
    for lane in sorted({r.lane for r in receipts}):
        write_text(output / f"{lane}.csv", receipts_csv([r for r in receipts if r.lane == lane]), force=force)
    if log_file is not None:
        write_text(log_file, log_csv(log), force=force)
    made = Counter(r.lane for r in receipts)
    reasons = Counter(line.reason for line in log if not line.receipts)
    if as_json:
        options.print_json(
            {
                "schema_version": 1,
                "command": "receipts clean",
                "rows": len(log),
                "receipts": dict(sorted(made.items())),
                "excluded": dict(reasons.most_common()),
            }
        )
        return
    from twin.report.terminal import print_table

    print_table(
        f"{len(receipts)} receipts of {len(log)} rows",
        ["lane", "receipts"],
        [[lane, str(n)] for lane, n in sorted(made.items())],
    )
    print_table("Rows without a receipt", ["reason", "rows"], [[reason, str(n)] for reason, n in reasons.most_common()])
