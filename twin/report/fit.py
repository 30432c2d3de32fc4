"""A fit on a terminal: parameters with prior and posterior, what the data did not move, the worst receipts."""

from __future__ import annotations

import math

from twin.fitting.fit import FitResult
from twin.report.terminal import console, number, print_table

#: internal unit -> (factor, unit people read)
_SHOWN = {
    "s": (1e6, "us"), "B/s": (1e-9, "GB/s"), "s/B": (1e9, "us/KB"), "flop/s": (1e-12, "TFLOPS"), "1": (1.0, ""),
}  # fmt: skip


def print_fit(result: FitResult, worst: int = 10) -> None:
    """Everything a sceptic asks of a fit, on one page."""
    out = console()
    out.print(
        f"[bold]{result.effective_parameters:.1f} fitted parameters, {len(result.residuals)} receipts[/bold] ({result.parameters} coefficients with priors); "
        f"chi-square per degree of freedom {number(result.chi_square_per_degree)}; "
        f"starts {'agree' if result.starts_agree else 'do NOT agree: more than one explanation fits'}"
    )
    out.print(f"singular values (in prior widths): {', '.join(number(s) for s in result.singular_values) or 'none'}")
    for lane, calibration in sorted(result.calibrations.items()):
        rows = []
        for p in calibration.parameters:
            factor, unit = _SHOWN.get(p.unit, (1.0, p.unit))
            prior = f"{number(p.catalogue_value * factor)} ± {100 * p.prior_log_sd:.0f} %"
            posterior = f"{number(p.posterior_value * factor)} ± {100 * p.log_sd:.0f} %"
            moved = (
                "prior-dominated"
                if p.prior_dominated
                else f"{(p.log_factor) / p.prior_log_sd:+.1f} prior sd"
                if p.prior_log_sd
                else ""
            )
            rows.append([p.key, prior, posterior, unit, moved])
        rows.sort(key=lambda row: row[-1] == "prior-dominated")
        title = f"{lane}: {calibration.fitted_parameters:.1f} fitted, {calibration.receipts} receipts, scatter {100 * math.expm1(calibration.residual_log_sd):.1f} %"
        print_table(title, ["parameter", "prior", "posterior", "unit", "moved"], rows, left=(0, 3, 4), out=out)
    rows = [
        [
            r.cell.receipt.id,
            r.cell.receipt.lane,
            r.cell.receipt.quantity,
            number(r.cell.receipt.value, 4),
            number(r.predicted, 4),
            f"{100 * r.relative_error:+.1f} %",
        ]
        for r in sorted(result.residuals, key=lambda r: -abs(r.relative_error))[:worst]
    ]
    print_table(
        f"The worst {len(rows)} receipts (all were in the fit)",
        ["receipt", "lane", "quantity", "measured", "model", "error"],
        rows,
        left=(0, 1, 2),
        out=out,
    )
