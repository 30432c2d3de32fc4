"""What-ifs by dotted key."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from twin.errors import CatalogueError
from twin.lane.catalogue import catalogue_roots, load_lane
from twin.lane.lane import Lane
from twin.lane.override import override, settable_keys

SIDECAR, TP4 = (load_lane(name, catalogue_roots()) for name in ("sidecar", "tp4"))


@pytest.mark.parametrize(
    ("lane", "setting", "read", "value"),
    [
        (SIDECAR, 'links.sidecar.latency="8 us"', lambda one: one.links["sidecar"].latency.value, 8e-6),
        (SIDECAR, "links.sidecar.latency=8 us", lambda one: one.links["sidecar"].latency.value, 8e-6),
        (SIDECAR, " links.sidecar.latency = 8 us ", lambda one: one.links["sidecar"].latency.value, 8e-6),
        (SIDECAR, "lane.links.sidecar.latency=8 us", lambda one: one.links["sidecar"].latency.value, 8e-6),
        (SIDECAR, "links.pcie.latency=8 us", lambda one: one.links["sidecar"].latency.value, 8e-6),
        (SIDECAR, "links.c2c.bandwidth=450 GB/s", lambda one: one.links["host"].bandwidth.value, 450e9),
        (TP4, "links.pcie.bandwidth=60 GB/s", lambda one: one.links["peer"].bandwidth.value, 60e9),
        (SIDECAR, "devices.gb300.read_bandwidth=7 TB/s", lambda one: one.devices["primary"].read_bandwidth.value, 7e12),
        (SIDECAR, "placement.hot=330", lambda one: one.placement.hot.value, 330),
        (SIDECAR, "placement.sidecars=2", lambda one: one.placement.sidecars and one.placement.sidecars.value, 2),
        (
            SIDECAR,
            "engine.host_read_efficiency=0.9",
            lambda one: one.engine.host_read_efficiency and one.engine.host_read_efficiency.value,
            0.9,
        ),
        (TP4, "checkpoint.engram.table_bytes.1=1 GB", lambda one: one.checkpoint.engram.table_bytes[1].value, 1e9),
        (SIDECAR, "engine.launch_mode=persistent", lambda one: one.engine.launch_mode, "persistent"),
        (SIDECAR, "engine.deduplicates_experts=false", lambda one: one.engine.deduplicates_experts, False),
        (SIDECAR, "policy.k=3", lambda one: one.policy.k, 3),
        (SIDECAR, "placement.map_calibrated_on=", lambda one: one.placement.map_calibrated_on, ""),
        (TP4, "engine.collectives.0.latency=3 us", lambda one: one.engine.collectives[0].latency.value, 3e-6),
        (TP4, "checkpoint.draft.stages=1", lambda one: one.checkpoint.draft.stages.value, 1),
    ],
)
def test_sets_one_value(lane: Lane, setting: str, read: Callable[[Lane], object], value: object) -> None:
    changed = override(lane, [setting])
    assert read(changed) == (approx(value) if isinstance(value, float) else value)
    assert read(lane) != value, "the shipped lane must stay as it was"


def test_several_settings_hold_together_and_the_last_one_wins() -> None:
    changed = override(SIDECAR, ["placement.hot=300", "placement.hot=384", "placement.cold_on=none"])
    assert changed.cold_experts == 0


def test_a_what_if_says_that_it_is_assumed() -> None:
    latency = override(SIDECAR, ["links.sidecar.latency=8 us"]).links["sidecar"].latency
    assert latency.kind == "assumed" and "what-if" in latency.source and latency.text == "8 us"


def test_no_setting_is_the_lane_itself() -> None:
    assert override(SIDECAR, []) is SIDECAR


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("placement.hot", ["expected KEY=VALUE"]),
        ("=330", ["expected KEY=VALUE"]),
        ("", ["expected KEY=VALUE"]),
        ("placement.hott=330", ["no such key in lane 'sidecar'", "did you mean 'placement.hot'"]),
        ("hot=330", ["no such key", "placement.hot"]),
        ("links.peer.latency=1 us", ["no such key"]),
        ("placement=330", ["list or a table"]),
        ("engine.token_buckets=8", ["list or a table"]),
        ("placement.hot.value=330", ["no such key", "placement.hot"]),
        ("placement.hot=many", ["placement.hot", "'many'"]),
        ("placement.hot=385", ["placement.hot is 385", "0 to 384"]),
        ("placement.hot=-1", ["placement.hot", "got -1"]),
        ("placement.hot=329.5", ["placement.hot", "whole number"]),
        ("links.sidecar.latency=8", ["links.sidecar.latency", "has no unit"]),
        ("links.sidecar.latency=8 GB/s", ["links.sidecar.latency", "is not a time"]),
        ("links.sidecar.latency=-8 us", ["links.sidecar.latency", "got -8 us"]),
        ("links.sidecar.bandwidth=0 GB/s", ["links.sidecar.bandwidth", "got 0 GB/s"]),
        ("engine.deduplicates_experts=maybe", ["expected true or false"]),
        ("policy.k=2.5", ["expected a whole number"]),
        ("policy.verification=blok", ["policy.verification", "'block'"]),
        ("placement.cold_on=none", ['cold_on is "none" but only 295']),
        ("checkpoint.engram.table_bytes.7=1 GB", ["no such key", "table_bytes"]),
        ("policy.schedule.0=1", ["list or a table"]),
        ("placement.cold_on=host", ["engine.host_read_efficiency is missing"]),
        ("placement.tensor_parallel=4", ["collectives"]),
        ("checkpoint.top_k=400", ["top_k is 400"]),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(setting: str, says: list[str]) -> None:
    with pytest.raises(CatalogueError) as refused:
        override(SIDECAR, [setting])
    assert all(part in str(refused.value) for part in says), str(refused.value)


@pytest.mark.parametrize("lane", [SIDECAR, TP4], ids=["sidecar", "tp4"])
def test_every_listed_key_can_be_set_to_what_it_is(lane: Lane) -> None:
    for key in settable_keys(lane):
        node: object = lane
        for part in key.split("."):
            node = (
                node[part]
                if isinstance(node, dict)
                else node[int(part)]
                if isinstance(node, list)
                else getattr(node, part)
            )
        if isinstance(node, list) or node is None:
            continue
        text = getattr(node, "text", str(node).lower() if isinstance(node, bool) else str(node))
        changed = override(lane, [f"{key}={text}"])
        assert changed.model_dump(exclude={"devices", "links", "checkpoint", "engine", "placement"}) == lane.model_dump(
            exclude={"devices", "links", "checkpoint", "engine", "placement"}
        )


@given(st.text(max_size=30), st.text(max_size=20))
def test_any_setting_is_applied_or_refused(key: str, text: str) -> None:
    with contextlib.suppress(CatalogueError):
        override(SIDECAR, [f"{key}={text}"])


@given(st.sampled_from(settable_keys(SIDECAR)), st.text(max_size=20) | st.floats().map(str) | st.integers().map(str))
def test_any_value_of_a_real_key_is_applied_or_refused(key: str, text: str) -> None:
    with contextlib.suppress(CatalogueError):
        override(SIDECAR, [f"{key}={text}"])
