"""Unique experts by tokens and streams, with intervals and the uniform law beside them: what `twin union` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from twin.errors import TrafficError, nearest
from twin.routing.batch import SHARED_PROMPT_EXPONENT, Array, RoutingParameters, RoutingShape, layer_profile
from twin.routing.evidence import UnionRow, measured_series
from twin.routing.law import STREAM_SKEW
from twin.routing.selection import Curve, Extrapolation, Spread

#: The range that measurements bracket for the popularity that unrelated streams share (see RoutingParameters).
STREAM_SKEW_RANGE = (0.0, 0.75)
#: Exponents measured on five models: 0.70-0.75 (V4.1, Qwen3.6, Qwen3-30B) to 0.965 (Qwen1.5).
PRIOR_BETA, PRIOR_BETA_RANGE = 0.75, (0.65, 0.97)


@dataclass(frozen=True)
class Cell:
    """One line of the table: `tokens` of each of `streams` streams; experts a layer.

    low, high: 95 % interval of the mean over layers. layer_low, layer_high: 95 % range of single layers around it.
    families: what each law says for the whole batch. beyond: longer than anything measured for this checkpoint.
    """

    tokens: int
    streams: int
    unique: float
    low: float
    high: float
    uniform: float
    layer_low: float
    layer_high: float
    families: dict[str, float]
    beyond: bool


class UnionTable:
    """Unions of one router for one workload: a measured curve when there is one, else an exponent with its prior."""

    def __init__(
        self, shape: RoutingShape, curve: Curve | None, *, title: str = "", beta: float | None = None,
        diversity: float = 1.0,
    ) -> None:  # fmt: skip
        self.shape, self.title, self.measured, self.diversity = shape, title, curve is not None, diversity
        self._beta_range = PRIOR_BETA_RANGE if curve is None and beta is None else None
        if curve is None:
            tokens = np.asarray([2.0, 3.0, 4.0, 6.0, 8.0])
            curve = Curve(shape.experts, shape.top_k, tokens, self._stretched(tokens, beta or PRIOR_BETA))
        self.extrapolation = Extrapolation(curve)

    def cells(self, tokens: Sequence[int], streams: Sequence[int]) -> list[Cell]:
        """The table, streams by streams."""
        return [self._cell(m, s) for s in streams for m in tokens]

    def _cell(self, tokens: int, streams: int) -> Cell:
        one = self.extrapolation.at(tokens)
        low, high = one.low, one.high
        if self._beta_range is not None and tokens > 1:
            low = min(low, float(self._stretched(np.asarray([float(tokens)]), self._beta_range[0])[0]))
            high = max(high, float(self._stretched(np.asarray([float(tokens)]), self._beta_range[1])[0]))
        families = {name: self._streams(value, streams, STREAM_SKEW) for name, value in one.families.items()}
        unique = self._streams(one.chosen, streams, STREAM_SKEW)
        layer_low, layer_high = self._layers(one, streams)
        total = self.shape.top_k * tokens * streams
        uniform = -self.shape.experts * np.expm1(tokens * streams * np.log1p(-self.shape.top_k / self.shape.experts))
        return Cell(
            tokens, streams, unique, self._streams(low, streams, STREAM_SKEW_RANGE[1]),
            self._streams(high, streams, STREAM_SKEW_RANGE[0]), float(uniform), min(layer_low, unique),
            min(max(layer_high, unique), total), families, bool(tokens > self.extrapolation.curve.tokens.max()),
        )  # fmt: skip

    def _layers(self, one: Spread, streams: int) -> tuple[float, float]:
        """Least and largest expected union over the layers, by the measured profile."""
        if one.tokens <= 1:
            value = self._streams(one.chosen, streams, STREAM_SKEW)
            return value, value
        hit = -np.log1p(-self.shape.top_k / self.shape.experts)
        independent = -np.log1p(-min(one.chosen / self.shape.experts, 1.0 - 1e-9)) / hit
        spread = float(np.asarray(RoutingParameters(beta=1.0).layer_spread))
        profile = layer_profile(self.shape.layers)
        factor = np.exp(spread * np.asarray([profile.min(), profile.max()]) * np.log(one.tokens) / np.log(6.0))
        low, high = (-self.shape.experts * float(np.expm1(-hit * independent * f)) for f in factor)
        return self._streams(low, streams, STREAM_SKEW), self._streams(high, streams, STREAM_SKEW)

    def _streams(self, one: float, streams: int, skew: float) -> float:
        """The union of several streams of `one` expert each (see twin.routing.batch)."""
        if streams == 1:
            return one
        free = streams ** (SHARED_PROMPT_EXPONENT + (1.0 - SHARED_PROMPT_EXPONENT) * self.diversity)
        missed = -np.log1p(-min(one / self.shape.experts, 1.0 - 1e-9))
        skew = max(skew, 1e-9)
        return float(-self.shape.experts * np.expm1(-np.log1p(free * np.expm1(skew * missed)) / skew))

    def _stretched(self, tokens: Array, beta: float) -> Array:
        hit = np.log1p(-self.shape.top_k / self.shape.experts)
        return np.asarray(-self.shape.experts * np.expm1(tokens**beta * hit))


def find_curve(
    rows: Sequence[UnionRow], model: str, shape: RoutingShape, workload: str | None
) -> tuple[Curve, str] | None:
    """The measured series of a model (by name, letters and digits only) and workload; None when it has none.

    Raises TrafficError when the model has series but not this workload.
    """
    wanted = _plain(model)
    series = {key: found for key, found in measured_series(rows).items() if _plain(key[0]) == wanted}
    if not series:
        return None
    names = [key[1] for key in series]
    name = workload or ("ALL" if "ALL" in names else names[0])
    chosen = next((found for key, found in series.items() if key[1].lower() == name.lower()), None)
    if chosen is None:
        raise TrafficError(f"no unions of {model} were measured on {name!r}; {nearest(name, names)}")
    if (chosen[0].experts, chosen[0].top_k) != (shape.experts, shape.top_k):
        return None
    return Curve.of(chosen), f"{chosen[0].model}, {name} ({chosen[0].source})"


def _plain(text: str) -> str:
    return "".join(c for c in text.lower() if c.isalnum())
