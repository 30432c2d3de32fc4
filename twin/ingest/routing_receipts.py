"""What routing says of a lane, as receipts: unions from ordered traces, the cold share from counts.

A trace measures the union of m consecutive tokens, which is what the locality exponent of its class on its checkpoint
is about. Counts have lost the order; with a hot set they measure the share of routes outside it, the cold share of the
lane's map on this traffic. Neither holds a time: a fit moves its routing by them, and nothing else.

    noise of a union = sqrt(rows) x hypot(standard error / mean, scatter between texts)

The rows of one trace are the same tokens at other lengths, so all of them together weigh as one.
"""

from __future__ import annotations

import math

import numpy as np

from twin.errors import IngestError
from twin.fitting.receipts import Receipt
from twin.ingest.fill import Fill, receipt_id
from twin.ingest.model import Found, clean
from twin.ingest.routing_counts import Matrix
from twin.ingest.unions import MIN_WINDOWS, UnionFold
from twin.lane.lane import Lane
from twin.routing.counts import RoutingCounts
from twin.routing.placement import cold_shares, hot_map, thinned

#: Scatter of log unique experts between texts of one checkpoint at 4, 6 and 8 tokens: 0.021 to 0.023 over prose, shell,
#: code and mixed text of DeepSeek-V4.1-Flash, 0.026 to 0.029 on Qwen1.5-MoE (calibration/routing/union.csv).
TEXT_LOG_SD = 0.025
ROUTING_FORMATS = ("routing-counts", "expert-trace")
#: Scatter of log cold share between texts under one map: 10 to 16 % of routes cold on texts that a map of
#: DeepSeek-V4.1-Flash was not made for, log(1.6) / 3.92 as a normal's 95 % range.
COLD_TEXT_LOG_SD = 0.12


def routing_receipts(found: Found, fill: Fill, taken: set[str]) -> list[Receipt]:
    """Receipts of a file of routing counts or an expert trace; none, with the reason as a note, where the lane has no
    parameter that the file constrains.

    Raises IngestError when a flag is missing or the file is of another checkpoint than the lane.
    """
    lane = _box(found, fill)
    if isinstance(found.state, UnionFold):
        receipts = _unions(found, found.state, lane, fill, taken)
        if fill.hot_map is not None:
            counts = _widened(found.state.routes, lane, found)
            receipts += _cold(found, counts, lane, fill, taken)
        return receipts
    return _cold(found, found.state, lane, fill, taken)


def _box(found: Found, fill: Fill) -> Lane:
    missing = [flag for flag, value in (("--lane", fill.lane), ("--traffic", fill.traffic)) if value is None]
    if missing or fill.box is None:
        raise IngestError(f"{found.where}: the file does not say, so pass {' and '.join(missing) or '--lane'}.")
    return fill.box


def _unions(found: Found, fold: UnionFold, lane: Lane, fill: Fill, taken: set[str]) -> list[Receipt]:
    top_k, experts = int(lane.checkpoint.top_k.value), int(lane.checkpoint.experts.value)
    if fold.top_k != top_k or fold.largest_id >= experts:
        raise IngestError(
            f"{found.where}: tokens go to {fold.top_k} experts with ids up to {fold.largest_id}; lane {lane.name!r} runs "
            f"{lane.checkpoint.name!r} with {top_k} of {experts}. Is the trace of another checkpoint?"
        )
    means = {m: value for m, value in fold.means(least=MIN_WINDOWS).items() if m > 1}
    if not means:
        found.notes.append(f"fewer than {MIN_WINDOWS} windows of two consecutive tokens: no union comes from it")
        return []
    layers = int(lane.checkpoint.moe_layers.value)
    some = f"; {fold.layers} of {layers} MoE layers" if fold.layers != layers else ""
    return [
        _receipt(
            found, fill, taken, f"unique_experts-{m}", quantity="unique_experts", unit="experts", value=mean, rows=m,
            noise=math.sqrt(len(means)) * math.hypot(error / mean, TEXT_LOG_SD),
            notes=f"{windows} windows of {m} consecutive tokens{some}; with its {len(means) - 1} sisters it weighs as one",
        )
        for m, (mean, error, windows) in means.items()
    ]  # fmt: skip


def _cold(found: Found, matrix: Matrix, lane: Lane, fill: Fill, taken: set[str]) -> list[Receipt]:
    counts = _counts(found, matrix, lane)
    if lane.cold_experts == 0 or lane.placement.map_kind != "popularity":
        why = (
            f"its experts were placed without regard to what is popular (map_kind {lane.placement.map_kind!r})"
            if lane.cold_experts
            else "every expert is in its primary devices, so no route leaves them"
        )
        found.notes.append(f"lane {lane.name!r}: {why}. Counts constrain nothing of it; an ordered trace does.")
        return []
    own = lane.placement.map_calibrated_on == fill.traffic
    use, reason = "fit", ""
    if fill.hot_map is not None:
        shares, how = cold_shares(fill.hot_map, counts), f"outside the given map of {fill.hot_map.hot_per_layer:g}"
    else:
        hot = int(lane.placement.hot.value)
        try:
            one, other = thinned(counts)
        except ValueError as error:
            raise IngestError(f"{found.where}: {error}; count more tokens.") from None
        # Each random half judges the map of the other: the share a map finds on the counts it was made from is too low.
        shares = 0.5 * (cold_shares(hot_map(one, hot), other) + cold_shares(hot_map(other, hot), one))
        how = f"outside the {hot} most popular experts of a layer, each half of the counts on the map of the other"
        if not own:
            use, reason = "exclude", "the lane's map was made for other traffic; --hot-map says which experts are hot"
    share = float(shares.mean())
    if share <= 0.0:
        found.notes.append("no route leaves the hot set; a share of zero is no receipt")
        return []
    # Binomial in the routes of a layer; tokens come in runs, which counts cannot show, and another text differs.
    sampling = math.sqrt((1.0 - share) / share / float(counts.routes.sum(axis=1).mean()) / counts.layers)
    return [
        _receipt(
            found, fill, taken, "cold_share", quantity="cold_share", unit="share", value=share, use=use, reason=reason,
            noise=math.hypot(sampling, COLD_TEXT_LOG_SD),
            notes=f"share of routes {how}; {float(shares.min()):.3f} to {float(shares.max()):.3f} over the layers",
        )
    ]  # fmt: skip


def _counts(found: Found, matrix: Matrix, lane: Lane) -> RoutingCounts:
    experts = int(lane.checkpoint.experts.value)
    if matrix.shape[1] != experts:
        raise IngestError(
            f"{found.where}: {matrix.shape[1]} experts a layer; lane {lane.name!r} runs {lane.checkpoint.name!r} with "
            f"{experts}. Are the counts of another checkpoint?"
        )
    empty = np.flatnonzero(matrix.sum(axis=1) == 0)
    if empty.size:
        raise IngestError(f"{found.where}: layer {int(empty[0])} has no routes; leave dense layers out of the file.")
    return RoutingCounts(matrix, found.where)


def _widened(routes: Matrix, lane: Lane, found: Found) -> Matrix:
    """Counts of a trace with a column for every expert of the checkpoint, used or not."""
    experts = int(lane.checkpoint.experts.value)
    if routes.shape[1] > experts:
        raise IngestError(f"{found.where}: expert ids up to {routes.shape[1] - 1}; the checkpoint has {experts}.")
    return np.pad(routes, ((0, 0), (0, experts - routes.shape[1])))


def _receipt(found: Found, fill: Fill, taken: set[str], what: str, **values: object) -> Receipt:
    identity = receipt_id(found, what, taken)
    common: dict[str, object] = {
        "id": identity,
        "source": clean(f"{found.where} sha256:{found.sha256[:16]} ({found.format})"),
        "date": clean(fill.date or ""),
        "lane": fill.lane,
        "checkpoint": clean(fill.checkpoint or ""),
        "engine": clean(fill.engine or ""),
        "traffic": fill.traffic,
        "k": 0,
        "context_tokens": 0,
        "concurrency": 1,
    }
    return Receipt(**(common | values))  # type: ignore[arg-type]
