"""`twin fit`: receipts in, one calibration a lane out.

Maximum a posteriori by bounded least squares on log factors, several starts. Step totals identify only a few
combinations of stages, so every coefficient has a prior, the fit says how many parameters the receipts determine (the
trace of the resolution operator; Tarantola 2005, section 3.2.3), keeps that number below a third of the receipts
(`parsimony`), and calls a parameter whose answer comes from its prior prior-dominated. Covariance is from the Jacobian
(Laplace), widened when the receipts scatter more than their stated noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from twin.errors import CalibrationError
from twin.fitting.calibration import SCHEMA_VERSION, CalibratedRange, Calibration, FittedParameter
from twin.fitting.cells import ReceiptCell
from twin.fitting.objective import Objective
from twin.fitting.parsimony import MAX_SHARE, Directions, within
from twin.fitting.receipts import ROUTING_QUANTITIES, Receipt, receipts_csv
from twin.lane.lane import Lane
from twin.step.coefficients import ROUTING_PREFIX, coefficients
from twin.workers import executor_map

Array = npt.NDArray[np.float64]
STARTS = 3
_NOT_STEPS = ("ttft", "prefill_tok_s", *ROUTING_QUANTITIES)
#: Rounds of finding the directions of a fit that reaches its limit.
TRIES = 6
#: A parameter counts as moved by the data when they took at least this share of its prior variance away.
MOVED_SHARE = 0.3
#: What the engine's own model leaves open even where receipts agree with it perfectly.
MODEL_LOG_SD = 0.01


@dataclass(frozen=True)
class Residual:
    """One receipt against the fitted model."""

    cell: ReceiptCell
    predicted: float
    standardised: float

    @property
    def relative_error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.cell.receipt.value - 1.0


@dataclass(frozen=True)
class FitResult:
    """A finished fit: one calibration a lane, residuals in the order of the receipts, and what the fit can say of
    itself.
    """

    calibrations: dict[str, Calibration]
    residuals: tuple[Residual, ...]
    singular_values: tuple[float, ...]
    effective_parameters: float
    parameters: int
    chi_square_per_degree: float
    starts_agree: bool


def fit_receipts(
    cells: Sequence[ReceiptCell], *, name: str = "", seed: int = 0, prior: Mapping[str, tuple[float, float]] | None = None, starts: int = STARTS,
    mcmc_steps: int = 0, share: float = MAX_SHARE, executor: Executor | None = None,
) -> FitResult:  # fmt: skip
    """Fit the lanes of `cells` together. `prior` overrides (mean, sd) of log factors by key (what other lanes have
    learnt). Fitted parameters stay below `share` of the receipts.
    With `mcmc_steps` the Laplace posterior is replaced by an ensemble sampler's. `executor` runs the starts.

    Raises CalibrationError when there is nothing to fit.
    """
    if not cells:
        raise CalibrationError(
            "no receipt to fit: none has use = fit for this lane; `twin fit` takes CSV files of receipts."
        )
    objective = Objective(cells, prior=prior)
    theta, agree, directions = _solve_within(
        objective, seed, starts=starts, limit=np.inf if mcmc_steps else share * len(cells), executor=executor
    )
    jacobian = objective.jacobian(theta)[: len(cells)] * objective.prior_sd
    z = objective.standardised(theta)
    resolution = directions.resolution(jacobian)
    effective = float(np.sum(resolution))
    chi_square = float(np.sum(z**2) / max(1.0, len(cells) - effective))
    robust = float(np.sum(np.minimum(np.abs(z), 3.0) ** 2) / max(1.0, len(cells) - effective))
    covariance = directions.covariance(jacobian, max(1.0, robust)) * np.outer(objective.prior_sd, objective.prior_sd)
    if mcmc_steps:
        from twin.fitting.mcmc import sample_posterior

        theta, covariance = sample_posterior(objective, theta, covariance, steps=mcmc_steps, seed=seed)
        z = objective.standardised(theta)
    predicted = objective.predictions(theta)
    residuals = tuple(Residual(c, float(p), float(s)) for c, p, s in zip(cells, predicted, z, strict=True))
    singular = np.linalg.svd(jacobian, compute_uv=False)
    lanes = {lane.name: lane for cell in cells for lane in cell.lanes}
    fitted = _Fitted(objective, theta, covariance, resolution, residuals)
    calibrations = {name_of: _calibration(lane, fitted, name or name_of, seed) for name_of, lane in lanes.items()}
    shown = tuple(float(value) for value in singular if value > 0.01)
    return FitResult(calibrations, residuals, shown, effective, len(theta), chi_square, agree)


@dataclass(frozen=True)
class _Fitted:
    objective: Objective
    theta: Array
    covariance: Array
    resolution: Array
    residuals: tuple[Residual, ...]


def fit_lanes(
    cells: Sequence[ReceiptCell],
    *,
    name: str = "",
    seed: int = 0,
    executor: Executor | None = None,
    mcmc_steps: int = 0,
    share: float = MAX_SHARE,
) -> FitResult:
    """Fit every lane of `cells` with what its parts have learnt on other lanes.

    Lanes tied by a ratio are fitted together. A first pass fits each group from the catalogue's priors; the second
    gives it what
    the other groups' receipts say of the devices, links and engines it shares with them.
    """
    groups = _groups(cells)
    if len(groups) == 1:
        return fit_receipts(cells, name=name, seed=seed, mcmc_steps=mcmc_steps, share=share, executor=executor)
    run = partial(executor_map, executor, _fit_group)
    first = list(run([(group, "", seed, None, 1, 0, share) for group in groups]))
    known = [c for result in first for c in result.calibrations.values()]
    priors = [learnt([c for c in known if c.lane not in result.calibrations]) for result in first]
    second = list(
        run(
            [(group, name, seed, prior, STARTS, mcmc_steps, share) for group, prior in zip(groups, priors, strict=True)]
        )
    )
    calibrations = {lane: c for result in second for lane, c in result.calibrations.items()}
    residuals = tuple(r for result in second for r in result.residuals)
    effective = sum(result.effective_parameters for result in second)
    chi_square = sum(r.standardised**2 for r in residuals) / max(1.0, len(residuals) - effective)
    singular = tuple(sorted((s for result in second for s in result.singular_values), reverse=True))
    return FitResult(
        calibrations, residuals, singular, effective, sum(result.parameters for result in second), float(chi_square),
        all(result.starts_agree for result in second),
    )  # fmt: skip


def _fit_group(
    item: tuple[list[ReceiptCell], str, int, Mapping[str, tuple[float, float]] | None, int, int, float],
) -> FitResult:
    cells, name, seed, prior, starts, mcmc_steps, share = item
    return fit_receipts(cells, name=name, seed=seed, prior=prior, starts=starts, mcmc_steps=mcmc_steps, share=share)


def _groups(cells: Sequence[ReceiptCell]) -> list[list[ReceiptCell]]:
    """Receipts by lane, lanes tied by a ratio in one group, in a stable order."""
    group_of: dict[str, str] = {lane.name: lane.name for cell in cells for lane in cell.lanes}
    for cell in cells:
        names = [lane.name for lane in cell.lanes]
        target = min(group_of[name] for name in names)
        joined = {group_of[name] for name in names}
        group_of = {name: target if group in joined else group for name, group in group_of.items()}
    return [[c for c in cells if group_of[c.lane.name] == group] for group in sorted(set(group_of.values()))]


def learnt(calibrations: Sequence[Calibration]) -> dict[str, tuple[float, float]]:
    """What fits of other lanes say of shared parts: (mean, sd) of log factors, weighted by precision, no narrower
    than their scatter.

    Parameters of a lane or of its workloads do not travel; half of a prior's width always remains.
    """
    found: dict[str, list[tuple[float, float, float]]] = {}
    for calibration in calibrations:
        for p in calibration.parameters:
            if not p.prior_dominated and not p.key.startswith(("lane.", "acceptance.", "sharing.")):
                found.setdefault(p.key, []).append((p.log_factor, p.log_sd, p.prior_log_sd))
    out = {}
    for key, values in sorted(found.items()):
        means, sds, priors = (np.array(v) for v in zip(*values, strict=True))
        precision = float(np.sum(1.0 / sds**2) + 1.0 / priors[0] ** 2)
        mean = float(np.sum(means / sds**2) / precision)
        spread = float(np.sqrt(np.mean((means - mean) ** 2))) if len(means) > 1 else 0.0
        out[key] = (mean, float(max(precision**-0.5, spread, 0.5 * priors[0])))
    return out


def _solve_within(
    objective: Objective, seed: int, *, starts: int, limit: float, executor: Executor | None
) -> tuple[Array, bool, Directions]:
    """The fit along the directions its receipts may determine. The model is not linear: chosen at the full fit, checked
    at the one within.
    """
    every = Directions.every(len(objective.prior_sd))
    theta, agree = _solve(objective, every, seed, starts=starts, executor=executor)

    def whitened(at: Array) -> Array:
        return np.asarray(objective.jacobian(at)[: len(objective.cells)] * objective.prior_sd)

    directions, asked = every, limit
    for _ in range(TRIES):
        jacobian = whitened(theta)
        if float(np.sum(directions.resolution(jacobian))) < limit:
            break
        asked *= 0.98
        directions = within(jacobian, asked)
        theta, agree = _solve(objective, directions, seed, starts=starts, executor=executor)
    return theta, agree, directions


def _solve(
    objective: Objective, directions: Directions, seed: int, *, starts: int, executor: Executor | None
) -> tuple[Array, bool]:
    count = directions.basis.shape[1]
    if not count:
        return objective.prior_mean, True
    rng = np.random.default_rng([seed, 7])
    points = [np.zeros(count), *(np.asarray(0.7 * rng.standard_normal(count)) for _ in range(1, starts))]
    found = list(executor_map(executor, _solve_from, [(objective, directions, x0) for x0 in points]))
    best = min(found, key=lambda item: item[0])
    agree = all(cost <= best[0] * 1.02 + 0.05 for cost, _ in found)
    return best[1], agree


def _solve_from(item: tuple[Objective, Directions, Array]) -> tuple[float, Array]:
    from scipy.optimize import least_squares

    objective, directions, x0 = item
    mean, receipts = objective.prior_mean, len(objective.cells)
    along = objective.prior_sd[:, None] * directions.basis

    def residuals(x: Array) -> Array:
        return np.concatenate([objective.residuals(mean + along @ x)[:receipts], x])

    def jacobian(x: Array) -> Array:
        return np.vstack([objective.jacobian(mean + along @ x)[:receipts] @ along, np.eye(len(x))])

    result = least_squares(residuals, x0, jac=jacobian, bounds=(-5.0, 5.0), max_nfev=40, xtol=1e-7, ftol=1e-7)
    return float(result.cost), mean + along @ result.x


def _calibration(lane: Lane, fitted: _Fitted, name: str, seed: int) -> Calibration:
    own = [r for r in fitted.residuals if lane.name in (other.name for other in r.cell.lanes)]
    unique = {c.key: c for c in coefficients(lane).values()}
    mine = (f"acceptance.{lane.name}.", f"sharing.{lane.name}.", *_routing_prefixes(lane))
    unique |= {p.key: p.coefficient for p in fitted.objective.parameters if p.key.startswith(mine)}
    index = {p.key: i for i, p in enumerate(fitted.objective.parameters)}
    rows = [index[key] for key in unique]
    covariance = fitted.covariance[np.ix_(rows, rows)]
    parameters = [
        FittedParameter(
            key=key, unit=c.unit, catalogue_value=c.value, kind=c.kind, prior_log_sd=fitted.objective.parameters[row].prior_log_sd,
            prior_log_factor=_short(fitted.objective.prior_mean[row]), log_factor=_short(fitted.theta[row]),
            log_sd=_short(float(np.sqrt(fitted.covariance[row, row]))), prior_dominated=bool(fitted.resolution[row] < MOVED_SHARE),
        )
        for (key, c), row in zip(unique.items(), rows, strict=True)
    ]  # fmt: skip
    receipts = [r.cell.receipt for r in own]
    sides = receipts + [r.cell.versus.receipt for r in own if r.cell.versus is not None]
    # Routing holds no time, so it does not widen what the lane was timed on.
    here = [r for r in sides if r.lane == lane.name and r.quantity not in ROUTING_QUANTITIES]
    z = np.array([r.standardised for r in own])
    effective = float(np.sum(fitted.resolution[rows]))
    return Calibration(
        schema_version=SCHEMA_VERSION, name=name, lane=lane.name, seed=seed, parameters=parameters,
        covariance=[[_short(v) for v in row] for row in covariance.tolist()], receipts=len(own), fitted_parameters=_short(round(effective, 3)),
        receipt_ids=[r.id for r in receipts], inputs_sha256=hashlib.sha256(receipts_csv(receipts).encode()).hexdigest(),
        chi_square_per_degree=_short(float(np.sum(z**2) / max(1.0, len(own) - effective))),
        residual_log_sd=_short(_residual_log_sd(own)), range=_range(here) if here else None,
        notes="fitted_parameters is the effective number that the receipts determine; the rest keep the prior of their kind.",
    )  # fmt: skip


def _routing_prefixes(lane: Lane) -> tuple[str, str]:
    return f"{ROUTING_PREFIX}{lane.checkpoint.name}.", f"{ROUTING_PREFIX}{lane.name}."


def _range(receipts: Sequence[Receipt]) -> CalibratedRange:
    def span(values: Sequence[int]) -> tuple[int, int]:
        return min(values), max(values)

    return CalibratedRange(
        k=span([r.k for r in receipts]), concurrency=span([r.concurrency for r in receipts]),
        tokens_in_flight=span([r.concurrency * (r.k + 1) for r in receipts]), context_tokens=span([r.context_tokens for r in receipts]),
        traffic=sorted({r.traffic for r in receipts}),
    )  # fmt: skip


def _residual_log_sd(own: Sequence[Residual]) -> float:
    """Scatter of step-like receipts around the model, robust (from the median), with a floor for what the model leaves
    out.
    """
    errors = [abs(np.log1p(r.relative_error)) for r in own if r.cell.receipt.quantity not in _NOT_STEPS]
    if not errors:
        return 0.05
    return float(np.hypot(1.4826 * np.median(errors), MODEL_LOG_SD))


def _short(value: float) -> float:
    """Ten significant digits: the same bytes on machines whose last bits differ."""
    return float(f"{value:.10g}")


__all__ = ["FitResult", "Residual", "fit_lanes", "fit_receipts", "learnt"]
