"""From a lane to a step graph. The placement and the engine decide what is issued; no lane is known by name.

Every rank of a tensor-parallel lane does the same work on its share, so one rank stands for all of them; `all_ranks`
issues
every rank, which changes no time and is what a trace shows. With experts dealt to ranks whole, the rank that stands
for all is the busiest one of each layer: a barrier ends every layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from twin.lane.lane import Lane
from twin.step.graph import GraphBuilder, StepGraph


@dataclass(frozen=True, slots=True)
class Plan:
    """What of a lane decides the shape of its graph."""

    layers: int
    moe_layers: int
    cold_on: str
    collectives_per_layer: int
    chunks: int
    engram_layers: tuple[int, ...]
    draft: bool
    ranks: int


def build_step_graph(lane: Lane, k: int, *, all_ranks: bool = False) -> StepGraph:
    """The graph of one verify step with drafts of length `k` (0: plain decoding)."""
    checkpoint, placement = lane.checkpoint, lane.placement
    engram = checkpoint.engram is not None and placement.engram_on != "none" and lane.engine.engram_time is not None
    return _build(
        Plan(
            layers=int(checkpoint.layers.value),
            moe_layers=int(checkpoint.moe_layers.value),
            cold_on=placement.cold_on if lane.cold_experts else "none",
            collectives_per_layer=int(lane.engine.collectives_per_layer.value) if lane.ranks > 1 else 0,
            chunks=collective_chunks(lane),
            engram_layers=tuple(checkpoint.engram.layers) if engram and checkpoint.engram else (),
            draft=k > 0 and checkpoint.draft is not None,
            ranks=lane.ranks if all_ranks else 1,
        )
    )


def collective_chunks(lane: Lane) -> int:
    """Into how many pieces work and its all-reduce are cut; 1 without collectives."""
    return max(1, int(lane.engine.collective_chunks.value)) if lane.ranks > 1 else 1


@lru_cache(maxsize=256)
def _build(plan: Plan) -> StepGraph:
    gpus = [f"gpu{rank}" for rank in range(plan.ranks)] if plan.ranks > 1 else ["gpu"]
    graph = GraphBuilder(primary=gpus[0])
    ready: tuple[int, ...] = ()
    for layer in range(plan.layers):
        for gpu in gpus:
            after = ready
            if layer in plan.engram_layers:
                after = (graph.add("engram gather", gpu, "engram", "other", *after, layer=layer),)
            graph.add("small kernels", gpu, "launch", "launch", *after, layer=layer)
            graph.add("attention", gpu, "attention", "attention", layer=layer)
        ready = _reduced(graph, gpus, "projections", "dense", (), plan.chunks, plan.collectives_per_layer > 1, layer)
        if layer < plan.layers - plan.moe_layers:
            continue
        ready = _experts(graph, gpus, plan, ready, layer)
    for gpu in gpus:
        graph.add("output head", gpu, "head", "sampling", *ready)
        graph.add("sampling", gpu, "sampling", "sampling")
        if plan.draft:
            graph.add("draft", gpu, "draft", "draft")
        graph.add("host gap", gpu, "host_gap", "other")
    return graph.build()


def _experts(graph: GraphBuilder, gpus: list[str], plan: Plan, ready: tuple[int, ...], layer: int) -> tuple[int, ...]:
    """Hot experts on the primary devices, beside or before the cold ones where those live elsewhere."""
    joined: tuple[int, ...] = ()
    if plan.cold_on == "sidecar":
        out = graph.add("hidden to sidecar", "link out", "sidecar_out", "sidecar_exposed", *ready, layer=layer)
        cold = graph.add("cold experts", "sidecar", "sidecar_experts", "sidecar_exposed", out, layer=layer)
        joined = (graph.add("sidecar result", "link back", "sidecar_back", "sidecar_exposed", cold, layer=layer),)
        for gpu in gpus:
            graph.add("small kernels beside the hop", gpu, "launch_beside", "launch", *ready, layer=layer)
    if plan.cold_on == "host":
        for gpu in gpus:
            graph.add("cold experts from host memory", gpu, "host_experts", "experts", *ready, layer=layer)
    return (
        _reduced(graph, gpus, "hot experts", "experts", ready, plan.chunks, plan.collectives_per_layer > 0, layer)
        + joined
    )


def _reduced(
    graph: GraphBuilder,
    gpus: list[str],
    name: str,
    cost: str,
    after: tuple[int, ...],
    chunks: int,
    reduce: bool,
    layer: int,
) -> tuple[int, ...]:
    """Work in `chunks` pieces, each followed by its all-reduce when `reduce`; returns what the next op waits for."""
    last: tuple[int, ...] = ()
    for chunk in range(chunks):
        last = tuple(graph.add(name, gpu, cost, cost, *(after if chunk == 0 else ()), layer=layer) for gpu in gpus)
        if reduce:
            last = (graph.add("all-reduce", "fabric", "all_reduce", "all_reduce_exposed", *last, layer=layer),)
    return last
