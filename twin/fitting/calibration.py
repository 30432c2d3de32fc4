"""A calibration: what a fit learnt of the coefficients of one lane, as a JSON file of plain numbers.

A parameter is the logarithm of a factor on a catalogue value. The file carries means, covariance, the receipts the
fit saw
(by id) and their range, and which parameters the data did not move. Predictions draw factors from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from twin.errors import CalibrationError, nearest
from twin.fitting.migrate import SCHEMA_VERSION as SCHEMA_VERSION
from twin.fitting.migrate import migrate
from twin.lane.catalogue import shipped_root
from twin.lane.sourced import Strict
from twin.step.coefficients import Coefficient

MAX_BYTES = 32 * 2**20
#: a factor of e^20 is past anything a fit can mean, and keeps every prediction finite
MAX_LOG = 20.0


class FittedParameter(Strict):
    """One fitted factor: `log_factor` and `log_sd` of posterior, prior width, the catalogue value it multiplies."""

    key: str
    unit: str
    catalogue_value: float
    kind: str
    prior_log_sd: float = Field(ge=0, le=MAX_LOG)
    prior_log_factor: float = Field(default=0.0, ge=-MAX_LOG, le=MAX_LOG)
    log_factor: float = Field(ge=-MAX_LOG, le=MAX_LOG)
    log_sd: float = Field(ge=0, le=MAX_LOG)
    prior_dominated: bool

    @property
    def posterior_value(self) -> float:
        """The calibrated value in internal units."""
        return float(self.catalogue_value * np.exp(self.log_factor))


class CalibratedRange(Strict):
    """What the receipts of the fit cover: a prediction outside says so."""

    k: tuple[int, int] = Field(strict=False)
    concurrency: tuple[int, int] = Field(strict=False)
    tokens_in_flight: tuple[int, int] = Field(strict=False)
    context_tokens: tuple[int, int] = Field(strict=False)
    traffic: list[str]


class Calibration(Strict):
    """The posterior of one lane's coefficients. `residual_log_sd` is the scatter of its receipts around the model."""

    schema_version: int
    name: str
    lane: str
    seed: int
    parameters: list[FittedParameter]
    covariance: list[list[float]]
    receipts: int
    fitted_parameters: float
    receipt_ids: list[str]
    inputs_sha256: str
    chi_square_per_degree: float
    residual_log_sd: float = Field(ge=0, le=MAX_LOG)
    range: CalibratedRange | None
    notes: str = ""

    def draw_factors(self, normals: npt.NDArray[np.float64]) -> dict[str, npt.NDArray[np.float64]]:
        """Factors by key, `(samples,)`, from standard normals of shape (len(parameters), samples).

        Lognormal with the fitted factor as its mean, so that a wide parameter does not push predictions off the fit.
        """
        mean = np.array([p.log_factor for p in self.parameters])
        covariance = np.array(self.covariance, dtype=float).reshape(len(mean), len(mean))
        centre = mean - 0.5 * np.diag(covariance)
        drawn = np.exp(centre[:, None] + _root(covariance) @ normals)
        return {p.key: drawn[i] for i, p in enumerate(self.parameters)}

    def mean_factors(self) -> dict[str, float]:
        """Factors by key at the posterior's centre."""
        return {p.key: float(np.exp(p.log_factor)) for p in self.parameters}


def _root(covariance: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    # A covariance rounded into a file can miss being positive definite by a hair: the symmetric root does not mind.
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    root: npt.NDArray[np.float64] = vectors * np.sqrt(np.clip(values, 0.0, None))
    return root


def prior_calibration(lane_name: str, base: Mapping[str, Coefficient]) -> Calibration:
    """What is known of a lane without any receipt: its parts' values with the priors of their kinds."""
    unique = {c.key: c for c in base.values()}
    parameters = [
        FittedParameter(
            key=c.key, unit=c.unit, catalogue_value=c.value, kind=c.kind, prior_log_sd=c.prior_log_sd, log_factor=0.0,
            log_sd=c.prior_log_sd, prior_dominated=True,
        )
        for c in unique.values()
    ]  # fmt: skip
    return Calibration(
        schema_version=SCHEMA_VERSION, name="priors", lane=lane_name, seed=0, parameters=parameters,
        covariance=np.diag([p.prior_log_sd**2 for p in parameters]).tolist(), receipts=0, fitted_parameters=0, receipt_ids=[],
        inputs_sha256="", chi_square_per_degree=0.0, residual_log_sd=0.05, range=None,
        notes="No receipt of this lane was used: catalogue values with the priors of their kinds.",
    )  # fmt: skip


def calibration_names(roots: Sequence[Path]) -> list[str]:
    """Names of calibration files over all roots."""
    return sorted({p.stem for root in roots for p in (root / "calibration" / "fits").glob("*.json")})


def find_calibration(name_or_path: str, roots: Sequence[Path]) -> Path | None:
    """The file of a calibration: a path to a .json file, or a name under calibration/fits of the roots; None if
    unknown.
    """
    if name_or_path.endswith(".json"):
        path = Path(name_or_path)
        if not path.is_file():
            raise CalibrationError(
                f"--calibration {name_or_path!r}: no such file; write one with `twin fit RECEIPTS --lane LANE -o {path.name}`."
            )
        return path
    for root in roots:
        path = root / "calibration" / "fits" / f"{name_or_path}.json"
        if path.is_file():
            return path
    return None


def read_calibration(path: Path) -> tuple[Calibration, str]:
    """The calibration and the SHA-256 of its file. Raises CalibrationError naming file and key."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CalibrationError(f"{path}: larger than {MAX_BYTES // 2**20} MiB; this is not a calibration.")
        data = path.read_bytes()
        raw = json.loads(data)
        migrated = migrate(raw) if isinstance(raw, dict) else None
        if migrated is None:
            found = raw.get("schema_version") if isinstance(raw, dict) else None
            raise CalibrationError(
                f"{path}: schema_version is {found!r}, expected {SCHEMA_VERSION} or older; fit it again with `twin fit`."
            )
        calibration = Calibration.model_validate(migrated)
    except OSError as error:
        raise CalibrationError(f"{path}: cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            raise CalibrationError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}.") from None
        raise CalibrationError(f"{path}: not a JSON calibration ({error}).") from None
    size = len(calibration.parameters)
    if len(calibration.covariance) != size or any(len(row) != size for row in calibration.covariance):
        raise CalibrationError(f"{path}: covariance: expected {size} x {size}, one row a parameter.")
    if any(abs(value) > MAX_LOG for row in calibration.covariance for value in row):
        raise CalibrationError(f"{path}: covariance: expected values of log factors, up to {MAX_LOG:g}.")
    return calibration, hashlib.sha256(data).hexdigest()


def load_calibration(
    name_or_path: str, lane_name: str, base: Mapping[str, Coefficient], roots: Sequence[Path]
) -> tuple[Calibration, str]:
    """The calibration to use for a lane, "priors" included; raises CalibrationError when it belongs to another lane."""
    if name_or_path == "priors":
        return prior_calibration(lane_name, base), ""
    path = find_calibration(name_or_path, roots)
    if path is None:
        raise CalibrationError(
            f"no calibration named {name_or_path!r}; {nearest(name_or_path, [*calibration_names(roots), 'priors'])}"
        )
    calibration, sha256 = read_calibration(path)
    if not {p.key for p in calibration.parameters} & {c.key for c in base.values()}:
        raise CalibrationError(
            f"{path}: fitted for lane {calibration.lane!r} and shares no part with {lane_name!r}; fit this lane with `twin fit --lane {lane_name}`."
        )
    return calibration, sha256


__all__ = [
    "Calibration",
    "calibration_names",
    "load_calibration",
    "prior_calibration",
    "read_calibration",
    "shipped_root",
]
