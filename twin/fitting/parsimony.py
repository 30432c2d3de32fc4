"""How much a fit may learn: its fitted parameters stay below a third of its receipts.

Five receipts do not determine two numbers well enough to be trusted on a sixth. Parameters are divided by their prior
widths; the singular values s of the data's Jacobian then say how much more the receipts know of a direction than the
prior does, and a fit along it takes the share w = s^2 / (1 + s^2) of its answer from them. The sum of the shares is the
effective number of fitted parameters (trace of the resolution operator; Tarantola 2005, section 3.2.3). Where it would
reach the limit, the shares are lowered to w = max(0, (s^2 - m) / (1 + s^2)) with one m for all: among all shares with
that sum these have the least expected squared error of prediction, sum of s^2 (1 - w)^2 + w^2. What a share leaves is
what the lane's parts are known to do on other lanes, and the covariance holds the whole of that doubt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
#: Fitted parameters stay below this share of the receipts.
MAX_SHARE = 1.0 / 3.0


@dataclass(frozen=True)
class Directions:
    """What a fit may move: columns of `basis`, `(parameters, directions)`, in units of prior widths. A column shorter
    than 1 is a direction kept closer to its prior than its width asks.
    """

    basis: Array

    @classmethod
    def every(cls, parameters: int) -> Directions:
        """No limit."""
        return cls(np.eye(parameters))

    def gain(self, whitened: Array, inflation: float = 1.0) -> Array:
        """How the parameters answer the standardised residuals, `(parameters, receipts)`, for a data Jacobian
        `(receipts, parameters)` per prior width. `inflation` is the variance of residuals beyond their stated noise.
        """
        inside = whitened @ self.basis
        information = np.eye(self.basis.shape[1]) + inside.T @ inside / inflation
        found: Array = self.basis @ np.linalg.solve(information, inside.T) / inflation
        return found

    def resolution(self, whitened: Array) -> Array:
        """Share of every parameter's answer that comes from the receipts, `(parameters,)`; their sum is the effective
        number of fitted parameters.
        """
        shares: Array = np.einsum("pr,rp->p", self.gain(whitened), whitened)
        return shares

    def covariance(self, whitened: Array, inflation: float = 1.0) -> Array:
        """Error covariance in units of prior widths: what the fit left at the prior, and the noise it took in."""
        gain = self.gain(whitened, inflation)
        left = np.eye(len(self.basis)) - gain @ whitened
        covariance = left @ left.T + inflation * gain @ gain.T
        # The directions were chosen a step earlier than this Jacobian: what is a hair past the prior is the prior.
        values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
        found: Array = (vectors * np.clip(values, 0.0, 1.0)) @ vectors.T
        return found


def within(whitened: Array, limit: float) -> Directions:
    """The directions of least expected error whose effective number is `limit`, or all where they stay below it."""
    _, s, rows = np.linalg.svd(whitened, full_matrices=False)
    s2 = s**2
    full = s2 / (1.0 + s2)
    if float(np.sum(full)) < limit:
        return Directions.every(whitened.shape[1])
    shares = np.clip((s2 - _threshold(s2, limit)) / (1.0 + s2), 0.0, full)
    kept = shares > 1e-9
    width = np.sqrt(shares[kept] / (1.0 - shares[kept]) / s2[kept])
    return Directions(np.ascontiguousarray(rows[kept].T * width))


def _threshold(s2: Array, limit: float) -> float:
    """The m at which the shares add up to `limit`: their sum falls with m and is linear between the values of s^2."""
    order = np.sort(s2)[::-1]
    weight = np.cumsum(1.0 / (1.0 + order))
    total = np.cumsum(order / (1.0 + order))
    for count in range(1, len(order) + 1):
        m = (total[count - 1] - limit) / weight[count - 1]
        below = order[count] if count < len(order) else 0.0
        if below <= m <= order[count - 1]:
            return float(m)
    return float(order[0])
