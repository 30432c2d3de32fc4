"""`twin fit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from twin.cli import options

if TYPE_CHECKING:
    from twin.fitting.fit import FitResult


@click.command("fit")
@click.argument("receipts", nargs=-1, type=click.Path(path_type=Path))
@options.lane(required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Where to write: a .json file for one lane, a folder for several.",
)
@click.option("--force", is_flag=True, help="Replace what is there.")
@click.option("--name", default="", help="Name of the calibration. Default: the lane's.")
@click.option(
    "--mcmc",
    "mcmc_steps",
    type=click.IntRange(0, 1_000_000),
    default=0,
    help="Steps of a full posterior by emcee (extra: mcmc). 0: Laplace.",
)
@click.option(
    "--max-share",
    type=options.Finite(0.0, 100.0, min_open=True),
    default=1 / 3,
    show_default="1/3",
    help="Fitted parameters stay below this share of the receipts. 1: as many as the receipts determine.",
)
@options.workers
@options.catalogue
@options.seed
@options.as_json
def command(
    receipts: tuple[Path, ...],
    lane_name: str | None,
    output: Path | None,
    force: bool,
    name: str,
    mcmc_steps: int,
    max_share: float,
    workers: int,
    cluster: str | None,
    catalogue: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Fit coefficients to RECEIPTS (CSV tables; without any, the shipped ones). Without --lane, all their lanes
    together.

    Rows with use = fit are used; every parameter is shown with its prior, its posterior, and whether the data moved it.
    """
    from twin.errors import ReceiptError, nearest
    from twin.files import write_text
    from twin.fitting.fit import fit_lanes
    from twin.fitting.load import read_all, receipt_files, resolve_receipts
    from twin.lane.catalogue import catalogue_roots, load_lane
    from twin.workers import worker_pool

    roots = catalogue_roots(catalogue)
    every = read_all(receipts or receipt_files(roots))
    chosen = [r for r in every if r.use == "fit" and r.lane == (lane_name or r.lane)]
    if not chosen:
        known = sorted({r.lane for r in every if r.use == "fit"})
        if lane_name is None or not known:
            raise ReceiptError(f"none of the {len(every)} receipts has use = fit; a fit takes those that say so.")
        load_lane(lane_name, roots)
        raise ReceiptError(f"no receipt with use = fit for lane {lane_name!r}; {nearest(lane_name, known)}")
    cells = resolve_receipts(chosen, roots)
    with worker_pool(workers, cluster) as executor:
        result = fit_lanes(cells, name=name, seed=seed, executor=executor, mcmc_steps=mcmc_steps, share=max_share)
    if output is not None:
        if output.suffix == ".json":
            if len(result.calibrations) > 1:
                raise ReceiptError(
                    f"{output}: the receipts are of {len(result.calibrations)} lanes; give --lane, or a folder to write to."
                )
            (calibration,) = result.calibrations.values()
            write_text(output, calibration.model_dump_json(indent=1) + "\n", force=force)
        else:
            output.mkdir(parents=True, exist_ok=True)
            for lane, calibration in sorted(result.calibrations.items()):
                write_text(output / f"{lane}.json", calibration.model_dump_json(indent=1) + "\n", force=force)
    if as_json:
        options.print_json(_summary(result))
    else:
        from twin.report.fit import print_fit

        print_fit(result)


def _summary(result: FitResult) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "command": "fit",
        "fitted_parameters": result.effective_parameters,
        "coefficients": result.parameters,
        "receipts": len(result.residuals),
        "chi_square_per_degree": result.chi_square_per_degree,
        "singular_values": list(result.singular_values),
        "starts_agree": result.starts_agree,
        "lanes": {name: c.model_dump(mode="json", exclude={"covariance"}) for name, c in result.calibrations.items()},
        "residuals": [
            {
                "id": r.cell.receipt.id,
                "measured": r.cell.receipt.value,
                "predicted": r.predicted,
                "relative_error": r.relative_error,
                "standardised": r.standardised,
            }
            for r in result.residuals
        ],
    }
