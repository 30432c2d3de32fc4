"""Scoring: a calibration's prediction of receipts it was not fitted to, with intervals.

The interval of a held-out cell holds the posterior of the coefficients, the scatter of the lane's receipts around the
model and
the receipt's own noise: what a repeat of that run would show.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from twin.fitting.calibration import Calibration, prior_calibration
from twin.fitting.cells import FitNoise, ReceiptCell, predict_cell
from twin.fitting.objective import shared_coefficients
from twin.step.coefficients import coefficients

Array = npt.NDArray[np.float64]
DRAWS = 64
#: What another block length or another workload of the class leaves open of an acceptance.
BORROWED_LOG_SD = 0.1

STEP = ("step_time", "stage_time", "step_time_ratio")
RATE = ("tok_s_per_stream", "tok_s_aggregate", "tok_s_ratio")


@dataclass(frozen=True)
class Score:
    """One receipt predicted by a calibration that has not seen it. `predicted` and bounds in the receipt's unit."""

    cell: ReceiptCell
    predicted: float
    p05: float
    p95: float

    @property
    def relative_error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.cell.receipt.value - 1.0

    @property
    def covered(self) -> bool:
        """Whether the 90 % interval holds the measured value."""
        return self.p05 <= self.cell.receipt.value <= self.p95


def score(cells: Sequence[ReceiptCell], calibration: Calibration, *, seed: int = 0) -> list[Score]:
    """Predict every cell with `calibration`; parts it does not know keep their priors. Ratios need both lanes'
    calibrations
    and are left to fits.
    """
    noise = FitNoise()
    out = []
    for cell in cells:
        if cell.versus is not None:
            continue
        base = coefficients(cell.lane)
        known = {p.key for p in calibration.parameters}
        extra = {c.key: c for c in shared_coefficients(cell) if c.key not in known}
        prior = prior_calibration(cell.lane.name, {n: c for n, c in base.items() if c.key not in known} | extra)
        rng = np.random.default_rng([seed, zlib.crc32(cell.receipt.id.encode())])
        factors = calibration.draw_factors(rng.standard_normal((len(calibration.parameters), DRAWS)))
        factors |= prior.draw_factors(rng.standard_normal((len(prior.parameters), DRAWS)))
        if (lender := _borrowed(cell.acceptance_key, sorted(known))) is not None:
            lent = next(p for p in calibration.parameters if p.key == lender)
            factors[str(cell.acceptance_key)] = factors[lender] * np.exp(BORROWED_LOG_SD * rng.standard_normal(DRAWS))
        centre = {key: np.ones(1) for key in factors} | {p.key: np.exp([p.log_factor]) for p in calibration.parameters}
        if lender is not None:
            centre[str(cell.acceptance_key)] = np.exp([lent.log_factor])
        bases = {cell.lane.name: base}
        predicted = float(predict_cell(cell, bases, centre, 1, noise)[0])
        drawn = np.log(predict_cell(cell, bases, factors, DRAWS, noise))
        # The scatter of a lane's receipts already holds their noise: the larger of the two, not both.
        log_sd = float(np.sqrt(np.var(drawn) + max(cell.log_sd, calibration.residual_log_sd) ** 2))
        out.append(
            Score(
                cell, predicted, predicted * float(np.exp(-1.645 * log_sd)), predicted * float(np.exp(1.645 * log_sd))
            )
        )
    return out


def _borrowed(key: str | None, known: Sequence[str]) -> str | None:
    """The known acceptance parameter closest to an unknown one: same workload at another k, else the class's only
    workload.
    """
    if key is None or key in known:
        return None
    stem, k = key.rsplit(".k", 1)
    same = [other for other in known if other.rsplit(".k", 1)[0] == stem]
    if same:
        return min(same, key=lambda other: (abs(int(other.rsplit(".k", 1)[1]) - int(k)), other))
    lane_class = ".".join(key.split(".")[:3]) + "."
    alike = [other for other in known if other.startswith(lane_class) and other.endswith(f".k{k}")]
    return alike[0] if len(alike) == 1 else None
