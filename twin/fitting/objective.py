"""The least-squares objective of a fit: log residuals of receipts, made robust, and the priors of the parameters.

A parameter is the log of a factor on a catalogue value. Residuals of one lane depend only on that lane's parameters, so
its Jacobian is taken with all their perturbations in one vectorised evaluation; common random numbers make it smooth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from twin.fitting.cells import PRIOR_SHARING, FitNoise, ReceiptCell, predict_cell
from twin.step.coefficients import Coefficient, Values, coefficients
from twin.step.model import cold_share, locality_exponent

Array = npt.NDArray[np.float64]
_STEP = 1e-4
#: Residuals beyond this many standard deviations count linearly, not squared (pseudo-Huber).
ROBUST_SCALE = 2.0


@dataclass(frozen=True)
class Parameter:
    """One free or fixed factor: its key, catalogue coefficient and prior width of the log."""

    key: str
    coefficient: Coefficient
    prior_log_sd: float


class Objective:
    """Receipts and priors as a vector of residuals; `free` are the keys that move, all others stay at factor 1."""

    def __init__(
        self,
        cells: Sequence[ReceiptCell],
        *,
        free: Sequence[str] | None = None,
        prior: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        self.cells = list(cells)
        self._noise = FitNoise()
        self._bases = {lane.name: coefficients(lane) for cell in self.cells for lane in cell.lanes}
        known: dict[str, Coefficient] = {c.key: c for base in self._bases.values() for c in base.values()}
        known |= {c.key: c for cell in self.cells for c in shared_coefficients(cell)}
        self._routing = {key for cell in self.cells if (key := cell.measured_routing_key) is not None}
        chosen = [key for key in known if free is None or key in free]
        prior = prior or {}
        self.parameters = [
            Parameter(key, known[key], prior.get(key, (0.0, known[key].prior_log_sd))[1]) for key in chosen
        ]
        self.prior_mean = np.array([prior.get(key, (0.0, 0.0))[0] for key in chosen])
        self._fixed = {key: value[0] for key, value in prior.items() if key in known and key not in chosen}
        self._index = {key: i for i, key in enumerate(chosen)}
        self._groups: dict[tuple[str, ...], list[int]] = {}
        for row, cell in enumerate(self.cells):
            self._groups.setdefault(tuple(lane.name for lane in cell.lanes), []).append(row)

    @property
    def prior_sd(self) -> Array:
        """Prior standard deviations of the parameters, `(parameters,)`."""
        return np.array([p.prior_log_sd for p in self.parameters])

    def lane_parameters(self, lane_names: Sequence[str]) -> list[int]:
        """Indices of the free parameters that these lanes depend on."""
        keys = self._keys_of(lane_names)
        return [i for i, p in enumerate(self.parameters) if p.key in keys]

    def predictions(self, theta: Array) -> Array:
        """The model's value of every receipt in its own unit, `(receipts,)`."""
        out = np.empty(len(self.cells))
        for lane_names, rows in self._groups.items():
            out[rows] = self._group_predictions(lane_names, theta[None, :], rows)[:, 0]
        return out

    def standardised(self, theta: Array) -> Array:
        """Log residuals over their standard deviations, `(receipts,)`, before the robust transform."""
        measured = np.array([c.receipt.value for c in self.cells])
        log_sd = np.array([c.log_sd for c in self.cells])
        z: Array = (np.log(self.predictions(theta)) - np.log(measured)) / log_sd
        return z

    def residuals(self, theta: Array) -> Array:
        """Robust data residuals followed by prior residuals."""
        return np.concatenate([_robust(self.standardised(theta)), (theta - self.prior_mean) / self.prior_sd])

    def log_posterior(self, vectors: Array) -> Array:
        """Log posterior up to a constant of every parameter vector, `(vectors,)`, from the same robust residuals as
        the fit.
        """
        total = -0.5 * np.sum(((vectors - self.prior_mean) / self.prior_sd) ** 2, axis=1)
        for lane_names, rows in self._groups.items():
            predicted = np.log(self._group_predictions(lane_names, vectors, rows))
            for row, values in zip(rows, predicted, strict=True):
                cell = self.cells[row]
                total = total - 0.5 * _robust((values - np.log(cell.receipt.value)) / cell.log_sd) ** 2
        return np.where(np.all(np.abs(vectors - self.prior_mean) < 6.0 * self.prior_sd, axis=1), total, -np.inf)

    def jacobian(self, theta: Array) -> Array:
        """Derivative of `residuals`, `(receipts + parameters, parameters)`."""
        count = len(self.parameters)
        jacobian = np.zeros((len(self.cells) + count, count))
        for lane_names, rows in self._groups.items():
            moved = self.lane_parameters(lane_names)
            vectors = np.tile(theta, (len(moved) + 1, 1))
            for position, index in enumerate(moved):
                vectors[position + 1, index] += _STEP
            predicted = np.log(self._group_predictions(lane_names, vectors, rows))
            for row, values in zip(rows, predicted, strict=True):
                cell = self.cells[row]
                robust = _robust((values - np.log(cell.receipt.value)) / cell.log_sd)
                jacobian[row, moved] = (robust[1:] - robust[0]) / _STEP
        jacobian[len(self.cells) :] = np.diag(1.0 / self.prior_sd)
        return jacobian

    def _keys_of(self, lane_names: Sequence[str]) -> set[str]:
        keys = {c.key for name in lane_names for c in self._bases[name].values()}
        own = [cell for cell in self.cells if cell.lane.name in lane_names]
        keys |= {key for cell in own for key in cell.routing_keys if key in self._routing}
        return keys | {key for cell in own for key in (cell.acceptance_key, cell.sharing_key) if key is not None}

    def _group_predictions(self, lane_names: Sequence[str], vectors: Array, rows: Sequence[int]) -> Array:
        keys = self._keys_of(lane_names)
        factors = {
            key: np.exp(vectors[:, self._index[key]])
            if key in self._index
            else np.full(len(vectors), np.exp(self._fixed.get(key, 0.0)))
            for key in keys
        }
        predicted: dict[tuple[object, ...], Array] = {}
        out = np.empty((len(rows), len(vectors)))
        for position, row in enumerate(rows):
            cell = self.cells[row]
            r = cell.receipt
            key = (
                r.traffic,
                r.k,
                r.rows,
                r.concurrency,
                r.context_tokens,
                r.quantity,
                r.stage,
                r.definition,
                r.output_tokens,
                cell.tokens_per_step,
                r.lane,
                r.versus_lane,
                cell.acceptance_key,
                cell.sharing_key,
            )
            if key not in predicted:
                predicted[key] = predict_cell(cell, self._bases, factors, len(vectors), self._noise)
            out[position] = predicted[key]
        return out


def shared_coefficients(cell: ReceiptCell) -> list[Coefficient]:
    """The parameters that a receipt shares with the other cells of its workload rather than with its lane's parts."""
    found = []
    if (key := cell.acceptance_key) is not None:
        found.append(Coefficient(key, key, 1.0, "derived", "the workload's own acceptance around its class", "1"))
    if (key := cell.sharing_key) is not None:
        found.append(
            Coefficient(
                key,
                key,
                PRIOR_SHARING[cell.receipt.prompts],
                "assumed",
                "what the workload's streams have in common",
                "1",
            )
        )
    if (key := cell.measured_routing_key) is not None:
        if cell.receipt.quantity == "unique_experts":
            value, kind = locality_exponent(cell.lane, cell.traffic), cell.traffic.routing.beta.kind
            found.append(Coefficient(key, key, value, kind, "locality exponent of the class on this checkpoint", "1"))
        else:
            share = float(cold_share(cell.lane, cell.traffic, Values({}, {})))
            found.append(Coefficient(key, key, share, "derived", "cold share of the class at this lane's split", "1"))
    return found


def _robust(z: Array) -> Array:
    """Pseudo-Huber residual: its square is 2 s^2 (sqrt(1 + (z/s)^2) - 1), smooth, linear far out."""
    s = ROBUST_SCALE
    return np.sign(z) * np.sqrt(2.0 * s**2 * (np.sqrt(1.0 + (z / s) ** 2) - 1.0))
