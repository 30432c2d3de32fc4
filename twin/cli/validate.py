"""`twin validate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from twin.cli import options

if TYPE_CHECKING:
    from twin.fitting.cells import ReceiptCell


@click.command("validate")
@click.option(
    "--receipts",
    "receipt_files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Score these receipts (CSV) with the lanes' calibrations, without fitting to them.",
)
@click.option(
    "--lane",
    "lanes",
    multiple=True,
    metavar="LANE",
    help="Only these lanes (repeatable). Default: every lane with receipts.",
)
@click.option(
    "--fail-over", metavar="PERCENT", help="Exit with 3 when the median held-out step error is above this, e.g. 5%."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write the report: .md, .html or .json by its ending."
)
@click.option("--plot", type=click.Path(path_type=Path), help="Write predicted against measured as .svg or .png.")
@click.option("--force", is_flag=True, help="Replace what is there.")
@options.calibration
@options.workers
@options.catalogue
@options.as_json
def command(
    receipt_files: tuple[Path, ...], lanes: tuple[str, ...], fail_over: str | None, output: Path | None, plot: Path | None, force: bool,
    calibration: str | None, workers: int, cluster: str | None, catalogue: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Held-out errors of every lane with receipts: cells, sources, three-cell kits, transfer; rank accuracy and
    coverage.
    """
    from twin.errors import GateFailed, ReceiptError, nearest
    from twin.files import write_text
    from twin.fitting.load import read_all, resolve_receipts
    from twin.fitting.load import receipt_files as shipped
    from twin.fitting.validation import Validation, validate
    from twin.lane.catalogue import catalogue_roots
    from twin.report.validation import print_validation, validation_dict, validation_html, validation_markdown
    from twin.units import parse_quantity
    from twin.workers import worker_pool

    gate = parse_quantity(fail_over, "number", where="--fail-over") if fail_over is not None else None
    roots = catalogue_roots(catalogue)
    skipped: list[tuple[str, str]] = []
    if receipt_files:
        cells, skipped = _given(receipt_files, roots)
    else:
        cells = resolve_receipts([r for r in read_all(shipped(roots)) if r.use != "exclude"], roots)
    if lanes:
        known = {c.receipt.lane for c in cells}
        for lane in lanes:
            if lane not in known:
                raise ReceiptError(f"--lane {lane!r}: no receipts of this lane; {nearest(lane, known)}")
        cells = [c for c in cells if c.receipt.lane in lanes]
    if receipt_files:
        scores, seen = _scores(cells, calibration, roots)
        skipped += [(name, "the fit of its lane has seen it") for name in seen]
        result = Validation(scores, [], [], [], {}, {})
        for cell in cells:
            result.receipts[cell.receipt.lane] = result.receipts.get(cell.receipt.lane, 0) + 1
    else:
        with worker_pool(workers, cluster) as executor:
            result = validate(cells, executor=executor)
    summary = validation_dict(result, skipped)
    if output is not None:
        import json

        render = {
            ".md": lambda: validation_markdown(result),
            ".html": lambda: validation_html(result),
            ".json": lambda: json.dumps(summary, indent=1, allow_nan=False) + "\n",
        }
        if output.suffix not in render:
            raise ReceiptError(f"{output}: the ending decides the format; expected .md, .html or .json.")
        write_text(output, render[output.suffix](), force=force)
    if plot is not None:
        from twin.report.residuals import plot_residuals

        plot_residuals(result.held_out, plot, force=force)
    if as_json:
        options.print_json(summary)
    else:
        print_validation(result, skipped)
    median = summary["summary"]["held_out"]["step_median"]
    if gate is not None and (median is None or median > gate):
        shown = (
            "there is no held-out step time"
            if median is None
            else f"the median held-out step error is {100 * median:.1f} %"
        )
        raise GateFailed(f"validate: {shown}, the gate is {100 * gate:.1f} %.")


def _given(files: tuple[Path, ...], roots: tuple[Path, ...]) -> tuple[list[ReceiptCell], list[tuple[str, str]]]:
    """A user's receipts, or tables of runs cleaned by the shipped rules; what cannot be scored is said, not dropped."""
    from twin.errors import ReceiptError
    from twin.fitting.evidence import clean, is_evidence, read_rules
    from twin.fitting.load import read_all, resolve_receipts

    cells: list[ReceiptCell] = []
    skipped: list[tuple[str, str]] = []
    for path in files:
        if is_evidence(path):
            rules = next(
                (
                    root / "calibration" / "evidence" / "rules.toml"
                    for root in roots
                    if (root / "calibration" / "evidence" / "rules.toml").is_file()
                ),
                None,
            )
            if rules is None:
                raise ReceiptError(
                    f"{path}: a table of runs needs calibration/evidence/rules.toml in a catalogue to say which lanes its rows are of."
                )
            receipts, log = clean(path, read_rules(rules))
            skipped += [(line.id, line.reason) for line in log if not line.receipts]
        else:
            receipts = [r for r in read_all([path]) if r.use != "exclude"]
        for receipt in receipts:
            try:
                cells += resolve_receipts([receipt], roots)
            except ReceiptError as error:
                skipped.append((receipt.id, str(error)))
    if not cells:
        reason = f" The first: {skipped[0][0]}: {skipped[0][1]}" if skipped else ""
        raise ReceiptError(f"no receipt could be scored.{reason}")
    return cells, skipped


def _scores(cells: list[ReceiptCell], calibration: str | None, roots: tuple[Path, ...]) -> tuple[list[Any], list[str]]:
    from twin.fitting.calibration import find_calibration, load_calibration
    from twin.fitting.score import score
    from twin.step.coefficients import coefficients

    scores: list[Any] = []
    left_out: list[str] = []
    for name in sorted({c.receipt.lane for c in cells}):
        own = [c for c in cells if c.receipt.lane == name]
        lane = own[0].lane
        chosen = calibration or lane.calibration or name
        if calibration is None and find_calibration(chosen, roots) is None:
            chosen = "priors"
        fitted, _ = load_calibration(chosen, name, coefficients(lane), roots)
        seen = set(fitted.receipt_ids)
        # A row the calibration was fitted to is no test of it.
        scores += score([c for c in own if c.receipt.id not in seen], fitted)
        left_out += [c.receipt.id for c in own if c.receipt.id in seen]
    return scores, left_out
