"""The likelihood behind the acceptance charts: its model of streams and windows against simulated ones."""

from __future__ import annotations

import numpy as np
import pytest
from watch_support import expectations, loaded, watch_of

from twin.acceptance.model import Acceptance
from twin.acceptance.profile import survival_from_conditional
from twin.watch.answers import Present, kinds_of, sample_mixes
from twin.watch.likelihood import CountLikelihood, level_shifts, position_shifts
from twin.watch.page import drafts_together


def _acceptance(conditional: list[float], stream_sd: float) -> Acceptance:
    survival = survival_from_conditional(conditional)
    return Acceptance(len(conditional), survival, 1.0 + float(survival.sum()), 0.02, stream_sd, (), ())


def test_kinds_pool_to_the_class() -> None:
    """Weighted by draft blocks the kinds are the class; two classes weigh by the blocks their answers take."""
    one, two = _acceptance([0.5, 0.6, 0.6], 0.3), _acceptance([0.8, 0.8, 0.8], 0.1)
    kinds = kinds_of([(1.0, 200.0, one)])
    assert survival_from_conditional(kinds.conditional) @ kinds.draft_share == pytest.approx(one.survival, abs=1e-9)
    both = kinds_of([(0.5, 200.0, one), (0.5, 400.0, two)])
    blocks = 200.0 / one.tokens_per_step, 400.0 / two.tokens_per_step
    assert both.draft_share[:9].sum() == pytest.approx(blocks[0] / sum(blocks), rel=0.02)
    assert both.answer_share[:9].sum() == pytest.approx(0.5)


def test_mixes_are_shares_and_few_answers_spread_more() -> None:
    kinds, rng = kinds_of([(1.0, 200.0, _acceptance([0.5, 0.6, 0.6], 0.3))]), np.random.default_rng(0)
    few = sample_mixes(kinds, Present(1, 1, 400.0, 100.0, 0.1), rng, 2000)
    many = sample_mixes(kinds, Present(16, 20, 400.0, 100.0, 0.1), rng, 2000)
    assert few.sum(axis=0) == pytest.approx(np.ones(2000)) and few.min() >= 0.0
    first = kinds.conditional[0]
    assert np.var(first @ few) > 8 * np.var(first @ many)
    assert (first @ many).mean() == pytest.approx(float(first @ kinds.draft_share), abs=0.02)


@pytest.mark.parametrize(
    ("users", "blocks", "cv2", "steps"), [(1, 285, 1.25, 500), (4, 285, 1.25, 310), (16, 95, 0.05, 180)]
)
def test_a_sum_over_windows_varies_as_the_stated_number_of_answers(
    users: int, blocks: int, cv2: float, steps: int
) -> None:
    """Streams with a value each, in windows as a watch sees them: the variance of the weighted sum is that of
    `Present.answers` independent values a window, to a third (200 runs know it to 10 %)."""
    rng, windows, runs = np.random.default_rng(2), 24, 200
    sigma2, noise, actual, stated = np.log1p(cv2), 0.35, 0.0, 0.0
    for _ in range(runs):
        mean, started = np.zeros(windows), np.zeros(windows)
        for _ in range(users):
            at = -rng.uniform(0.0, 10.0) * blocks
            while at < windows * steps:
                length = blocks * np.exp(np.sqrt(sigma2) * rng.standard_normal() - sigma2 / 2)
                value, edges = rng.standard_normal(), np.arange(windows + 1) * steps
                inside = np.clip(np.minimum(at + length, edges[1:]) - np.maximum(at, edges[:-1]), 0.0, None)
                mean += value * inside / (users * steps)
                if at >= 0:
                    started[int(at // steps)] += 1
                at += length
        answers = np.array([Present(users, int(s), steps, blocks, cv2).answers for s in started])
        weight = np.minimum(answers, 1.0) / (1.0 / np.maximum(answers, 1.0) + noise)
        actual += float(weight @ mean) ** 2
        stated += float(weight @ (weight / answers))
    assert 0.5 < actual / stated < 1.33


@pytest.mark.parametrize("present", [Present(1, 1, 480.0, 95.0, 0.05), Present(16, 10, 180.0, 280.0, 1.2)])
def test_the_ratio_of_a_null_has_mean_one(present: Present) -> None:
    """E[L(b + c) / L(b)] = 1 when the data come from b: what makes e^h a bound on the run to a false alarm. Here the
    data come from the model's own windows at the edge, so only the arithmetic and the Monte Carlo are on trial."""
    kinds = kinds_of([(1.0, 200.0, _acceptance([0.5, 0.58, 0.6], 0.25))])
    shifts = [*(position_shifts(kinds, i, 0.02, 0.05) for i in range(3)), level_shifts(kinds, 0.03, 0.05)]
    likelihood, rng = CountLikelihood({3: kinds}), np.random.default_rng(4)
    likelihood.of([1.0] * 4, (3, 3, 1.0), shifts, present)
    ((_, table),) = likelihood._tables.items()
    ratios = []
    for _ in range(1500):
        sample = rng.integers(table.shape[-1])
        cells = np.exp(table[0, 3, :, sample].astype(float))  # position 1 at its lower edge
        counts = rng.multinomial(60, cells / cells.sum())
        found = likelihood.of(counts.tolist(), (3, 3, 1.0), shifts, present)
        ratios.append(float(np.exp(found[0, 2] - found[0, 3])))
    error = float(np.std(ratios)) / np.sqrt(len(ratios))
    assert float(np.mean(ratios)) < 1.0 + 3 * error
    if present.answers >= 1:
        assert float(np.mean(ratios)) > 1.0 - 3 * error


def test_shifts_are_what_they_say() -> None:
    kinds = kinds_of([(1.0, 200.0, _acceptance([0.5, 0.58, 0.6], 0.25))])
    shift = position_shifts(kinds, 0, 0.02, 0.05)
    assert shift.values[[2, 3, 4, 5, 6]] == pytest.approx([-0.07, -0.02, 0.0, 0.02, 0.07])
    logits = np.log(kinds.conditional[0] / (1 - kinds.conditional[0])) + shift.logits[2]
    assert float(kinds.draft_share @ (1 / (1 + np.exp(-logits)))) == pytest.approx(0.43, abs=1e-4)


def test_windows_together_add_their_drafts() -> None:
    seen = [o.window for o in watch_of(loaded(4)).run(20.0) if o.window is not None]
    both = drafts_together(seen)
    assert both.drafts == sum(w.drafts for w in seen) and both.started == sum(w.started for w in seen)
    assert both.accepted[0] == sum(w.accepted[0] for w in seen)
    assert both.draft_tokens == pytest.approx(5.0)


def test_a_schedule_between_two_lengths_has_evidence_too() -> None:
    """Windows with draft blocks of 5 and of 3 (4 to 5 streams): every position of the longer has its evidence."""
    window = [o.window for o in watch_of(loaded(5)).run(20.0) if o.window is not None][-1]
    assert window is not None and window.draft_tokens is not None
    mixed = drafts_together([window, [o.window for o in watch_of(loaded(4)).run(10.0) if o.window is not None][-1]])
    expected = expectations().acceptance(mixed)
    assert expected is not None and expected.lengths[:2] == (3, 5) and 0 < expected.lengths[2] < 1
    found = expectations().moved(mixed, expected, None)
    assert len(found) == 6 and all(np.all(np.isfinite(f.log_likelihood)) for f in found)
