"""`twin report`."""

from __future__ import annotations

from pathlib import Path

import click

from twin.cli import options

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("report")
@click.argument("scenario", metavar="SCENARIO")
@click.option("-o", "--output", type=FILE, help="The page to write. [default: NAME.html]")
@click.option("--pdf", type=FILE, help="Print it to this file too (needs a browser).")
@click.option("--force", is_flag=True, help="Replace existing files.")
@options.catalogue
def command(scenario: str, output: Path | None, pdf: Path | None, force: bool, catalogue: str | None) -> None:
    """A scenario as one self-contained HTML page: question, answer, tables, plots, assumptions, sources, versions.

    SCENARIO is a TOML file, or the name of one in scenarios/reports/ of the catalogue. `twin board` exports them.
    """
    import sys

    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from twin.cli.printable import cursor_stream, escaped
    from twin.errors import TwinError
    from twin.files import write_text
    from twin.lane.catalogue import catalogue_roots
    from twin.planning.scenario import find_scenario, read_scenario
    from twin.planning.scenario_result import run_scenario
    from twin.report.scenario import report_html

    roots = catalogue_roots(catalogue)
    path = find_scenario(scenario, roots)
    target = output or Path(f"{path.stem}.html")
    for file in (target, pdf):
        if file is not None and file.exists() and not force:
            raise TwinError(f"{file}: exists already; give --force to replace it, or another name.")
    asked = read_scenario(path)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(
        *columns, console=Console(file=cursor_stream()), transient=True, disable=not sys.stderr.isatty()
    ) as progress:
        task = progress.add_task("scenario", total=None)
        result = run_scenario(asked, roots, tick=lambda what: progress.update(task, description=escaped(what)))
        progress.update(task, description="page")
        page = report_html(result)
        write_text(target, page, force=force)
        if pdf is not None:
            from twin.report.pdf import print_pdf

            progress.update(task, description="pdf")
            print_pdf(page, pdf, force=force)
    for written in filter(None, (target, pdf)):
        click.echo(f"wrote {written}", err=True)
