"""The law of the experts a batch touches: means and spread, in closed form.

The law, per layer, of E experts with top-K routing:

    one stream     n1 = m^beta                   m = accepted + w * rejected rows, n1 in "independent tokens"
    many streams   S' = S^(g + (1 - g) d)                     d = 1 unrelated streams, 0 one shared prompt
    union          U  = E (1 - q),  q = (1 + S' n1 ((1 - K/E)^-v - 1))^(-1/v)
    cold           C  = E_c (1 - (1 + v_c L)^(-1/v_c)),  L = s K S' m / E_c

S' is the number of unrelated streams that would touch as many experts. Eight streams that continue one prompt are not
one stream and not one long text either: SHARED_PROMPT_EXPONENT g is measured. `v` and `v_c` are the squared
coefficients of variation of the expert popularity that all tokens have in common: a gamma-distributed popularity
integrates a Poisson number of hits to these closed forms (the negative binomial zero term). One token touches K experts
whatever v; v -> 0 is independent uniform tokens, q = (1 - K/E)^(S' n1). Cold routes are counted per row and not per independent token: the rows measured on a cold
tier repeat no more than the popularity tail explains (docs/routing.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Value: TypeAlias = "float | Array"

#: S' = S^g for streams that share one prompt. Derived from the expert kernels of a four-GB10 lane, which took 24.3 and
#: 28.4 ms for 6 and 8 rows of one stream and 41.9 and 55.0 ms for 48 and 64 rows of eight streams on one coding prompt
#: (rhys101/DeepSeek-V4.1-Flash-SGLang-DGX-Spark-4-NVMe docs/trace-iteration-01.md): 0.33 and 0.39.
SHARED_PROMPT_EXPONENT = 0.36
#: Squared coefficient of variation of the popularity that unrelated streams share (see RoutingParameters).
STREAM_SKEW = 0.2
#: Rows at which `RoutingParameters.layer_spread` is quoted: the length of a k = 5 verify batch.
SPREAD_ROWS = 6.0
_DEFAULT_SPREAD = 0.114

# Unique experts at 6 rows of the layers of DeepSeek-V4.1-Flash measured one by one: 0xBakeer/deepseek-v41-flash-spark
# topics/coverage.json (layers 0, 20, 28, 39 of 0..39) and trace-partial (layers 1, 2, 3, brought to the same corpus by
# the ratio of layer 0). Over all 40 layers the same source states mean 22.6, least 18.2, most 29.5.
_MEASURED_LAYERS = {0: 28.63, 1: 25.67, 2: 24.13, 3: 22.60, 20: 19.12, 28: 18.36, 39: 24.66}
_PROFILE_MEAN, _PROFILE_LEAST, _PROFILE_MOST, _PROFILE_LAYERS = 22.6, 18.2, 29.5, 40


@dataclass(frozen=True)
class RoutingShape:
    """What the checkpoint says: MoE layers, routed experts in a layer, experts a token is sent to."""

    layers: int
    experts: int
    top_k: int

    def __post_init__(self) -> None:
        if not (self.layers >= 1 and 1 <= self.top_k <= self.experts):
            raise ValueError(f"a routing shape needs layers >= 1 and 1 <= top_k <= experts, got {self}")


@dataclass(frozen=True)
class RoutingParameters:
    """What traffic and calibration say. Every field is a float or an array of shape (samples,).

    beta: exponent of locality inside a stream; 1 is uniform routing, 0.751 is DeepSeek-V4.1-Flash (measured).
    rejected_weight: rows of a rejected draft count this much of an accepted row; 1 = they route alike (assumed).
    diversity: 1 = unrelated streams, 0 = every stream continues one prompt.
    cold_share: share of decode routes on cold experts, a property of map *and* traffic: 0.05 for a map calibrated on
        its own traffic, 0.10-0.16 on other text, 0.20-0.26 on random ids (measured, 99 of 384 cold).
    cold_skew: squared coefficient of variation of popularity among the cold experts (derived from the cold experts
        implied at 6, 64 and 128 rows of long news text).
    stream_skew: squared coefficient of variation of the popularity that tokens of all streams share; 0 = none. Four
        figures exist: about 0 (four streams of DeepSeek-V4.1-Flash: 2 % shared, 2.3 % if independent), 0.08 and 0.35
        (counted on Qwen1.5-MoE at random positions and in step over 2 to 16 streams), 0.75 (pooled popularity of 36
        topics on V4.1). The default is between the middle two.
    layer_spread: standard deviation over layers of log unique experts at 6 rows (derived from 18.2 to 29.5).
    """

    beta: Value
    rejected_weight: Value = 1.0
    diversity: Value = 1.0
    cold_share: Value = 0.0
    cold_skew: Value = 2.9
    stream_skew: Value = STREAM_SKEW
    layer_spread: Value = _DEFAULT_SPREAD


def mean_unique(
    shape: RoutingShape, parameters: RoutingParameters, *, streams: int, accepted_rows: Value, rejected_rows: Value
) -> Any:
    """Expected unique experts a layer, averaged over layers: a float, or (samples,) when a parameter has samples."""
    return _over_layers(Union(shape, parameters, streams, accepted_rows, rejected_rows).mean)


def mean_cold(
    shape: RoutingShape, parameters: RoutingParameters, *, streams: int, accepted_rows: Value, rejected_rows: Value,
    cold_experts: int,
) -> Any:  # fmt: skip
    """Expected cold experts a layer, averaged over layers: a float, or (samples,) when a parameter has samples."""
    union = Union(shape, parameters, streams, accepted_rows, rejected_rows)
    return _over_layers(cold_mean(union, cold_experts) if cold_experts > 0 else np.zeros_like(union.mean))


def uniform_variance(experts: int, top_k: int, tokens: Value) -> Any:
    """Variance of unique experts of `tokens` independent uniform tokens, continued to real numbers of tokens.

    Var = E q1 + E (E-1) q2 - (E q1)^2, q1 = (1 - K/E)^n, q2 = ((E-K)(E-K-1) / (E (E-1)))^n: inclusion-exclusion over
    pairs of experts that no token chose.
    """
    if top_k >= experts:
        return np.zeros_like(np.asarray(tokens, dtype=float))
    log_q1 = np.log1p(-top_k / experts)
    pair = (experts - top_k) * (experts - top_k - 1.0) / (experts * (experts - 1.0))
    tokens = np.asarray(tokens, dtype=float)
    q1 = np.exp(log_q1 * tokens)
    # E (E-1) (q2 - q1^2) is a small difference of near equals: take it through expm1.
    excess = np.log(pair) - 2.0 * log_q1 if pair > 0 else -1e300
    spread = experts * q1
    spread *= 1.0 - q1
    pairs = q1 * q1
    pairs *= experts * (experts - 1.0)
    pairs *= np.expm1(excess * tokens)
    spread += pairs
    return np.maximum(spread, 0.0)


@lru_cache(maxsize=64)
def layer_profile(layers: int) -> Array:
    """How a layer's log unique experts differ from the mean: zero mean, unit deviation, shape (layers,).

    Measured layers are where they were measured (by relative depth); the others are assumed: a fixed low-discrepancy
    sequence of normal quantiles, because a step adds up its layers and does not ask which of them is which.
    """
    if layers == 1:
        return np.zeros(1)
    golden = 0.5 * (5.0**0.5 - 1.0)
    quantile = NormalDist().inv_cdf
    # The layers nobody measured one by one average 22.45 and hold the two extremes.
    unknown = np.asarray([quantile(0.05 + 0.9 * ((0.5 + golden * i) % 1.0)) for i in range(_PROFILE_LAYERS)])
    reference = np.log(22.35 / _PROFILE_MEAN) + 0.11 * unknown
    reference[np.argmax(unknown[4:20]) + 4] = np.log(_PROFILE_MOST / _PROFILE_MEAN)
    reference[np.argmin(unknown[4:20]) + 4] = np.log(_PROFILE_LEAST / _PROFILE_MEAN)
    reference[list(_MEASURED_LAYERS)] = np.log(np.asarray(list(_MEASURED_LAYERS.values())) / _PROFILE_MEAN)
    nearest = np.rint(np.linspace(0.0, _PROFILE_LAYERS - 1.0, layers)).astype(int)
    profile = reference[nearest] - reference[nearest].mean()
    return np.asarray(profile / profile.std())


class Union:
    """Means shared by every draw: independent tokens and the union, each of shape (layers, 1 or samples)."""

    def __init__(
        self, shape: RoutingShape, parameters: RoutingParameters, streams: int, accepted: Value, rejected: Value
    ) -> None:
        self.shape, self.parameters, self.streams = shape, parameters, streams
        self.rows = np.asarray(accepted, dtype=float) + np.asarray(rejected, dtype=float)
        #: effective rows of one stream
        self.stream_rows = np.maximum(accepted + np.asarray(parameters.rejected_weight) * rejected, 1.0)
        beta, spread = np.asarray(parameters.beta), np.asarray(parameters.layer_spread)
        profile = layer_profile(shape.layers)[:, None]
        # A layer's exponent moves by what gives `spread` at SPREAD_ROWS rows; one row is K experts in every layer.
        log_rows = np.atleast_1d(np.log(self.stream_rows))
        self.layer_factor = np.exp(np.atleast_1d(spread) * profile * (log_rows / np.log(SPREAD_ROWS)))
        # The spread of layers moves none of the mean, whatever the rows: beta is what the mean over layers measured.
        self.layer_factor /= np.mean(self.layer_factor, axis=0)
        #: unrelated streams that would touch as many experts
        diversity = np.asarray(parameters.diversity)
        exponent = SHARED_PROMPT_EXPONENT + (1.0 - SHARED_PROMPT_EXPONENT) * diversity
        self.free_streams = np.exp(exponent * np.log(streams))
        self.tokens = np.exp(beta * log_rows) * self.layer_factor
        self.tokens *= self.free_streams
        hit = -np.log1p(-shape.top_k / shape.experts) if shape.top_k < shape.experts else np.inf
        skew = np.maximum(np.asarray(parameters.stream_skew, dtype=float), 1e-9)
        missed = np.log1p(self.tokens * np.expm1(skew * hit))
        missed /= -skew
        self.mean = np.expm1(missed)
        self.mean *= -shape.experts

    def cold_rows(self) -> Array:
        """Rows that cold routes are counted by, (layers, 1 or samples): not independent tokens (see above)."""
        rows: Array = self.free_streams * self.stream_rows * self.layer_factor
        return rows


def cold_mean(union: Union, cold_experts: int) -> Array:
    """Expected cold experts a layer, (layers, 1 or samples)."""
    touched = cold_touched(union.shape, union.parameters, union.cold_rows(), cold_experts)
    return np.asarray(np.minimum(touched, union.mean))


def cold_touched(shape: RoutingShape, parameters: RoutingParameters, rows: Array, cold_experts: int) -> Array:
    """Cold experts that independent `rows` (layers, 1 or samples) touch on average, of the same shape."""
    hits = np.asarray(parameters.cold_share) * (shape.top_k / cold_experts) * rows
    skew = np.maximum(np.asarray(parameters.cold_skew, dtype=float), 1e-9)
    touched: Array = np.log1p(skew * hits)
    touched /= -skew
    np.expm1(touched, out=touched)
    touched *= -cold_experts
    return touched


def _over_layers(per_layer: Array) -> Any:
    mean = per_layer.mean(axis=0)
    return float(mean[0]) if mean.shape == (1,) else mean
