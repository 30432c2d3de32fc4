"""The better k of measured pairs (tok/s), predicted with acceptance carried from ONE measured block length.

Step times are the sidecar lane's own prediction, or on other boxes their measured step times.
"""

from __future__ import annotations

import numpy as np
from acceptance_support import ROOTS, TRAINED

from twin.acceptance.block_length import carry, shape_from_mean
from twin.acceptance.policy import StepCost
from twin.acceptance.traffic import TrafficClass, load_traffic
from twin.lane.catalogue import load_lane
from twin.planning.predict import CellRequest, Predictor, make_predictor

# (traffic, streams, k, tok/s of all streams): one software version a block, so that only k differs inside it
SIDECAR = {
    "reasoning 8": ("reasoning", 8, {2: 969, 3: 1023, 4: 1022}),
    "reasoning 12": ("reasoning", 12, {1: 1059, 2: 1174, 3: 1192}),
    "reasoning 24": ("reasoning", 24, {1: 1516, 2: 1564, 3: 1591}),
    "mixed-8k 8": ("mixed-8k", 8, {1: 835.8, 3: 890.8}),
    "mixed-8k 16": ("mixed-8k", 16, {1: 1328.7, 3: 1453.6}),
}

# Four GB10 boxes: seconds of a step by verified rows (forced budgets, 1 to 6 rows at one stream, 8 and more at eight).
FOUR_GB10 = StepCost(
    (1, 2, 3, 4, 5, 6, 8, 16, 24, 32, 40, 48),
    tuple(ms / 1e3 for ms in (39.35, 45.09, 48.91, 53.00, 57.25, 60.47, 65.32, 88.75, 110.92, 118.83, 134.47, 150.62)),
)
# streams, tok/s of all streams at k = 5 and at k = 7: code, then prose (greedy)
FOUR_GB10_CODE = ((1, 83.21, 88.68), (4, 204.34, 215.16), (8, 332.75, 340.18))
FOUR_GB10_PROSE = ((1, 52.58, 47.39), (4, 117.94, 103.28), (8, 165.91, 139.66))

# GB300 with cold experts read from Grace, one stream, greedy: tokens per step and step ms at k = 5, step ms at k = 1,
# tok/s at 5 and 1. The k = 1 acceptance (1.90 code, 1.67 prose) is not used.
GRACE = {"code": (4.19, 27.03, 17.35, 155.0, 109.5), "prose": (2.49, 25.28, 15.70, 98.5, 106.4)}

# Two GB10 boxes: tokens per step and step ms at k = 5, step ms at k = 10 (prose, temperature 0.2), tok/s.
TWO_GB10 = (2.24, 100.0, 154.0, 22.4, 12.14)


def carried(tokens_per_step: float, k: int, to: int) -> float:
    shape = shape_from_mean(k, tokens_per_step, trained_block=TRAINED)
    return 1 + float(carry(shape, to, trained_block=TRAINED).sum())


def only(traffic: TrafficClass, k: int) -> TrafficClass:
    return traffic.model_copy(update={"profile": tuple(p for p in traffic.profile if p.k == k)})


def sidecar_pairs() -> list[tuple[str, float, float]]:
    """(name, measured ratio, predicted ratio) of every pair; acceptance from k = 5 alone."""
    lane = load_lane("sidecar", ROOTS)
    out = []
    for name, (traffic, streams, measured) in SIDECAR.items():
        known = make_predictor(lane, traffic, ROOTS, samples=200)
        blind = Predictor(lane, only(load_traffic(traffic, ROOTS), 5), known.calibration, samples=200)
        predicted = {k: blind.cell(CellRequest(k, streams, "token", 4096)).tok_s_aggregate.mean for k in measured}
        ks = sorted(measured)
        out += [
            (f"{name}, k = {a} and {b}", measured[b] / measured[a], predicted[b] / predicted[a])
            for i, a in enumerate(ks) for b in ks[i + 1 :]
        ]  # fmt: skip
    return out


def other_pairs() -> list[tuple[str, float, float]]:
    out = []
    for text, rows in (("code", FOUR_GB10_CODE), ("prose", FOUR_GB10_PROSE)):
        for streams, at5, at7 in rows:
            step5, step7 = FOUR_GB10.seconds_at(np.array([streams * 6.0, streams * 8.0]))
            tokens = at5 / streams * step5
            predicted = carried(min(tokens, 5.95), 5, 7) / tokens * step5 / step7
            out.append((f"four GB10, {text}, {streams}", at7 / at5, predicted))
    for text, (tokens, step5, step1, at5, at1) in GRACE.items():
        out.append((f"experts in Grace, {text}", at1 / at5, carried(tokens, 5, 1) / tokens * step5 / step1))
    tokens, step5, step10, at5, at10 = TWO_GB10
    out.append(("two GB10, k = 5 and 10", at10 / at5, carried(tokens, 5, 10) / tokens * step5 / step10))
    return out


def test_the_better_k_of_each_measured_pair() -> None:
    pairs = sidecar_pairs() + other_pairs()
    clear = [(name, m, p) for name, m, p in pairs if abs(m - 1) > 0.03]
    wrong = [(name, round(m, 3), round(p, 3)) for name, m, p in clear if (m > 1) != (p > 1)]
    assert len(clear) >= 14
    assert 1 - len(wrong) / len(clear) >= 0.9, wrong


def test_the_size_of_the_differences() -> None:
    pairs = sidecar_pairs() + other_pairs()
    errors = [abs(p / m - 1) for _, m, p in pairs]
    assert np.median(errors) < 0.05
