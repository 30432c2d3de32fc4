"""Verification rules, the algorithms themselves, on given target and draft distributions.

A step has k drafted tokens x_1..x_k, draft distributions q_i(. | x_<i) they were drawn from, and target distributions
p_i(. | x_<i) for i = 1..k+1. A rule accepts a prefix of length tau and draws one more token, so that the text is
distributed as the target's own.

    greedy   temperature 0: accept while the draft is the target's likeliest token
    token    rejection draft by draft: accept x_i with chance min(1, p_i/q_i), else draw from norm(max(p_i - q_i, 0))
             (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318)
    block    the whole block at once (Sun et al. 2024, arXiv 2403.10444): with w_0 = 1, w_i = min(1, w_{i-1} p_i/q_i),
             h_i = r_i / (r_i + 1 - w_i), r_i = sum_x max(w_i p_{i+1}(x) - q_{i+1}(x), 0), and h_k = w_k,
             tau is the LAST i whose coin h_i shows heads; the next token is from norm(max(w_tau p - q, 0)), or from
             p_{k+1} when tau = k

Distributions are rows of arrays: target (k+1, V), draft (k, V), each row adding up to 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from twin.acceptance.profile import Array
from twin.errors import PolicyError, nearest

Tokens = NDArray[np.int64]
#: (chance of accepting exactly tau drafts, distribution of the token after them), tau = 0..k
Outcome = tuple[Array, Array]


def greedy_outcome(target: Array, draft: Array, tokens: Tokens) -> Outcome:
    """Accept the prefix that agrees with the target's likeliest tokens; then that token. Shapes (k+1,), (k+1, V)."""
    best = target.argmax(axis=1)
    wrong = np.flatnonzero(best[:-1] != tokens)
    accepted = int(wrong[0]) if wrong.size else len(tokens)
    chance = np.zeros(len(tokens) + 1)
    chance[accepted] = 1.0
    return chance, np.eye(target.shape[1])[best]


def token_outcome(target: Array, draft: Array, tokens: Tokens) -> Outcome:
    """Token-level rejection: chance of each tau given the drafts, and the next token's distribution after each tau."""
    k = len(tokens)
    index = np.arange(k)
    accept = np.minimum(1.0, _ratio(target[index, tokens], draft[index, tokens]))
    reached = np.concatenate([[1.0], np.cumprod(accept)])
    chance = reached * np.append(1.0 - accept, 1.0)
    residual = np.maximum(target[:k] - draft, 0.0)
    return chance, np.vstack([_normalised(residual, target[:k]), target[k:]])


def block_outcome(target: Array, draft: Array, tokens: Tokens) -> Outcome:
    """Block verification: chance of each tau given the drafts, and the next token's distribution after each tau."""
    k = len(tokens)
    w = np.ones(k + 1)
    for i in range(k):
        w[i + 1] = min(1.0, float(w[i] * _ratio(target[i, tokens[i]], draft[i, tokens[i]])))
    residual = np.maximum(w[:k, None] * target[:k] - draft, 0.0)  # row i belongs to tau = i
    mass = residual.sum(axis=1)
    heads = np.ones(k + 1)  # tau = 0 always holds when no later coin does
    # 0/0 happens only where w = 1 and nothing is left of the target: then later drafts are accepted for sure
    total = mass[1:] + 1.0 - w[1:k]
    heads[1:k] = np.divide(mass[1:], total, out=np.ones(max(k - 1, 0)), where=total > 0)
    if k:
        heads[k] = w[k]
    none_later = np.append(np.cumprod((1.0 - heads)[::-1])[::-1][1:], 1.0)
    return heads * none_later, np.vstack([_normalised(residual, target[:k]), target[k:]])


RULES: dict[str, Callable[[Array, Array, Tokens], Outcome]] = {
    "greedy": greedy_outcome,
    "token": token_outcome,
    "block": block_outcome,
}


def outcome(rule: str, target: Array, draft: Array, tokens: Tokens) -> Outcome:
    """The exact outcome of a rule on given drafts. Raises PolicyError for an unknown rule."""
    if rule not in RULES:
        raise PolicyError(f"verification {rule!r}: {nearest(rule, RULES)}")
    return RULES[rule](target, draft, tokens)


def verify(rule: str, target: Array, draft: Array, tokens: Tokens, rng: np.random.Generator) -> Tokens:
    """Run one step as an engine does: the accepted drafts and the token after them, shape (tau + 1,)."""
    chance, after = outcome(rule, target, draft, tokens)
    tau = int(rng.choice(len(chance), p=chance / chance.sum()))
    return np.append(tokens[:tau], rng.choice(after.shape[1], p=after[tau]))


def _ratio(target: Array, draft: Array) -> Array:
    # A drafted token has q > 0; one that could not have been drafted is never accepted for free.
    return np.divide(target, draft, out=np.zeros(np.shape(target)), where=np.asarray(draft) > 0)


def _normalised(rows: Array, fallback: Array) -> Array:
    total = rows.sum(axis=1, keepdims=True)
    # An empty residual has chance 0 of being used; the target stands in so that the row stays a distribution.
    return np.where(total > 0, rows / np.where(total > 0, total, 1.0), fallback)


class Chain:
    """A target and a draft model whose next token depends on the last one: rows of (V, V) transition matrices.

    `start` is the token before the block. Enough structure to make the rules differ, small enough to enumerate.
    """

    def __init__(self, target: Array, draft: Array, start: int = 0) -> None:
        self.target, self.draft, self.start = np.asarray(target, dtype=float), np.asarray(draft, dtype=float), start

    def rows(self, tokens: Tokens) -> tuple[Array, Array]:
        """Target rows (k+1, V) and draft rows (k, V) along a drafted block."""
        before = np.concatenate([[self.start], tokens]).astype(int)
        return self.target[before], self.draft[before[:-1]]

    def drafts(self, k: int) -> Iterator[tuple[Tokens, float]]:
        """Every block of k tokens with its draft probability (zero ones left out)."""
        for block in product(range(self.target.shape[0]), repeat=k):
            tokens = np.asarray(block, dtype=np.int64)
            before = np.concatenate([[self.start], tokens[:-1]]).astype(int) if k else tokens
            chance = float(np.prod(self.draft[before, tokens])) if k else 1.0
            if chance > 0:
                yield tokens, chance

    def survival(self, rule: str, k: int) -> Array:
        """Exact survival (k,) of the rule, by enumeration of all V^k blocks."""
        total = np.zeros(k)
        for tokens, chance in self.drafts(k):
            accepted, _ = outcome(rule, *self.rows(tokens), tokens)
            total += chance * np.cumsum(accepted[::-1])[::-1][1:]
        return total

    def output(self, rule: str, k: int) -> Array:
        """Exact joint distribution of the next k + 1 tokens under the rule, shape (V,) * (k + 1).

        After the verified prefix the text continues with the target itself, which is what later steps do.
        """
        joint = np.zeros((self.target.shape[0],) * (k + 1))
        for tokens, chance in self.drafts(k):
            accepted, after = outcome(rule, *self.rows(tokens), tokens)
            for tau in np.flatnonzero(accepted):
                head = tuple(tokens[:tau])
                for last in np.flatnonzero(after[tau]):
                    weight = chance * accepted[tau] * after[tau, last]
                    joint[(*head, last)] += weight * self._continuation(int(last), k - int(tau))
        return joint

    def target_output(self, k: int) -> Array:
        """Joint distribution of the next k + 1 tokens of the target, shape (V,) * (k + 1)."""
        return self._continuation(self.start, k + 1)

    def _continuation(self, last: int, length: int) -> Array:
        if length == 0:
            return np.ones(())
        rows = [self.target[last, token] * self._continuation(token, length - 1) for token in range(len(self.target))]
        return np.stack(rows)
