"""Unique experts when experts differ in popularity: tokens that sample K experts without replacement, by weight.

A token draws its experts one after the other, each with probability proportional to its weight among those left
(successive sampling; equal in law to the K largest of log weight + Gumbel noise, which is how a router with noisy
logits behaves). Expert i arrives at time T_i ~ Exp(w_i) and the K first are chosen, so

    P(a token chooses i)       = integral w_i e^{-w_i t} P(fewer than K others by t) dt
    P(it chooses i, j or both) = integral (w_i + w_j) e^{-(w_i + w_j) t} P(fewer than K others by t) dt

with a Poisson-binomial count of arrivals. In log t the trapezoid rule converges faster than any power of the step, so
the probabilities are good to about 1e-12. Tokens are independent given the weights: powers of these give m tokens.

The full distribution needs every subset; it is exact up to EXACT_EXPERTS experts and beyond that a normal with the
exact mean and variance, rounded to whole experts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twin.routing.batch import Array

EXACT_EXPERTS = 16
_NODES_PER_UNIT = 12  # trapezoid nodes per e-fold of time
_STABLE = 0.75  # dividing a factor out of a Poisson binomial loses digits above this arrival probability


def inclusion(weights: ArrayLike, top_k: int) -> Array:
    """Probability that a token chooses each expert, shape (experts,); it adds up to `top_k`.

    Weights are relative and not negative; an expert of weight 0 is never chosen. Raises ValueError when fewer than
    `top_k` experts have weight.
    """
    w = _weights(weights, top_k)
    if int(np.count_nonzero(w)) == top_k:
        return (w > 0).astype(float)
    time, measure = _nodes(w, top_k)
    arrived = -np.expm1(-w[:, None] * time)
    fewer = _fewer_without_each(arrived, top_k)
    # dP = w e^{-w t} dt = w t e^{-w t} d(log t)
    chosen = (w[:, None] * time * np.exp(-w[:, None] * time) * fewer) @ measure
    return np.asarray(np.minimum(chosen, 1.0))


def both_missed(weights: ArrayLike, top_k: int) -> Array:
    """Probability that a token chooses neither i nor j, shape (experts, experts); the diagonal is P(i missed)."""
    w = _weights(weights, top_k)
    count = w.size
    if int(np.count_nonzero(w)) == top_k:
        free = (w == 0).astype(float)
        return np.outer(free, free)
    time, measure = _nodes(w, top_k)
    arrived = -np.expm1(-w[:, None] * time)
    result = np.empty((count, count))
    stable = np.minimum(arrived, _STABLE)
    shaky = _shaky_experts(arrived, top_k)
    for i in range(count):
        rest = arrived.copy()
        rest[i] = 0.0
        without_i = _counts(rest, top_k)
        fewer = _divide_out(without_i, stable)
        for j in shaky:
            rest_j = rest.copy()
            rest_j[j] = 0.0
            fewer[j] = _counts(rest_j, top_k).sum(axis=0)
        pair = w[i] + w
        rate = pair[:, None] * time
        result[i] = 1.0 - (rate * np.exp(-rate) * np.clip(fewer, 0.0, 1.0)) @ measure
    result = 0.5 * (result + result.T)
    result[np.diag_indices(count)] = 1.0 - inclusion(w, top_k)
    return np.asarray(np.clip(result, 0.0, 1.0))


def mean_unique(chosen: ArrayLike, tokens: float) -> float:
    """Expected unique experts of `tokens` tokens, from each expert's probability to be chosen (see `inclusion`).

    Exact for every way of choosing experts, successive or not. A subset (the cold experts, a rank) is the same sum
    over its experts only.
    """
    return float(np.sum(touched(chosen, tokens)))


def touched(chosen: ArrayLike, tokens: float) -> Array:
    """Probability that each expert is touched by `tokens` tokens, 1 - (1 - pi)^m."""
    pi = np.asarray(chosen, dtype=float)
    if np.any((pi < -1e-12) | (pi > 1 + 1e-12)):
        raise ValueError("a probability to be chosen must lie in 0 .. 1")
    with np.errstate(divide="ignore"):
        return np.asarray(-np.expm1(tokens * np.log1p(-np.clip(pi, 0.0, 1.0)))) if tokens > 0 else np.zeros_like(pi)


def variance_unique(weights: ArrayLike, top_k: int, tokens: float) -> float:
    """Variance of the unique experts of `tokens` tokens: sum of q_ij^m - q_i^m q_j^m over all pairs of experts."""
    pair = both_missed(weights, top_k)
    single = np.diag(pair)
    return float(max(np.sum(pair**tokens - np.outer(single**tokens, single**tokens)), 0.0))


def distribution(weights: ArrayLike, top_k: int, tokens: int) -> Array:
    """P(u experts touched), u = 0 .. experts; exact up to EXACT_EXPERTS experts, else matched to two moments."""
    w = _weights(weights, top_k)
    if w.size <= EXACT_EXPERTS:
        return _every_subset(w, top_k, tokens)
    from statistics import NormalDist

    mean = mean_unique(inclusion(w, top_k), tokens)
    deviation = variance_unique(w, top_k, tokens) ** 0.5
    if deviation < 1e-6:
        exact = np.zeros(w.size + 1)
        exact[round(mean)] = 1.0
        return exact
    normal = NormalDist(mean, deviation)
    edges = np.asarray([normal.cdf(u + 0.5) for u in range(w.size)])
    return np.diff(np.concatenate(([0.0], edges, [1.0])))


def weights_for(chosen: ArrayLike, top_k: int, *, tolerance: float = 1e-10) -> Array:
    """Weights whose `inclusion` is `chosen` (K times the share of routes counted), mean weight 1.

    Fixed point w <- w pi_wanted / pi(w). Raises ValueError when a probability exceeds 1 or they do not add up to K.
    """
    wanted = np.asarray(chosen, dtype=float)
    if wanted.max() >= 1.0 or wanted.min() < 0.0 or abs(wanted.sum() - top_k) > 1e-6 * top_k:
        raise ValueError(f"probabilities to be chosen must lie in 0 .. 1 and add up to top_k = {top_k}")
    positive = wanted > 0
    w = np.where(positive, -np.log1p(-wanted), 0.0)
    for _ in range(200):
        ratio = np.where(positive, wanted / np.maximum(inclusion(w, top_k), 1e-300), 0.0)
        w = w * ratio
        w /= w.mean()
        if np.max(np.abs(ratio[positive] - 1.0)) < tolerance:
            break
    return np.asarray(w)


def sample_tokens(rng: np.random.Generator, weights: ArrayLike, top_k: int, shape: tuple[int, ...]) -> NDArray[np.intp]:
    """Draw tokens, shape (*shape, top_k) of expert ids: the K largest of log weight + Gumbel noise."""
    w = _weights(weights, top_k)
    with np.errstate(divide="ignore"):
        keys = np.log(w) + rng.gumbel(size=(*shape, w.size))
    return np.asarray(np.argpartition(keys, -top_k, axis=-1)[..., -top_k:])


def _weights(weights: ArrayLike, top_k: int) -> Array:
    w = np.asarray(weights, dtype=float)
    if w.ndim != 1 or not np.all(np.isfinite(w)) or np.any(w < 0):
        raise ValueError("weights must be one row of finite numbers that are not negative")
    if not 1 <= top_k <= int(np.count_nonzero(w)):
        raise ValueError(f"top_k must lie in 1 .. {int(np.count_nonzero(w))} (experts with weight), got {top_k}")
    return np.asarray(w / w.max())


def _nodes(w: Array, top_k: int) -> tuple[Array, Array]:
    """Times and their measure in log t, from "nothing has arrived" to "everything that matters has"."""
    positive = np.sort(w[w > 0])
    # Before `first` even the heavy experts have not come, after `last` the (K+1) heaviest all have.
    first = np.log(1e-14 / positive.sum())
    last = np.log(60.0 / positive[-(top_k + 1)]) if positive.size > top_k else np.log(60.0 / positive[0])
    count = int(np.ceil((last - first) * _NODES_PER_UNIT)) + 1
    log_time = np.linspace(first, last, count)
    return np.exp(log_time), np.full(count, log_time[1] - log_time[0])


def _counts(arrived: Array, top_k: int) -> Array:
    """P(k arrivals), k = 0 .. K-1, at each time; `arrived` has shape (experts, times)."""
    counts = np.zeros((top_k, arrived.shape[1]))
    counts[0] = 1.0
    for probability in arrived:
        counts[1:] += probability * (counts[:-1] - counts[1:])
        counts[0] *= 1.0 - probability
    return counts


def _fewer_without_each(arrived: Array, top_k: int) -> Array:
    """P(fewer than K arrivals among all but i), shape (experts, times): prefix and suffix products."""
    experts, times = arrived.shape
    prefix = np.zeros((experts + 1, top_k, times))
    prefix[0, 0] = 1.0
    for i in range(experts):
        prefix[i + 1] = prefix[i] * (1.0 - arrived[i])
        prefix[i + 1, 1:] += prefix[i, :-1] * arrived[i]
    fewer = np.empty((experts, times))
    suffix = np.zeros((top_k, times))
    suffix[0] = 1.0
    for i in range(experts - 1, -1, -1):
        below = np.cumsum(suffix, axis=0)
        fewer[i] = np.einsum("kt,kt->t", prefix[i], below[::-1])
        suffix[1:] += arrived[i] * (suffix[:-1] - suffix[1:])
        suffix[0] *= 1.0 - arrived[i]
    return fewer


def _divide_out(counts: Array, arrived: Array) -> Array:
    """P(fewer than K arrivals without j) for every j, by dividing (1 - p_j + p_j x) out of the count's polynomial."""
    late = 1.0 - arrived
    term = counts[0] / late
    total = term.copy()
    for k in range(1, counts.shape[0]):
        term = (counts[k] - arrived * term) / late
        total += term
    return np.asarray(total)


def _shaky_experts(arrived: Array, top_k: int) -> list[int]:
    """Experts so heavy that they have probably arrived while the count still matters: never divided out."""
    fewer = _counts(arrived, top_k + 2).sum(axis=0)
    return [j for j in range(arrived.shape[0]) if np.any((arrived[j] > _STABLE) & (fewer > 1e-13))]


def _every_subset(w: Array, top_k: int, tokens: int) -> Array:
    """Distribution by inclusion-exclusion over all subsets of experts."""
    experts = w.size
    size = 1 << experts
    bits = np.asarray([bin(s).count("1") for s in range(size)])
    total = np.zeros(size)
    for i in range(experts):
        total += np.where(np.arange(size) >> i & 1, w[i], 0.0)
    # first[S]: the first |S| picks are the set S; a token's probability where |S| = K.
    first = np.zeros(size)
    first[0] = 1.0
    for s in range(1, size):
        if bits[s] <= top_k:
            for i in range(experts):
                if s >> i & 1 and w[i] > 0:
                    before = s ^ (1 << i)
                    left = total[-1] - total[before]
                    first[s] += first[before] * w[i] / left if left > 0 else 0.0
    inside = np.where(bits == top_k, first, 0.0)
    for i in range(experts):  # zeta transform: sum over subsets
        view = inside.reshape(-1, 2, 1 << i)
        view[:, 1] += view[:, 0]
    exactly = inside**tokens
    for i in range(experts):  # Moebius transform: exactly this set
        view = exactly.reshape(-1, 2, 1 << i)
        view[:, 1] -= view[:, 0]
    result = np.zeros(experts + 1)
    np.add.at(result, bits, exactly)
    return np.asarray(np.clip(result, 0.0, 1.0))
