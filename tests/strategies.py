"""Strategies for every model that is read from a file: valid raw data, as TOML, JSON or CSV would give it.

A model is registered by its dotted name. What its annotations say is derived (`annotation_strategies.fields`); rules
between fields are stated here. `models(name)` validates; `lanes()` draws whole small lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from annotation_strategies import KINDS, NAMES, STRATEGIES, TEXT, Raw, fields, model, quantity, raw, sourced, whole
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from twin.lane.lane import Lane

__all__ = ["STRATEGIES", "lanes", "model", "models", "raw"]


def models(name: str) -> Raw:
    """Valid instances of a model."""
    return raw(name).map(model(name).model_validate)


def register(name: str, /, **given: Raw | None) -> None:
    """Register a model whose fields do not depend on each other."""
    STRATEGIES[name] = lambda: fields(name, **given)


def strategy(name: str) -> Callable[[Callable[[], Raw]], Callable[[], Raw]]:
    """Register a model with rules between its fields."""

    def keep(make: Callable[[], Raw]) -> Callable[[], Raw]:
        STRATEGIES[name] = make
        return make

    return keep


# --- the lane's parts -------------------------------------------------------------------------------------------------

register("twin.lane.sourced.Sourced", value=st.floats(-1e12, 1e12), text=TEXT, kind=KINDS)
register(
    "twin.lane.device.Device",
    name=NAMES,
    memory=quantity("bytes", 1e5, 1e6),
    read_bandwidth=quantity("bandwidth", 100, 8000),
)
register("twin.lane.device.Link", name=NAMES)
register("twin.lane.engine.CollectiveLaw", algorithm=NAMES, up_to_bytes=whole(1024, 2**24))
register(
    "twin.lane.engine.Engine",
    name=NAMES,
    launches_per_step=whole(0, 2500),
    launches_beside_sidecar=whole(0, 500),
    max_batched_tokens=whole(1, 16384),
    token_buckets=st.lists(st.integers(1, 512), max_size=6),
    collectives_per_layer=whole(0, 2),
    collective_chunks=whole(1, 3),
    deduplicates_experts=st.booleans(),
    prefill_efficiency=sourced(st.floats(0.01, 1.0)),
    boot_noise=sourced(st.floats(0.0, 0.1)),
    sidecar_call_time=quantity("time"),
    sidecar_row_time=quantity("time", 0.0, 2.0),
    sidecar_bulk_row_time=quantity("time", 0.0, 2.0),
    tokenise_time=quantity("time", 0.0, 10.0),
    long_prefill_tokens=whole(1, 16384),
    bounded_replay=st.booleans(),
    plans_ahead=st.booleans(),
    stream_handling_time=quantity("time"),
    host_read_efficiency=sourced(st.floats(0.1, 1.0)),
    engram_time=quantity("time"),
    row_time=quantity("time", 0.0, 2.0),
    context_time=quantity("time", 0.0, 1e-3),
    prefill_context_time=quantity("time", 0.0, 1e-4),
    collectives=st.lists(st.deferred(lambda: raw("twin.lane.engine.CollectiveLaw")), min_size=1, max_size=2),
)
register("twin.lane.checkpoint.Engram", layers=st.just([1]), rows_per_token=whole(0, 64))


@strategy("twin.lane.checkpoint.DraftHead")
def _draft_head() -> Raw:
    def make(experts: int) -> Raw:
        name = "twin.lane.checkpoint.DraftHead"
        return fields(
            name,
            stages=whole(1, 4),
            experts=whole(experts, experts),
            top_k=whole(0, max(0, experts - 1)),
            trained_block=whole(1, 9),
        )

    return st.integers(0, 64).flatmap(make)


@strategy("twin.lane.checkpoint.Checkpoint")
def _checkpoint() -> Raw:
    def make(sizes: tuple[int, int]) -> Raw:
        layers, experts = sizes
        return fields(
            "twin.lane.checkpoint.Checkpoint",
            name=NAMES,
            layers=whole(layers, layers),
            moe_layers=whole(1, layers),
            hidden=whole(64, 8192),
            experts=whole(experts, experts),
            top_k=whole(1, max(1, experts // 2)),
            shared_experts=whole(0, 2),
            replay_window=whole(0, 512),
            window_layers=whole(0, layers - 1),
            activation_bytes=whole(1, 2),
            active_parameters=whole(10**6, 10**10),
            total_parameters=whole(10**6, 10**12),
            routing_locality=sourced(st.floats(0.3, 1.0)),
            expert_bytes=quantity("bytes", 1, 50),
            kv_bytes_per_token=quantity("bytes", 1e-4, 0.1),
            kv_read_bytes_per_token=quantity("bytes", 0, 0.1),
        )

    return st.tuples(st.integers(1, 4), st.integers(4, 64)).flatmap(make)


register(
    "twin.lane.lane.Placement",
    tensor_parallel=whole(1, 8),
    expert_parallel=whole(1, 1),
    pipeline=whole(1, 2),
    hot=whole(0, 384),
    sidecars=whole(1, 4),
    rejected_weight=sourced(st.floats(0.0, 2.0)),
    map_mismatch=sourced(st.floats(0.2, 3.0)),
    cache_hit_rate=sourced(st.floats(0.0, 1.0)),
    map_calibrated_on=NAMES,
)
register("twin.lane.lane.Policy", schedule=st.just([[1, 4, 5], [5, 64, 3]]), traffic=NAMES, source=NAMES)
register(
    "twin.lane.lane.LaneFile",
    name=NAMES,
    checkpoint=NAMES,
    engine=NAMES,
    devices=st.fixed_dictionaries({"primary": NAMES}, optional={"sidecar": NAMES}),
    links=st.fixed_dictionaries({}, optional={"peer": NAMES, "sidecar": NAMES}),
)


@strategy("twin.lane.lane.Lane")
def _lane() -> Raw:
    return st.composite(_draw_lane)()


def _draw_lane(
    draw: Callable[[Raw], Any],
    cold_on: tuple[str, ...] = ("none", "sidecar", "host"),
    ranks: tuple[int, ...] = (1, 2, 4),
) -> Any:
    checkpoint = draw(raw("twin.lane.checkpoint.Checkpoint"))
    where = draw(st.sampled_from(cold_on))
    experts = checkpoint["experts"]["value"]
    hot = experts if where == "none" else draw(st.integers(0, experts - 1))
    width = draw(st.sampled_from(ranks))
    device, link = raw("twin.lane.device.Device"), raw("twin.lane.device.Link")
    placement = fields(
        "twin.lane.lane.Placement",
        tensor_parallel=whole(width, width),
        expert_parallel=st.sampled_from([e for e in (1, 2, 4) if width % e == 0]).flatmap(lambda e: whole(e, e)),
        hot=whole(hot, hot),
        cold_on=st.just(where),
        rejected_weight=sourced(st.floats(0.0, 2.0)),
        map_mismatch=sourced(st.floats(0.2, 3.0)),
        pipeline=None,
        map_kind=st.just("popularity"),
        cache_hit_rate=None,
        cold_computed_by=st.just("primary"),
        sidecars=whole(1, 2),
        kv_memory=quantity("bytes", 1, 1e4),
    )
    return {
        "name": draw(NAMES),
        "title": "",
        "description": "",
        "aliases": [],
        "calibration": "",
        "devices": {role: draw(device) for role in ("primary", "sidecar", "host")},
        "links": {role: draw(link) for role in ("peer", "sidecar", "host")},
        "checkpoint": checkpoint,
        "engine": draw(raw("twin.lane.engine.Engine")),
        "placement": draw(placement),
        "policy": draw(raw("twin.lane.lane.Policy")),
    }


def lanes(
    *, cold_on: tuple[str, ...] = ("none", "sidecar", "host"), ranks: tuple[int, ...] = (1, 2, 4)
) -> SearchStrategy[Lane]:
    """Whole small lanes: up to 4 layers, up to 64 experts, up to 4 ranks."""
    return st.composite(_draw_lane)(cold_on, ranks).map(Lane.model_validate)


# --- traffic ----------------------------------------------------------------------------------------------------------


@strategy("twin.acceptance.traffic.Profile")
def _profile() -> Raw:
    def make(values: list[float]) -> Raw:
        return st.sampled_from(["survival", "conditional"]).flatmap(
            lambda kind: fields(
                "twin.acceptance.traffic.Profile",
                k=st.just(len(values)),
                kind=st.just(kind),
                mean=None,
                temperature=st.floats(0.0, 2.0),
                values=st.just(sorted(values, reverse=True) if kind == "survival" else values),
            )
        )

    return st.lists(st.floats(0.0, 1.0), min_size=1, max_size=9).flatmap(make)


_SHARE = sourced(st.floats(0.0, 1.0))
register(
    "twin.acceptance.traffic.Routing",
    beta=sourced(st.floats(0.3, 1.0)),
    diversity=_SHARE,
    hot_fraction=sourced(st.floats(0.01, 1.0)),
    cold_share=st.fixed_dictionaries({}, optional={"own": _SHARE, "other": _SHARE}),
)


@strategy("twin.acceptance.traffic.Tokens")
def _tokens() -> Raw:
    name = "twin.acceptance.traffic.Tokens"
    histogram = st.lists(st.tuples(st.floats(1, 1e6), st.floats(0.01, 1)), min_size=1, max_size=4)
    one = fields(name, histogram=histogram, median=None, sigma=None)
    return one | fields(name, median=sourced(st.floats(1, 1e5)), sigma=sourced(st.floats(0, 5)), histogram=None)


register("twin.acceptance.traffic.Length")
register(
    "twin.acceptance.traffic.TrafficClass",
    name=NAMES,
    stream_sd=sourced(st.floats(0, 0.5)),
    profile=st.lists(
        st.deferred(lambda: raw("twin.acceptance.traffic.Profile")),
        min_size=1,
        max_size=3,
        unique_by=lambda p: (p["k"], p["verification"]),
    ),
)

# --- receipts and calibrations ----------------------------------------------------------------------------------------

_CELL_UNITS = {
    "step_time": "ms",
    "stage_time": "ms",
    "ttft": "ms",
    "tok_s_per_stream": "tok/s",
    "tok_s_aggregate": "tok/s",
    "prefill_tok_s": "tok/s",
    "tokens_per_step": "tokens",
    "step_time_ratio": "ratio",
    "tok_s_ratio": "ratio",
}
_CELL_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Z"]), min_size=1, max_size=12)
_CELL_FLOAT = st.floats(1e-3, 1e6).map(lambda x: float(f"{x:.10g}"))


@strategy("twin.fitting.receipts.Receipt")
def _receipt() -> Raw:
    def make(drawn: tuple[str, str]) -> Raw:
        quantity_name, use = drawn
        texts = {
            n: _CELL_TEXT
            for n in (
                "id",
                "source",
                "lane",
                "traffic",
                "date",
                "checkpoint",
                "engine",
                "workload",
                "stage",
                "versus_lane",
                "notes",
                "reason",
            )
        }
        ratio = {"versus_lane": _CELL_TEXT, "versus_k": st.integers(0, 64)} if quantity_name.endswith("_ratio") else {}
        return fields(
            "twin.fitting.receipts.Receipt",
            **texts | ratio,
            quantity=st.just(quantity_name),
            unit=st.just(_CELL_UNITS[quantity_name]),
            value=_CELL_FLOAT,
            use=st.just(use),
            noise=st.floats(0.01, 1).map(lambda x: float(f"{x:.10g}")),
            tokens_per_step=st.floats(1, 65).map(lambda x: float(f"{x:.10g}")),
        )

    return st.tuples(st.sampled_from(sorted(_CELL_UNITS)), st.sampled_from(["fit", "validate", "exclude"])).flatmap(
        make
    )


register("twin.fitting.calibration.FittedParameter")
_PAIR = st.tuples(st.integers(0, 9), st.integers(10, 99))
register(
    "twin.fitting.calibration.CalibratedRange", k=_PAIR, concurrency=_PAIR, tokens_in_flight=_PAIR, context_tokens=_PAIR
)


@strategy("twin.fitting.calibration.Calibration")
def _calibration() -> Raw:
    def make(size: int) -> Raw:
        parameter = fields(
            "twin.fitting.calibration.FittedParameter", log_factor=st.floats(-1, 1), log_sd=st.floats(0, 1)
        )
        matrix = [[0.01 if i == j else 0.0 for j in range(size)] for i in range(size)]
        return fields(
            "twin.fitting.calibration.Calibration",
            schema_version=st.just(1),
            covariance=st.just(matrix),
            parameters=st.lists(parameter, min_size=size, max_size=size, unique_by=lambda p: p["key"]),
        )

    return st.integers(0, 3).flatmap(make)


_PATTERNS = st.dictionaries(NAMES, st.from_regex(r"[a-z0-9 ]{0,6}([.][*]?)?", fullmatch=True), max_size=3)
register("twin.fitting.evidence.Rule", lane=NAMES, match=_PATTERNS, workloads=_PATTERNS)
register("twin.fitting.evidence.Rules")

# --- routing, serving, planning ---------------------------------------------------------------------------------------

register("twin.routing.evidence.UnionRow")


@strategy("twin.serving.config.Limits")
def _limits() -> Raw:
    def make(page: int) -> Raw:
        blocks = st.integers(1, 8).map(lambda n: n * page)
        return fields("twin.serving.config.Limits", page_tokens=st.just(page), prefix_block_tokens=blocks)

    return st.integers(1, 64).flatmap(make)


register("twin.serving.config.Outage", replica=st.sampled_from([0, "router"]))
register("twin.serving.config.Link")
register("twin.serving.config.Deployment", link=st.deferred(lambda: raw("twin.serving.config.Link")))
register("twin.planning.scenario.Setting")
register("twin.planning.scenario.Scenario")
register("twin.planning.study.TrafficShare")


@strategy("twin.planning.study.Arrivals")
def _arrivals() -> Raw:
    name = "twin.planning.study.Arrivals"
    rates = st.floats(0.01, 100)
    open_loop = fields(
        name, kind=st.sampled_from(["poisson", "gamma"]), rate=rates, ramp_to=rates, ramp_over=st.just("10 min")
    )
    return open_loop | fields(name, kind=st.just("closed"), users=st.integers(1, 99), ramp_to=None, ramp_over=None)


register("twin.planning.study.Extent")
register("twin.planning.study.Option", schedule=None)
register(
    "twin.planning.study.Study",
    options=st.lists(
        st.deferred(lambda: raw("twin.planning.study.Option")), min_size=1, max_size=2, unique_by=lambda o: o["name"]
    ),
)
