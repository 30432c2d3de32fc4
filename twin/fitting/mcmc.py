"""The full posterior by an ensemble sampler (emcee; Goodman and Weare 2010), for those who do not trust the Laplace
one.

The walkers of a step are one vectorised evaluation, so a lane of fifty receipts takes about a minute.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from twin.errors import CalibrationError
from twin.fitting.objective import Objective

Array = npt.NDArray[np.float64]


def sample_posterior(
    objective: Objective, start: Array, covariance: Array, *, steps: int, seed: int
) -> tuple[Array, Array]:
    """Mean and covariance of the posterior, `(parameters,)` and `(parameters, parameters)`.

    Raises CalibrationError when emcee is missing or the chain is too short to trust (50 autocorrelation times are
    wanted).
    """
    try:
        import emcee
    except ImportError:
        raise CalibrationError("--mcmc needs emcee; install it with: pip install 'twin-lane[mcmc]'") from None
    count = len(start)
    walkers = 2 * count + 2
    rng = np.random.default_rng([seed, 11])
    root = np.linalg.cholesky(covariance + 1e-12 * np.eye(count))
    positions = start + (root @ rng.standard_normal((count, walkers))).T * 0.5
    # Differential-evolution moves decorrelate faster than the stretch move in twenty dimensions and more.
    moves = [(emcee.moves.DEMove(), 0.8), (emcee.moves.DESnookerMove(), 0.2)]
    sampler = emcee.EnsembleSampler(walkers, count, objective.log_posterior, vectorize=True, moves=moves)
    sampler.random_state = np.random.RandomState(seed).get_state()
    sampler.run_mcmc(positions, steps)
    time = float(np.max(sampler.get_autocorr_time(quiet=True, tol=0)))
    if not np.isfinite(time) or steps < 20 * time:
        raise CalibrationError(
            f"--mcmc {steps}: the chain's autocorrelation time is {time:.0f} steps; give at least {int(50 * time) + 1}."
        )
    chain = sampler.get_chain(discard=steps // 3, flat=True)
    return np.mean(chain, axis=0), np.cov(chain, rowvar=False).reshape(count, count)
