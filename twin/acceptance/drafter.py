"""The draft pass of one step: passes, rows, experts touched, bytes read. The step model turns them into time.

A block drafter runs its stages once over all positions of the block (one parallel pass of k rows a stream); an
autoregressive head (EAGLE, MTP) runs k passes of one row a stream, and reads its weights every time. The head has its
own expert pool, so its union is counted apart from the model's.
"""

from __future__ import annotations

from dataclasses import dataclass

from twin.errors import PolicyError
from twin.lane.checkpoint import DraftHead
from twin.routing.batch import RoutingParameters, RoutingShape, mean_unique


@dataclass(frozen=True)
class DraftWork:
    """Work of drafting one step. `experts_per_stage` is the expected union in one stage of one pass."""

    passes: int
    rows_per_pass: int
    stages: int
    experts_per_stage: float
    fixed_bytes: float
    expert_bytes: float

    @property
    def expert_reads(self) -> float:
        """Experts read in all stages of all passes."""
        return self.passes * self.stages * self.experts_per_stage

    @property
    def read_bytes(self) -> float:
        """Bytes read: fixed weights once a pass, and every expert of the union once a stage and pass."""
        return self.passes * self.fixed_bytes + self.expert_reads * self.expert_bytes


def draft_work(head: DraftHead, *, streams: int, k: int, beta: float = 0.747, diversity: float = 1.0) -> DraftWork:
    """Work of drafting k tokens for each of `streams` streams.

    `beta` and `diversity` are the traffic's routing locality; the head's own was not measured, so the model's stands in
    (assumed). Raises PolicyError for a negative k or no streams.
    """
    if k < 0 or streams < 1:
        raise PolicyError(f"a draft of k = {k} for {streams} streams; expected k >= 0 and at least one stream.")
    stages, pool, top_k = int(head.stages.value), int(head.experts.value), int(head.top_k.value)
    passes = 0 if k == 0 else 1 if head.kind == "block" else k
    rows = k if head.kind == "block" else min(k, 1)
    touched = 0.0
    if passes and pool:
        shape = RoutingShape(1, pool, min(top_k, pool))
        parameters = RoutingParameters(beta=beta, diversity=diversity, layer_spread=0.0)
        # Drafted rows are all guesses; how many will be accepted does not matter to the head's own routing.
        touched = float(mean_unique(shape, parameters, streams=streams, accepted_rows=float(rows), rejected_rows=0.0))
    return DraftWork(passes, streams * rows, stages, touched, head.fixed_bytes.value, head.expert_bytes.value)
