"""`twin lanes`."""

from __future__ import annotations

import click

from twin.cli import options


@click.command("lanes")
@options.catalogue
@options.as_json
def command(catalogue: str | None, as_json: bool) -> None:
    """List the lanes of the catalogue, with how many receipts each is calibrated on."""
    from twin.fitting.calibration import find_calibration, read_calibration
    from twin.lane.catalogue import catalogue_roots, load_lane, names
    from twin.report.terminal import literal, print_table

    roots = catalogue_roots(catalogue)
    found = []
    for name in names("lanes", roots):
        lane = load_lane(name, roots)
        path = find_calibration(lane.calibration or name, roots)
        calibration = read_calibration(path)[0] if path is not None else None
        found.append(
            {
                "lane": name, "title": lane.title, "checkpoint": lane.checkpoint.name, "engine": lane.engine.name,
                "receipts": calibration.receipts if calibration else 0, "fitted_parameters": calibration.fitted_parameters if calibration else 0,
            }
        )  # fmt: skip
    if as_json:
        options.print_json({"schema_version": 1, "command": "lanes", "lanes": found})
        return
    rows = [[str(f["lane"]), str(f["title"]), str(f["checkpoint"]), str(f["receipts"] or "priors only")] for f in found]
    print_table("", ["lane", "what it is", "checkpoint", "receipts"], literal(rows), left=(0, 1, 2))
