"""`twin validate`: held-out errors by cell and by source, three-cell kits, transfer, rank accuracy, coverage.

Every number is of receipts that the fit behind it did not see. Folds are by a hash of the receipt id, so they do not
move
when receipts are added. Repeats of one cell (same lane, policy, streams, context, workload) stay in one fold: a cell
is not held out
while its twin is in the fit.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from twin.fitting.calibration import Calibration
from twin.fitting.cells import ReceiptCell
from twin.fitting.fit import fit_receipts, learnt
from twin.fitting.score import RATE, STEP, Score, score
from twin.workers import executor_map

FOLDS = 5
RANK_DIFFERENCE = 0.05
MIN_CELLS = 4
#: A kit's cells were chosen to tell one number each; a lane's receipts keep to the limit of `fit_receipts`.
KIT_SHARE = 1.0

Prior = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Summary:
    """Absolute relative errors as fractions over `n` held-out receipts; None where there is none of a kind."""

    n: int
    step_median: float | None
    step_p90: float | None
    tok_s_median: float | None
    tok_s_p90: float | None
    coverage_90: float | None
    rank_accuracy: float | None
    rank_accuracy_beyond_noise: float | None = None


@dataclass(frozen=True)
class Validation:
    """Every held-out score, by question."""

    held_out: list[Score]
    by_source: list[Score]
    three_cell: list[Score]
    transfer: list[Score]
    receipts: dict[str, int]
    fitted_parameters: dict[str, float]


def cell_key(cell: ReceiptCell) -> tuple[object, ...]:
    """What makes two receipts repeats of one cell."""
    r = cell.receipt
    return r.lane, r.traffic, r.workload, r.k, r.verification, r.rows, r.context_tokens, r.concurrency


def fold_of(cell: ReceiptCell) -> int:
    """Which of FOLDS folds a receipt is in, by the hash of its cell."""
    return zlib.crc32(repr(cell_key(cell)).encode()) % FOLDS


def fittable(cells: Iterable[ReceiptCell]) -> list[ReceiptCell]:
    """The receipts that a fit may see: those with use = fit."""
    return [cell for cell in cells if cell.receipt.use == "fit"]


def by_lane(cells: Sequence[ReceiptCell]) -> dict[str, list[ReceiptCell]]:
    """Cells of single lanes (ratios between lanes are left out), grouped."""
    groups: dict[str, list[ReceiptCell]] = defaultdict(list)
    for cell in cells:
        if cell.versus is None:
            groups[cell.receipt.lane].append(cell)
    return dict(groups)


def cross_validate(
    cells: Sequence[ReceiptCell], split: Callable[[ReceiptCell], object] = fold_of, prior: Prior | None = None
) -> list[Score]:
    """Every receipt of one lane predicted by a fit to the receipts of the other parts of `split`."""
    scores: list[Score] = []
    for part in sorted({split(cell) for cell in cells}, key=repr):
        inside = [c for c in cells if split(c) == part]
        outside = fittable(c for c in cells if split(c) != part)
        if len(outside) < MIN_CELLS:
            continue
        calibration = fit_receipts(outside, prior=prior, starts=1).calibrations[cells[0].lane.name]
        scores += score(inside, calibration)
    return scores


def three_cells(cells: Sequence[ReceiptCell]) -> list[ReceiptCell]:
    """The kit of a lane owner: plain decode (or the shortest draft) at one stream, the lane's k at one stream, the
    most used k near
    eight streams. Empty when a lane's receipts do not have the three.
    """
    usable = [c for c in fittable(cells) if c.receipt.quantity in (*STEP, *RATE) and c.receipt.quantity != "stage_time"]
    single = [c for c in usable if c.receipt.concurrency == 1]
    if len(usable) < 6 or not single:
        return []
    # A cell with its own acceptance says more than one without.
    single.sort(
        key=lambda c: (c.receipt.k, c.receipt.rows or c.receipt.k + 1, c.receipt.tokens_per_step is None, c.receipt.id)
    )
    first = single[0]
    usual = max({c.receipt.k for c in usable}, key=lambda k: sum(c.receipt.k == k for c in usable))
    second = next((c for c in reversed(single) if c.receipt.k == usual and cell_key(c) != cell_key(first)), single[-1])
    many = sorted(
        (c for c in usable if c.receipt.concurrency > 1),
        key=lambda c: (abs(np.log(c.receipt.concurrency / 8)), c.receipt.id),
    )
    chosen = [first, second, *(many[:1] or single[-2:-1])]
    return chosen if len({cell_key(c) for c in chosen}) == 3 else []


def _lane_scores(
    item: tuple[str, list[ReceiptCell], list[Calibration]],
) -> tuple[str, list[Score], list[Score], list[Score], list[Score]]:
    """All held-out scores of one lane; a module-level function so that workers can run it."""
    lane, cells, others = item
    prior = learnt([c for c in others if c.lane != lane])
    held = cross_validate(cells, prior=prior) if len(cells) > MIN_CELLS else []
    sources = {c.receipt.source for c in cells}
    left_out = cross_validate(cells, lambda c: c.receipt.source, prior) if len(sources) > 1 else []
    kit_scores: list[Score] = []
    if kit := three_cells(cells):
        used = {cell_key(c) for c in kit}
        calibration = fit_receipts(kit, prior=prior, starts=1, share=KIT_SHARE).calibrations[lane]
        rest = [c for c in cells if cell_key(c) not in used and c.receipt.quantity in (*STEP, *RATE)]
        kit_scores = score(rest, calibration)
    moved = transfer_calibration(cells[0], prior)
    return lane, held, left_out, kit_scores, score([c for c in cells if c.receipt.quantity in (*STEP, *RATE)], moved)


def transfer_calibration(cell: ReceiptCell, prior: Prior) -> Calibration:
    """A lane from its parts with none of its receipts: priors moved by what other lanes learnt of the shared parts."""
    from twin.fitting.calibration import prior_calibration
    from twin.step.coefficients import coefficients

    plain = prior_calibration(cell.lane.name, coefficients(cell.lane))
    parameters = [
        p.model_copy(update={"log_factor": prior[p.key][0], "log_sd": prior[p.key][1]}) if p.key in prior else p
        for p in plain.parameters
    ]
    covariance = np.diag([p.log_sd**2 for p in parameters]).tolist()
    return plain.model_copy(update={"parameters": parameters, "covariance": covariance, "name": "transfer"})


def validate(cells: Sequence[ReceiptCell], *, executor: Executor | None = None) -> Validation:
    """Run every held-out question over all lanes of `cells`. Deterministic whatever the executor."""
    groups = {lane: own for lane, own in sorted(by_lane(cells).items())}
    fits = [fit for fit in executor_map(executor, _fit_lane, list(groups.items())) if fit is not None]
    jobs = [(lane, own, fits) for lane, own in groups.items()]
    result = Validation([], [], [], [], {}, {})
    for lane, held, left_out, kit, moved in executor_map(executor, _lane_scores, jobs):
        result.held_out.extend(held)
        result.by_source.extend(left_out)
        result.three_cell.extend(kit)
        result.transfer.extend(moved)
        result.receipts[lane] = len(groups[lane])
    result.fitted_parameters.update({c.lane: c.fitted_parameters for c in fits})
    return result


def _fit_lane(item: tuple[str, list[ReceiptCell]]) -> Calibration | None:
    lane, cells = item
    seen = fittable(cells)
    return fit_receipts(seen, starts=1).calibrations[lane] if seen else None


def summarise(scores: Sequence[Score]) -> Summary:
    """Medians and 90th percentiles of absolute relative errors, coverage and rank accuracy."""

    def errors(quantities: Sequence[str]) -> tuple[float | None, float | None]:
        values = [
            abs(s.relative_error)
            for s in scores
            if s.cell.receipt.quantity in quantities and s.cell.receipt.quantity != "stage_time"
        ]
        return (float(np.median(values)), float(np.quantile(values, 0.9))) if values else (None, None)

    step, rate = errors(STEP), errors(RATE)
    main = [s for s in scores if s.cell.receipt.quantity in (*STEP, *RATE)]
    coverage = float(np.mean([s.covered for s in main])) if main else None
    return Summary(len(main), *step, *rate, coverage, rank_accuracy(scores), rank_accuracy(scores, beyond_noise=True))


def rank_accuracy(scores: Sequence[Score], *, beyond_noise: bool = False) -> float | None:
    """How often the faster of two settings of one lane and workload was named, over pairs that measured more than 5 % apart.

    Pairs compare one quantity where a setting differs. With `beyond_noise` they must also lie further apart than the two
    runs' own noise, below which a repeat could turn the measured order around.
    """
    groups: dict[tuple[object, ...], list[Score]] = defaultdict(list)
    for s in scores:
        r = s.cell.receipt
        if r.quantity in (*STEP, *RATE):
            groups[r.lane, r.traffic, r.workload, r.quantity].append(s)
    right = total = 0
    for group in groups.values():
        for a, b in combinations(group, 2):
            if cell_key(a.cell) == cell_key(b.cell):
                continue
            measured, predicted = np.log(a.cell.receipt.value / b.cell.receipt.value), np.log(a.predicted / b.predicted)
            noise = float(np.hypot(a.cell.receipt.noise, b.cell.receipt.noise)) if beyond_noise else 0.0
            if abs(measured) > max(RANK_DIFFERENCE, noise):
                total += 1
                right += bool(measured * predicted > 0)
    return right / total if total else None
