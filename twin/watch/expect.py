"""What the twin expects of a window: step time and acceptance by position, each with the edge of its 90 % interval.

    expected interval = decode(streams, rows, context) + chunk extra x started requests / steps

is the mean of the serving simulation's step table over the window's steps, told apart only by whether a prompt rode
along. The edge of the step time is the half width of the prediction interval (coefficients, boot noise, the scatter of
the receipts); that of acceptance moves all positions together on the logit until tokens per step have moved by the
uncertainty of the class's mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from twin.acceptance.mixture import StreamMixture
from twin.acceptance.model import Acceptance
from twin.acceptance.profile import Array, conditional_from_survival, expit, logit, survival_from_conditional
from twin.planning.predict import CellRequest
from twin.planning.server import Server
from twin.watch.answers import Kinds, Present, kinds_of
from twin.watch.drift import Evidence
from twin.watch.likelihood import CountLikelihood, Shifts, level_shifts, position_shifts
from twin.watch.page import Window

#: two-sided 90 %
Z90 = 1.645
#: excess over the twin's interval that the charts are tuned to: 0.05 of acceptance at a position, 5 % of tokens a step
ACCEPTANCE_BEYOND = 0.05
LEVEL_BEYOND = 0.05


@dataclass(frozen=True)
class StepExpectation:
    """Seconds: mean of the window, ends of its interval, and the part that prompt chunks add."""

    step_s: float
    low_s: float
    high_s: float
    prompt_s: float

    @property
    def edge(self) -> float:
        """Half width of the interval of log(step)."""
        return 0.5 * math.log(self.high_s / self.low_s)


@dataclass(frozen=True)
class AcceptanceExpectation:
    """By position, shape (k,): conditional acceptance, the edge of it, and its variance between streams.

    `level_edge` is that of the logarithm of tokens per step, all positions moving together; `lengths` (k, longer k,
    share of draft blocks of the longer one) says which lengths of a schedule are mixed.
    """

    conditional: Array
    edge: Array
    stream_variance: Array
    tokens_per_step: float
    level_edge: float
    lengths: tuple[int, int, float]


class Expectations:
    """A lane under a mix of traffic, ready to be asked about windows."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._edges: dict[tuple[int, int, int], float] = {}
        ks = [k for k in sorted({*server.k_by_streams[1:]}) if k > 0]
        self._kinds: dict[int, Kinds] = {k: kinds_of(self._classes(k)) for k in ks}
        self._acceptance = {k: self._of_k(k) for k in ks}
        self._likelihood = CountLikelihood(self._kinds)
        self._asked: dict[tuple[int, int], tuple[Shifts, ...]] = {}
        shares = [s.weight for s in server.shares]
        lengths = [p.traffic.length for p in server.predictors]
        self._mean_prompt = float(np.average([n.prompt.mean_tokens for n in lengths], weights=shares))
        drawn = [n.output.draw(np.random.default_rng(0), 4096) for n in lengths]
        #: squared variation of the answers' lengths in the class, for servers that do not count them
        self.answer_cv2 = float(np.average([np.var(d) / np.mean(d) ** 2 for d in drawn], weights=shares))
        self._mean_output = float(np.average([n.output.mean_tokens for n in lengths], weights=shares))

    @property
    def most_positions(self) -> int:
        """Positions that can have a chart."""
        return max(self._acceptance, default=0)

    def step(self, window: Window) -> StepExpectation | None:
        """The expected interval between outputs; None when the window does not say how many streams ran."""
        if window.streams is None or window.streams <= 0 or window.step_s is None:
            return None
        table, limits = self.server.table, self.server.limits
        streams = min(max(window.streams, 1.0), float(limits.max_seqs))
        k = self._k(window, streams)
        prompt = window.prompt_tokens if window.prompt_tokens else self._mean_prompt
        context = prompt + self._mean_output / 2
        low, high = math.floor(streams), math.ceil(streams)
        weight = streams - low

        def mixed(n: int) -> tuple[float, float]:
            rows = max(round(n * (k + 1)), n)
            alone_s = table.decode_s(n, rows, context)
            chunk = max(int(min(prompt, limits.max_batched_tokens - rows)), 1)
            return alone_s, table.mixed_s(n, rows, context, chunk, 0.0) - alone_s

        (low_s, low_extra), (high_s, high_extra) = mixed(low), mixed(high)
        alone_s = low_s + weight * (high_s - low_s)
        extra_s = low_extra + weight * (high_extra - low_extra)
        chunks = math.ceil(prompt / limits.max_batched_tokens)
        steps = window.steps or window.intervals / streams
        # The stream whose prompt it is does not wait for it between two outputs; the others do.
        others = max(streams - 1.0, 0.0) / streams
        prompt_s = extra_s * min(window.started * chunks / steps, 1.0) * others if steps else 0.0
        edge = self._edge(round(k), max(round(streams), 1), int(context))
        step_s = alone_s + prompt_s
        return StepExpectation(step_s, step_s * math.exp(-edge), step_s * math.exp(edge), prompt_s)

    def acceptance(self, window: Window) -> AcceptanceExpectation | None:
        """Expected acceptance at the window's mean draft length; between two lengths of the schedule, their mix."""
        if not self._acceptance or not window.draft_tokens:
            return None
        length = window.draft_tokens
        below = max((k for k in self._acceptance if k <= length + 1e-9), default=min(self._acceptance))
        above = min((k for k in self._acceptance if k >= length - 1e-9), default=max(self._acceptance))
        if below == above:
            return self._acceptance[below]
        weight = (length - below) / (above - below)
        a, b = self._acceptance[below], self._acceptance[above]
        mixed = []
        for name in ("edge", "stream_variance"):
            x, y = getattr(a, name), getattr(b, name)
            mixed.append(np.concatenate([x + weight * (y[:below] - x), y[below:]]))
        # Counters add up blocks, so survival is what mixes.
        first, second = survival_from_conditional(a.conditional), survival_from_conditional(b.conditional)
        survival = weight * second
        survival[:below] += (1 - weight) * first
        conditional = conditional_from_survival(survival)
        return AcceptanceExpectation(
            conditional, mixed[0], mixed[1], 1.0 + float(survival.sum()),
            a.level_edge + weight * (b.level_edge - a.level_edge), (below, above, weight),
        )  # fmt: skip

    def moved(
        self, window: Window, expected: AcceptanceExpectation, lengths: tuple[float, float] | None
    ) -> list[Evidence]:
        """How well shifts of each factor explain the window's drafts: every position, then all together.

        `lengths` of the answers are (mean tokens, squared variation); None takes the class's.
        """
        below, above, _ = expected.lengths
        shifts = self._shifts(self._acceptance[below], self._acceptance[above])
        reached = (window.drafts, *window.accepted, 0.0)
        # A page is not read in one instant: a later position may be a draft ahead of the one before it.
        counts = [max(a - b, 0.0) for a, b in pairwise(reached)]
        tokens, cv2 = lengths or (self._mean_output, self.answer_cv2)
        steps = window.steps or window.drafts / max(window.streams or 1.0, 1.0)
        present = Present(
            max(round(window.running or window.streams or 1.0), 1), round(window.started), steps,
            tokens / expected.tokens_per_step, cv2,
        )  # fmt: skip
        found = self._likelihood.of(counts, expected.lengths, shifts, present)
        return [Evidence(row, s.values) for row, s in zip(found, shifts, strict=True)]

    # -- parts -------------------------------------------------------------------------------------------------

    def _k(self, window: Window, streams: float) -> float:
        if window.draft_tokens is not None:
            return window.draft_tokens
        return float(self.server.k_by_streams[min(max(round(streams), 1), len(self.server.k_by_streams) - 1)])

    def _edge(self, k: int, streams: int, context: int) -> float:
        # The width hardly depends on context: one value a power of two.
        key = (k, streams, 1 << max(context, 1).bit_length())
        if key not in self._edges:
            predictor = self.server.predictors[0]
            cell = predictor.cell(CellRequest(k, streams, self.server.verification, key[2]))
            self._edges[key] = 0.5 * math.log(cell.step_ms.p95 / cell.step_ms.p05)
        return self._edges[key]

    def _classes(self, k: int) -> list[tuple[float, float, Acceptance]]:
        server = self.server
        total = sum(s.weight for s in server.shares)
        return [
            (s.weight / total, s.output_tokens or p.traffic.length.output.mean_tokens, server.acceptance(p.traffic, k))
            for s, p in zip(server.shares, server.predictors, strict=True)
        ]

    def _of_k(self, k: int) -> AcceptanceExpectation:
        kinds = self._kinds[k]
        mixture = StreamMixture(kinds.draft_share, kinds.conditional)
        survival = mixture.pooled()
        conditional = conditional_from_survival(survival)
        relative = Z90 * sum(share * a.relative_sd for share, _, a in self._classes(k))
        edge = _edges(conditional, relative)
        return AcceptanceExpectation(
            conditional, edge, _stream_variance(mixture), 1.0 + float(survival.sum()), relative, (k, k, 1.0)
        )

    def _shifts(self, below: AcceptanceExpectation, above: AcceptanceExpectation) -> tuple[Shifts, ...]:
        """Of every position and of all together, at the wider of two edges."""
        key = (len(below.edge), len(above.edge))
        if key not in self._asked:
            kinds, edge = self._kinds[key[1]], above.edge.copy()
            edge[: key[0]] = np.maximum(edge[: key[0]], below.edge)
            at = [position_shifts(kinds, i, float(e), ACCEPTANCE_BEYOND) for i, e in enumerate(edge)]
            level = level_shifts(kinds, max(below.level_edge, above.level_edge), LEVEL_BEYOND)
            self._asked[key] = (*at, level)
        return self._asked[key]


def _stream_variance(mixture: StreamMixture) -> Array:
    """Variance of conditional acceptance between streams, weighted by how often each gets to the position."""
    reached = mixture.weights.copy()
    found = []
    for row in mixture.conditional:
        share = reached / reached.sum()
        mean = float(share @ row)
        found.append(float(share @ (row - mean) ** 2))
        reached = reached * row
    return np.array(found)


def _edges(conditional: Array, relative: float) -> Array:
    """How far each position moves when all logits move together until tokens per step changed by `relative`."""
    inside = np.clip(conditional, 1e-6, 1 - 1e-6)
    base = 1.0 + float(survival_from_conditional(inside).sum())
    low, high = 0.0, 8.0
    for _ in range(50):
        shift = (low + high) / 2
        moved = 1.0 + float(survival_from_conditional(expit(logit(inside) + shift)).sum())
        low, high = (shift, high) if moved < base * (1.0 + relative) else (low, shift)
    return np.asarray(expit(logit(inside) + (low + high) / 2) - inside)
