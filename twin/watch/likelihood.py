"""How likely a window's draft counters are when acceptance has moved: by how much, and at which position.

Streams differ by more than a drift does, but mostly in one way: an easy stream is easy at every position. So what the
other positions show tells how easy a window's answers were, and a single position is judged against that rather than
against the mean of the class. The counters of a window are multinomial given a profile, and the profile is averaged
over what is not known (Monte Carlo, common random numbers for all shifts):

    L(shift) = E[ prod_c pi_c^(n_c) ],   pi from   survival_i = sum_kinds mix prod_(j<=i) expit(logit a_j + z + e_j + shift_j)

with n_c blocks that kept c drafts, `mix` which answers were there (`answers`), z a level common to all positions, and
e_j what a position has to itself. Variances of z and e are those of a mean over the answers that a window stands for in
a long sum (`Present.answers`). A window that stands for less than one, because the same answer fills several, counts
with that power of its likelihood: a power below one keeps the expectation of a ratio at or below one (Jensen).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from twin.acceptance.profile import Array, expit, logit, survival_from_conditional
from twin.watch.answers import Kinds, Present, sample_mixes
from twin.watch.drift import deviations

#: half the digits in half the memory: there are some millions of values
Table = NDArray[np.float32]
#: Spread from stream to stream, on the logit, of what a position has to itself. Derived: position 1 against position 2
#: is -0.19 in code (0.796, 0.825) and +0.30 in prose (0.720, 0.656), a spread of 0.24 for the difference of two
#: positions, 0.17 for one. Streams of one class are assumed to differ as much as these two classes do.
POSITION_SD = 0.17
SAMPLES = 1500
#: windows that differ by less than this ratio in who was there share their random numbers
_ROUND = 1.25
_KEPT_TABLES = 12
_GRID = np.linspace(-6.0, 6.0, 1201)


@dataclass(frozen=True)
class Shifts:
    """What is asked about one factor: `values` (9,) as `drift.deviations` has them, and the same as `logits`."""

    values: Array
    logits: Array


def position_shifts(kinds: Kinds, position: int, edge: float, beyond: float) -> Shifts:
    """A change of conditional acceptance at one position (from 0)."""
    own = logit(np.clip(kinds.conditional, 1e-6, 1 - 1e-6))
    reached = kinds.draft_share * np.prod(kinds.conditional[:position], axis=0)
    return _shifts(expit(own[position] + _GRID[:, None]) @ (reached / reached.sum()), edge, beyond)


def level_shifts(kinds: Kinds, edge: float, beyond: float) -> Shifts:
    """A relative change of tokens per step that comes from all positions together."""
    own = logit(np.clip(kinds.conditional, 1e-6, 1 - 1e-6))
    kept = 1.0 + np.cumprod(expit(own + _GRID[:, None, None]), axis=1).sum(axis=1) @ kinds.draft_share
    return _shifts(np.log(kept), edge, beyond)


def _shifts(curve: Array, edge: float, beyond: float) -> Shifts:
    """`curve` is the factor over _GRID; a value beyond its ends is given as far as it goes."""
    values = deviations(edge, beyond)
    middle = float(np.interp(0.0, _GRID, curve))
    return Shifts(values, np.interp(middle + values, curve, _GRID))


class CountLikelihood:
    """Log-likelihood of windows of one mix of traffic; `by_k` are its kinds at each draft length."""

    def __init__(self, by_k: dict[int, Kinds]) -> None:
        self._by_k = by_k
        self._tables: OrderedDict[object, Table] = OrderedDict()

    def of(
        self, counts: Sequence[float], lengths: tuple[int, int, float], shifts: Sequence[Shifts], present: Present
    ) -> Array:
        """Log-likelihood up to a constant, shape (factors, shifts): every position by itself, then all together.

        `counts[c]` draft blocks kept c drafts; `lengths` is (k, longer k, share of the longer); `shifts` one a
        position and one for all, equally many values each.
        """
        below, above, weight = lengths
        present = Present(
            _rounded(present.running), _rounded(present.started), _geometric(present.steps),
            _geometric(present.blocks), round(present.cv2, 1),
        )  # fmt: skip
        weight = round(weight, 2)
        moved = tuple(np.round(s.logits, 6).tobytes() for s in shifts)
        key = (below, above, weight, present, moved)
        if key not in self._tables:
            self._tables[key] = self._table(below, above, weight, shifts, present)
            if len(self._tables) > _KEPT_TABLES:
                self._tables.popitem(last=False)
        self._tables.move_to_end(key)
        n = np.zeros(above + 1)
        n[: min(len(counts), above + 1)] = counts[: above + 1]
        terms = np.einsum("fscm,c->fsm", self._tables[key], n.astype(np.float32))
        most = terms.max(axis=-1, keepdims=True)
        logs = most[..., 0] + np.log(np.exp(terms - most).mean(axis=-1, dtype=float))
        return np.asarray(min(present.answers, 1.0) * logs, dtype=float)

    def _table(self, below: int, above: int, weight: float, shifts: Sequence[Shifts], present: Present) -> Table:
        """log pi, shape (factors, shifts, cells, samples)."""
        rng = np.random.default_rng(0)
        kinds = self._by_k[above]
        mixes = sample_mixes(kinds, present, rng, SAMPLES)
        levels = logit(np.clip(kinds.conditional[0], 1e-6, 1 - 1e-6))
        mean = float(kinds.draft_share @ levels)
        level_variance = float(kinds.draft_share @ (levels - mean) ** 2)
        # What the mix of kinds spreads by already is not spread again.
        there = float((mixes**2).sum(axis=0).mean()) if len(levels) > 1 else 0.0
        answers = max(present.answers, 1.0)
        normals = _stratified_normals(rng, above + 1, SAMPLES)
        z = math.sqrt(level_variance * max(1.0 / answers - there, 0.0)) * normals[0]
        e = POSITION_SD / math.sqrt(answers) * normals[1:]
        found: Table = np.empty((len(shifts), len(shifts[0].values), above + 1, SAMPLES), dtype=np.float32)
        for f, shift in enumerate(shifts):
            for s, by in enumerate(shift.logits):
                logits = z + e
                logits[slice(f, f + 1) if f < above else slice(None)] += by
                survival = self._survival(above, logits, mixes)
                if weight < 1.0:
                    shorter = np.zeros_like(survival)
                    shorter[:below] = self._survival(below, logits[:below], mixes)
                    survival = weight * survival + (1.0 - weight) * shorter
                whole = np.concatenate([np.ones((1, SAMPLES)), survival, np.zeros((1, SAMPLES))])
                found[f, s] = np.log(np.maximum(whole[:-1] - whole[1:], 1e-9))
        return found

    def _survival(self, k: int, logits: Array, mixes: Array) -> Array:
        own = logit(np.clip(self._by_k[k].conditional, 1e-6, 1 - 1e-6))
        by_kind = survival_from_conditional(expit(own[:, :, None] + logits[:, None, :]))
        return np.asarray(np.einsum("pkm,km->pm", by_kind, mixes))


def _stratified_normals(rng: np.random.Generator, rows: int, samples: int) -> Array:
    """Standard normals, one in each of `samples` equally likely strata of every row (Latin hypercube)."""
    quantiles = NormalDist().inv_cdf
    middle = np.array([quantiles((i + 0.5) / samples) for i in range(samples)])
    return np.array([rng.permutation(middle) for _ in range(rows)])


def _geometric(value: float) -> float:
    return float(_ROUND ** round(math.log(max(value, 1e-3)) / math.log(_ROUND)))


def _rounded(number: int) -> int:
    return round(_geometric(number)) if number > 4 else number
