"""Ordered traces by mechanisms that are none of the fitted families: what a law of unions has to survive.

Each returns a RoutingTrace of several streams whose layers differ in strength. None of them has an exponent, and none
is exchangeable: order matters, as it does in real text.
"""

from __future__ import annotations

import re
from zlib import crc32

import numpy as np

from twin.routing.counts import RoutingTrace

STREAM = 400


def _top(scores: np.ndarray, top_k: int) -> np.ndarray:
    return np.argpartition(scores, -top_k, axis=-1)[..., -top_k:]


def _trace(layers: list[np.ndarray], name: str) -> RoutingTrace:
    experts = np.stack(layers, axis=1).astype(np.int64)
    return RoutingTrace(experts, np.arange(experts.shape[0]) // STREAM, name)


def words(text: str, *, experts: int, top_k: int, own: tuple[float, ...], tokens: int) -> RoutingTrace:
    """Real text: a word has scores of its own in every layer, and its context adds noise.

    `own` is the word's share of the scores: at 1 the same word always picks the same experts, as in a first layer.
    Repetition, bursts of topic words and long-range order are the text's.
    """
    pieces = re.findall(r"[a-z]+|[^a-z\s]", text.lower())[:tokens]
    ids = np.asarray([crc32(piece.encode()) for piece in pieces])
    vocabulary, which = np.unique(ids, return_inverse=True)
    layers = []
    for layer, share in enumerate(own):
        popularity = np.log(np.random.default_rng([layer, 7]).gamma(1.0, size=experts))
        word = np.stack([np.random.default_rng([int(v), layer]).gumbel(size=experts) for v in vocabulary])
        context = np.random.default_rng([layer, 8]).gumbel(size=(which.size, experts))
        layers.append(_top(popularity + share * word[which] + (1 - share) * context, top_k))
    return _trace(layers, "words of real text")


def topics(*, experts: int, top_k: int, stay: tuple[float, ...], tokens: int, seed: int = 2) -> RoutingTrace:
    """A Markov chain over twenty topics, each with its own Dirichlet popularity; a topic goes on with chance `stay`."""
    layers = []
    for layer, chance in enumerate(stay):
        rng = np.random.default_rng([seed, layer])
        popularity = np.log(rng.dirichlet(np.full(experts, 0.2), size=20) + 1e-12)
        change = rng.random(tokens) > chance
        change[0] = True
        topic = rng.integers(20, size=int(change.sum()))[np.cumsum(change) - 1]
        layers.append(_top(popularity[topic] + rng.gumbel(size=(tokens, experts)), top_k))
    return _trace(layers, "Markov topics")


def bursts(*, experts: int, top_k: int, share: tuple[float, ...], tokens: int, seed: int = 3) -> RoutingTrace:
    """Dirichlet popularity a layer, broken by bursts of heavy-tailed length that keep to 3 K experts drawn for it.

    `share` is the share of segments that are bursts; lengths are Pareto with exponent 1.5 from 4 tokens on, and a
    stream's end ends them.
    """
    layers = []
    for layer, chance in enumerate(share):
        rng = np.random.default_rng([seed, layer])
        popularity = np.log(rng.dirichlet(np.full(experts, 0.8)) + 1e-12)
        scores = popularity + rng.gumbel(size=(tokens, experts))
        at = 0
        while at < tokens:
            end = min(at + int(4 * (1 + rng.pareto(1.5))), (at // STREAM + 1) * STREAM)
            if rng.random() < chance:
                few = _top(popularity + rng.gumbel(size=experts), 3 * top_k)
                scores[at:end, few] += 30.0
            at = end
        layers.append(_top(scores, top_k))
    return _trace(layers, "bursts")


def copies(*, experts: int, top_k: int, copied: tuple[float, ...], tokens: int, seed: int = 4) -> RoutingTrace:
    """Every pick is, with chance `copied`, one of the picks of a token a power-law distance back in the stream."""
    layers = []
    for layer, chance in enumerate(copied):
        rng = np.random.default_rng([seed, layer])
        popularity = np.log(rng.dirichlet(np.full(experts, 1.0)) + 1e-12)
        fresh = np.argsort(-(popularity + rng.gumbel(size=(tokens, experts))), axis=1)[:, : 3 * top_k]
        back = (1 + rng.pareto(0.7, size=(tokens, top_k))).astype(np.int64)
        source = np.arange(tokens)[:, None] - back
        old = (rng.random((tokens, top_k)) < chance) & (source >= np.arange(tokens)[:, None] // STREAM * STREAM)
        place = rng.integers(top_k, size=(tokens, top_k))
        ids = fresh[:, :top_k].copy()
        for t in range(tokens):
            wanted = [int(ids[source[t, i], place[t, i]]) for i in np.flatnonzero(old[t])]
            picked = list(dict.fromkeys([*wanted, *fresh[t].tolist()]))
            ids[t] = picked[:top_k]
        layers.append(ids)
    return _trace(layers, "copies at a distance")
