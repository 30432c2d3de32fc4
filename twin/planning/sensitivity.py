"""Which unknowns an answer hangs on: Sobol indices of an output to the uncertain parameters of a lane.

First-order index: the share of the variance that goes away when the parameter is known. Total index: the share that
stays when everything else is known (Saltelli 2010; `scipy.stats.sobol_indices`). Parameters move one by one with the
spread of their posterior: indices need independent inputs, so the posterior's correlations are left out, which makes
parameters that a fit holds together by their sum look more important than they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from twin.acceptance.profile import Array
from twin.errors import PolicyError
from twin.planning.predict import CellRequest, Predictor
from twin.routing.batch import RoutingNoise
from twin.step.coefficients import Values, coefficients
from twin.step.model import draw_step_s, routing_shape
from twin.step.prefill import ttft_s

OUTPUTS = ("step_ms", "tokens_per_step", "tok_s_per_stream", "tok_s_aggregate", "ttft_ms")
#: Points of the design (a power of two): parameters + 2 times as many steps are computed.
POINTS = 512
RESAMPLES = 99
RUN = "run-to-run noise"
ACCEPTANCE = "acceptance of the class"


@dataclass(frozen=True, slots=True)
class Index:
    """One parameter: indices with the half width of their 90 % bootstrap interval."""

    parameter: str
    first: float
    first_half_width: float
    total: float
    total_half_width: float


def sensitivity(
    predictor: Predictor, request: CellRequest, output: str, *, seed: int = 0, points: int = POINTS
) -> list[Index]:
    """Indices of one output of one cell, the largest total first. Raises PolicyError for an output that cannot be asked."""
    from scipy.stats import norm, sobol_indices

    if output not in OUTPUTS:
        raise PolicyError(f"--sensitivity {output!r}: expected one of {', '.join(OUTPUTS)}.")
    parameters = [*predictor.calibration.parameters, *predictor.prior.parameters]
    names = [p.key for p in parameters] + [ACCEPTANCE, RUN]
    spread = np.array([p.log_sd for p in parameters])
    centre = np.array([p.log_factor for p in parameters])
    shape = routing_shape(predictor.lane)
    base = coefficients(predictor.lane)
    accepted = predictor.acceptance(request.k, request.verification)

    def answer(z: Array) -> Array:
        """Outputs (1, n) from standard normals (d, n)."""
        factors = np.exp(centre[:, None] + spread[:, None] * z[:-2])
        values = Values(base, dict(zip(names, factors, strict=False)))
        run = np.exp(predictor.run_log_sd * z[-1])
        if output == "ttft_ms":
            first = ttft_s(predictor.lane, values, request.context_tokens, traffic=predictor.traffic) * run
            return np.atleast_2d(first * 1e3)
        kept = accepted.draw_mean(np.stack([z[-2], np.zeros(z.shape[1])]), streams=1, steps=1)
        if output == "tokens_per_step":
            return np.atleast_2d(kept)
        quiet = np.zeros((shape.layers, z.shape[1]))  # routing luck is noise, not a parameter
        step = (
            draw_step_s(
                predictor.lane, predictor.traffic, values, predictor.batch(request), RoutingNoise(quiet, quiet, quiet)
            )
            * run
        )
        per_stream = kept / step
        found = {
            "step_ms": step * 1e3,
            "tok_s_per_stream": per_stream,
            "tok_s_aggregate": per_stream * request.concurrency,
        }
        return np.atleast_2d(found[output])

    if np.ptp(answer(np.random.default_rng(seed).standard_normal((len(names), 64)))) == 0.0:
        raise PolicyError(f"--sensitivity {output}: nothing uncertain moves it in this cell.")
    kept: list[tuple[Array, Array, Array]] = []

    def method(f_A: Array, f_B: Array, f_AB: Array) -> tuple[Array, Array]:
        kept.append((f_A, f_B, f_AB))
        return saltelli(f_A, f_B, f_AB)  # SciPy asks for these names

    sobol_indices(
        func=answer, n=points, dists=[norm()] * len(names), method=method, rng=np.random.default_rng([seed, 13])
    )
    first, total = np.ravel(saltelli(*kept[0])).reshape(2, -1)
    first_width, total_width = half_widths(*kept[0], seed=seed)
    columns = (array.tolist() for array in (first, first_width, total, total_width))
    rows = [Index(name, *numbers) for name, *numbers in zip(names, *columns, strict=True)]
    return sorted(rows, key=lambda row: -row.total)


def saltelli(f_a: Array, f_b: Array, f_ab: Array) -> tuple[Array, Array]:
    """First-order and total indices (outputs, parameters) from f(A), f(B) (outputs, n), f(AB) (parameters, outputs, n).

    Saltelli et al., Computer Physics Communications 181 (2010) 259, table 2 (b) and (f).
    """
    variance = np.var([f_a, f_b], axis=(0, -1))
    first = np.mean(f_b * (f_ab - f_a), axis=-1) / variance
    total = 0.5 * np.mean((f_a - f_ab) ** 2, axis=-1) / variance
    return first.T, total.T


def half_widths(f_a: Array, f_b: Array, f_ab: Array, *, seed: int) -> Array:
    """Half widths of the 90 % intervals of both indices, (2, parameters), by a bootstrap over the points.

    SciPy's own draws from a generator nobody can seed, and an answer must be repeatable.
    """
    rng, n = np.random.default_rng([seed, 17]), f_a.shape[-1]
    found = np.empty((RESAMPLES, 2, len(f_ab)))
    for resample in found:
        drawn = rng.integers(n, size=n)
        first, total = saltelli(f_a[:, drawn], f_b[:, drawn], f_ab[..., drawn])
        resample[:] = first[0], total[0]
    low, high = np.quantile(found, (0.05, 0.95), axis=0)
    width: Array = 0.5 * (high - low)
    return width
