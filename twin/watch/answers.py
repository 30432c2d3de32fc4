"""Which answers a window of counters is made of: random mixes of the kinds of streams that the twin's acceptance knows.

A metrics page adds up the drafts of whatever answers were running. Their number is known, their kinds are not; a window
with few answers therefore shows the profile of some mix of kinds, which `sample_mixes` draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from twin.acceptance.mixture import spread_streams
from twin.acceptance.model import Acceptance
from twin.acceptance.profile import Array


@dataclass(frozen=True)
class Kinds:
    """Kinds of streams at one draft length k, over all classes.

    `conditional` (k, kinds); of each kind, shape (kinds,): its share of draft blocks, its share of answers, and its
    answer's length in draft blocks relative to the mean answer's.
    """

    conditional: Array
    draft_share: Array
    answer_share: Array
    blocks: Array


@dataclass(frozen=True)
class Present:
    """Who was there: streams cut by an edge of the window, answers that began in it, the engine's steps in it, the
    blocks a mean answer takes, and the squared variation of the answers' lengths."""

    running: int
    started: int
    steps: float
    blocks: float
    cv2: float

    @property
    def answers(self) -> float:
        """How many independent answers the window stands for in a sum over many windows.

        r running and s started streams are n = r + s, and neighbours in time share rho = r / n of them. A mean of n
        that keeps rho from window to window has, in a long sum, the variance of n (1 - rho) / (1 + rho) answers. Some
        of several streams outlive that rule when lengths are uneven: 1 + cv2 / 5, from simulated streams
        (`test_watch_likelihood`). Of a single stream the window itself says whether it is still the same answer.
        """
        r, s = max(self.running, 0), self.started
        if r + s == 0:
            return 0.05
        uneven = 1.0 + self.cv2 / 5.0 if r > 1 else 1.0
        return float(max(s * (r + s) / (2 * r + s) / uneven, 0.05))


def kinds_of(classes: Sequence[tuple[float, float, Acceptance]]) -> Kinds:
    """Kinds of a mix of classes, each (share of requests, mean answer in tokens, acceptance).

    A class's profile is a mean over draft blocks, and slow streams need more blocks for the same answer: the share of
    answers of a kind is its share of blocks times the tokens it keeps.
    """
    columns, answers, blocks = [], [], []
    for share, tokens, acceptance in classes:
        mixture = spread_streams(acceptance.survival, acceptance.stream_sd)
        kept = 1.0 + mixture.survival.sum(axis=0)
        of_answers = mixture.weights * kept
        columns.append(mixture.conditional)
        answers.append(share * of_answers / of_answers.sum())
        blocks.append(tokens / kept)
    answer_share, needed = np.concatenate(answers), np.concatenate(blocks)
    answer_share = answer_share / answer_share.sum()
    needed = needed / float(answer_share @ needed)
    return Kinds(np.concatenate(columns, axis=1), answer_share * needed, answer_share, needed)


def sample_mixes(kinds: Kinds, present: Present, rng: np.random.Generator, samples: int) -> Array:
    """Shares of a window's draft blocks by kind, shape (kinds, samples).

    Answers are lognormal in length. A stream cut by an edge is found in proportion to its length, and lies in the
    window with a uniform part of it; none takes more blocks than the engine made steps.
    """
    n = max(present.running, 0) + max(present.started, 0) or 1
    cut = min(max(present.running, 0), n)
    numbers = len(kinds.answer_share)
    kind = np.concatenate(
        [
            rng.choice(numbers, size=(cut, samples), p=kinds.draft_share),
            rng.choice(numbers, size=(n - cut, samples), p=kinds.answer_share),
        ]
    )
    sigma2 = np.log1p(present.cv2)
    length = np.exp(np.sqrt(sigma2) * rng.standard_normal((n, samples)) - sigma2 / 2)
    length[:cut] *= np.exp(sigma2) * rng.random((cut, samples))
    taken = np.minimum(kinds.blocks[kind] * length * present.blocks, max(present.steps, 1.0))
    mixes = np.zeros((numbers, samples))
    np.add.at(mixes, (kind, np.arange(samples)[None, :]), taken)
    return np.asarray(mixes / mixes.sum(axis=0))
