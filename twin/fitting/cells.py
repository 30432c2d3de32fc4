"""What the model says of a receipt: the quantity it measured, from the step model and the receipt's own acceptance.

step_time           the step; `pass_time` leaves out the host gap, which a profiler's pass does not see; `mean_tpot` is a closed
                    loop's mean TPOT times tokens per step, which holds the others' prefills
tok_s_per_stream    tokens per step / step
tok_s_aggregate     streams x tokens per step / step; with `wall_with_ttft` a request's own prefill, and what the others' add to
                    its steps: C x out / (out / tokens per step x step + TTFT + (C - 1) x stall)
ttft, prefill_tok_s a lone request
unique_experts      the routing law's mean union over the layers; `rows` are consecutive tokens, all of them kept
cold_share          the share of routes outside the lane's hot set
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from twin.acceptance.model import resolve_acceptance
from twin.acceptance.traffic import TrafficClass
from twin.errors import ReceiptError, nearest
from twin.fitting.receipts import ROUTING_QUANTITIES, Receipt
from twin.lane.lane import Lane
from twin.routing.batch import RoutingNoise, mean_unique
from twin.step.batch import Batch
from twin.step.coefficients import Coefficient, FloatOrArray, Values, cold_share_key, locality_key
from twin.step.graph import CHUNK_MECHANISMS, MECHANISMS
from twin.step.model import cold_share, draw_step, draw_step_s, routing_parameters, routing_shape
from twin.step.prefill import chunk_s, largest_chunk, ttft_s, unshared_share

Array = npt.NDArray[np.float64]
#: Noise samples a parameter vector in a fit: forty layers a sample already average the routing draw.
FIT_SAMPLES = 12
DEFAULT_OUTPUT_TOKENS = 512
#: Prior of the sharing parameter (diversity = class diversity / (1 + sharing)): prompts on one topic, one prompt
#: repeated.
PRIOR_SHARING = {"similar": 0.4, "same": 4.0}
#: Relative scatter of one stream's acceptance from cell to cell of one workload: other prompts, other sampling.
CELL_ACCEPTANCE_LOG_SD = 0.05


@dataclass(frozen=True)
class ReceiptCell:
    """A receipt with everything resolved that does not depend on parameters.

    `log_sd` is the receipt's noise together with the uncertainty of an acceptance it did not measure itself.
    """

    receipt: Receipt
    lane: Lane
    traffic: TrafficClass
    tokens_per_step: float
    log_sd: float
    versus: ReceiptCell | None = None

    @property
    def acceptance_key(self) -> str | None:
        """The parameter that a tok/s receipt without its own acceptance shares with its siblings; None when it has
        one.
        """
        r = self.receipt
        if (
            r.tokens_per_step is not None
            or r.k == 0
            or self.versus is not None
            or r.quantity not in ("tok_s_per_stream", "tok_s_aggregate")
        ):
            return None
        return f"acceptance.{r.lane}.{r.traffic}.{r.workload}.k{r.k}"

    @property
    def sharing_key(self) -> str | None:
        """The parameter for what concurrent streams of this workload have in common; None for unrelated or single
        streams.
        """
        r = self.receipt
        if r.concurrency == 1 or r.prompts in ("", "unrelated"):
            return None
        return f"sharing.{r.lane}.{r.traffic}.{r.workload}"

    @property
    def routing_keys(self) -> tuple[str, str]:
        """The factors on routing that this cell would follow, were they in the fit: locality and own cold share."""
        return (
            locality_key(self.lane.checkpoint.name, self.traffic.name),
            cold_share_key(self.lane.name, self.traffic.name),
        )

    @property
    def measured_routing_key(self) -> str | None:
        """The factor a receipt of routing brings into a fit; None where `map_mismatch`, which every fit has, does it."""
        if self.receipt.quantity == "unique_experts":
            return self.routing_keys[0]
        if self.receipt.quantity != "cold_share":
            return None
        own = self.lane.placement.map_calibrated_on == self.traffic.name
        return None if not own and "other" in self.traffic.routing.cold_share else self.routing_keys[1]

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The lanes the receipt speaks of: one, or both sides of a ratio."""
        return (self.lane,) if self.versus is None else (self.lane, self.versus.lane)


def resolve_cell(receipt: Receipt, lane: Lane, traffic: TrafficClass, versus_lane: Lane | None = None) -> ReceiptCell:
    """Tie a receipt to its lane and class. Raises ReceiptError when they do not go together."""
    if receipt.quantity.endswith("_ratio"):
        if versus_lane is None:
            raise ReceiptError(f"receipt {receipt.id!r}: the other lane of the ratio is missing.")
        quantity = "step_time" if receipt.quantity == "step_time_ratio" else "tok_s_aggregate"
        change = {"quantity": quantity, "versus_lane": "", "versus_k": None}
        one = resolve_cell(receipt.model_copy(update=change), lane, traffic)
        side = {
            "lane": versus_lane.name,
            "k": receipt.versus_k,
            "verification": receipt.versus_verification or receipt.verification,
            "tokens_per_step": None,
        }
        other = resolve_cell(receipt.model_copy(update=change | side), versus_lane, traffic)
        return ReceiptCell(
            receipt, lane, traffic, one.tokens_per_step, float(np.hypot(one.log_sd, other.log_sd)), other
        )
    if receipt.quantity in ROUTING_QUANTITIES:
        _check_routing(receipt, lane)
        return ReceiptCell(receipt, lane, traffic, 1.0, receipt.noise)
    draft = lane.checkpoint.draft
    if receipt.k > 0 and draft is None:
        raise ReceiptError(
            f"receipt {receipt.id!r}: k = {receipt.k} but checkpoint {lane.checkpoint.name!r} has no draft head."
        )
    log_sd = receipt.noise
    if receipt.tokens_per_step is not None:
        kept = receipt.tokens_per_step
    else:
        trained = int(draft.trained_block.value) if draft is not None and draft.trained_block is not None else None
        accepted = resolve_acceptance(traffic, receipt.k, receipt.verification, trained_block=trained)
        kept = accepted.tokens_per_step
        if receipt.quantity in ("tok_s_per_stream", "tok_s_aggregate", "tokens_per_step"):
            # The run's own acceptance is a parameter that its cells share; what scatters from cell to cell is smaller.
            log_sd = float(np.hypot(log_sd, CELL_ACCEPTANCE_LOG_SD / np.sqrt(receipt.concurrency)))
    return ReceiptCell(receipt, lane, traffic, float(min(kept, receipt.k + 1)), log_sd)


def _check_routing(receipt: Receipt, lane: Lane) -> None:
    """Refuse a measurement of routing that cannot be of this lane's checkpoint and placement."""
    shape = routing_shape(lane)
    if receipt.quantity == "cold_share":
        if lane.cold_experts == 0 or lane.placement.map_kind != "popularity":
            why = "does not place experts by popularity" if lane.cold_experts else "holds every expert hot"
            raise ReceiptError(f"receipt {receipt.id!r}: lane {lane.name!r} {why}; a cold share says nothing of it.")
        if receipt.value > 1.0:
            raise ReceiptError(f"receipt {receipt.id!r}: a cold share of {receipt.value:g}; expected 0 to 1.")
        return
    if receipt.rows is None:
        raise ReceiptError(f"receipt {receipt.id!r}: unique_experts needs `rows`, the consecutive tokens of a stream.")
    most = min(shape.experts, shape.top_k * receipt.rows * receipt.concurrency)
    if not shape.top_k <= receipt.value <= most:
        raise ReceiptError(
            f"receipt {receipt.id!r}: {receipt.value:g} unique experts of {receipt.rows} tokens; "
            f"{lane.checkpoint.name!r} sends a token to {shape.top_k} of {shape.experts} experts, so expected "
            f"{shape.top_k} to {most}. Is the trace of another checkpoint?"
        )


class FitNoise:
    """Fixed noise for fits, tiled so that every parameter vector sees the same draw (common random numbers)."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._tiles: dict[tuple[int, int], RoutingNoise] = {}

    def tiled(self, layers: int, vectors: int) -> RoutingNoise:
        """Noise of shape (layers, vectors x FIT_SAMPLES)."""
        if (layers, vectors) not in self._tiles:
            one = RoutingNoise.draw(self._seed, layers, FIT_SAMPLES)
            parts = (np.tile(part, (1, vectors)) for part in (one.union, one.cold, one.rank))
            self._tiles[layers, vectors] = RoutingNoise(*parts)
        return self._tiles[layers, vectors]


def predict_cell(
    cell: ReceiptCell,
    bases: Mapping[str, Mapping[str, Coefficient]],
    factors: Mapping[str, Array],
    vectors: int,
    noise: FitNoise,
) -> Array:
    """The receipt's quantity in the receipt's unit for every parameter vector, shape (vectors,).

    `bases` are the coefficients by lane name, `factors` multipliers by coefficient key, each of shape (vectors,).
    """
    if cell.versus is not None:
        quantity = cell.versus.receipt.quantity
        one = replace(cell, receipt=cell.receipt.model_copy(update={"quantity": quantity}), versus=None)
        return predict_cell(one, bases, factors, vectors, noise) / predict_cell(
            cell.versus, bases, factors, vectors, noise
        )
    receipt, lane = cell.receipt, cell.lane
    base = bases[lane.name]
    repeated = Values(base, {key: np.repeat(value, FIT_SAMPLES) for key, value in factors.items()})
    if receipt.quantity in ("ttft", "prefill_tok_s"):
        first = _mean(ttft_s(lane, repeated, max(1, receipt.context_tokens), traffic=cell.traffic), vectors)
        return first * 1e3 if receipt.quantity == "ttft" else receipt.context_tokens / first
    if receipt.quantity == "tokens_per_step":
        return np.full(vectors, cell.tokens_per_step)
    if receipt.quantity == "cold_share":
        return _mean(cold_share(lane, cell.traffic, repeated), vectors)
    rows = float(receipt.rows) if receipt.rows is not None else receipt.k + 1.0
    batch = Batch(receipt.concurrency, receipt.k, rows, min(cell.tokens_per_step, rows), receipt.context_tokens)
    if cell.sharing_key is not None:
        repeated = repeated.with_value(
            "sharing",
            np.repeat(PRIOR_SHARING[receipt.prompts] * factors.get(cell.sharing_key, np.ones(vectors)), FIT_SAMPLES),
        )
    if receipt.quantity == "unique_experts":
        routing = routing_parameters(lane, cell.traffic, repeated)
        union = mean_unique(
            routing_shape(lane), routing, streams=receipt.concurrency, accepted_rows=rows, rejected_rows=0.0
        )
        return _mean(union, vectors)
    draws = noise.tiled(routing_shape(lane).layers, vectors)
    if receipt.quantity == "stage_time":
        if receipt.stage not in MECHANISMS:
            raise ReceiptError(f"receipt {receipt.id!r}: stage {receipt.stage!r}; {nearest(receipt.stage, MECHANISMS)}")
        stages = draw_step(lane, cell.traffic, repeated, batch, draws).times.mechanism_s
        return np.maximum(_mean(stages[receipt.stage], vectors) * 1e3, 1e-6)
    step = _mean(draw_step_s(lane, cell.traffic, repeated, batch, draws), vectors)
    others = receipt.concurrency - 1
    if receipt.quantity == "step_time":
        gap = _mean(repeated["host_gap"], vectors) if receipt.definition == "pass_time" else 0.0
        stalls: FloatOrArray = 0.0
        if receipt.definition == "mean_tpot" and others:
            # Every other stream's next request prefills once while this one writes its answer.
            steps = float(receipt.output_tokens or DEFAULT_OUTPUT_TOKENS) / cell.tokens_per_step
            stalls = others * _mean(_stall_s(cell, repeated, batch, draws), vectors) / steps
        return (step - gap + stalls) * 1e3
    kept = np.clip(
        cell.tokens_per_step * factors.get(cell.acceptance_key or "", np.ones(vectors)), 1.0, receipt.k + 1.0
    )
    if receipt.quantity == "tok_s_per_stream":
        return kept / step
    if receipt.quantity == "tok_s_aggregate":
        if receipt.definition != "wall_with_ttft":
            return receipt.concurrency * kept / step
        out = float(receipt.output_tokens or DEFAULT_OUTPUT_TOKENS)
        own = _mean(ttft_s(lane, repeated, max(1, receipt.context_tokens), traffic=cell.traffic), vectors)
        stalls = others * _mean(_stall_s(cell, repeated, batch, draws), vectors) if others else 0.0
        return receipt.concurrency * out / (out / kept * step + stalls + own)
    raise ReceiptError(f"receipt {receipt.id!r}: {receipt.quantity} is not a quantity the step model predicts.")


def _stall_s(cell: ReceiptCell, values: Values, batch: Batch, noise: RoutingNoise) -> FloatOrArray:
    """What the prompt of one request adds to the steps of a stream that writes meanwhile: its chunks, less the reads
    of weights that a chunk and the verify step beside it share (the law of a mixed step in `twin.serving.lane`).
    """
    prompt, largest = max(1, cell.receipt.context_tokens), largest_chunk(cell.lane)
    times = draw_step(cell.lane, cell.traffic, values, batch, noise).times.mechanism_s
    weights_s = sum(times[mechanism] for mechanism in CHUNK_MECHANISMS)
    total: FloatOrArray = 0.0
    for start in range(0, prompt, largest):
        tokens = float(min(largest, prompt - start))
        alone_s = chunk_s(cell.lane, values, tokens, float(start), cell.traffic)
        beside_s = chunk_s(cell.lane, values, tokens + batch.tokens, float(start), cell.traffic)
        shared_s = weights_s * (1.0 - unshared_share(cell.lane, tokens))
        total = total + np.maximum(np.minimum(alone_s, beside_s - shared_s), 0.0)
    return total


def _mean(value: FloatOrArray, vectors: int) -> Array:
    array = np.broadcast_to(np.asarray(value, dtype=float), (vectors * FIT_SAMPLES,))
    mean: Array = array.reshape(vectors, FIT_SAMPLES).mean(axis=1)
    return mean
