"""Does a placement fit: the sum that is shown, and the refusal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from twin.errors import CapacityError
from twin.lane.capacity import kv_tokens, memory_sums, pinned_bytes, require_fit
from twin.lane.catalogue import catalogue_roots, load_lane, names
from twin.lane.lane import Lane
from twin.lane.override import override

GIB = 2**30


def lane(name: str, *settings: str) -> Lane:
    return override(load_lane(name, catalogue_roots()), settings)


@given(st.integers(1, 2**40))
def test_pinned_memory_is_the_next_power_of_two(size: int) -> None:
    taken = pinned_bytes(float(size), "power_of_two")
    assert (taken >= size and taken < 2 * size) or size == 1
    assert taken == 2.0 ** round(taken).bit_length() / 2
    assert pinned_bytes(float(size), "none") == size


def test_pinned_memory_of_an_exact_power_is_itself() -> None:
    assert pinned_bytes(float(GIB), "power_of_two") == GIB
    assert pinned_bytes(float(GIB + 1), "power_of_two") == 2 * GIB


def test_both_engram_tables_take_128_gib_of_grace() -> None:
    # 98.3 GB is 91.6 GiB: the caching host allocator takes 128 GiB for each.
    host = {memory.memory.split()[0]: memory for memory in memory_sums(lane("sidecar"))}["host"]
    tables = [size / GIB for name, size in host.parts if name.startswith("Engram")]
    assert tables == [128.0, 128.0]
    plain = {m.memory.split()[0]: m for m in memory_sums(lane("sidecar", "placement.pinned_rounding=none"))}["host"]
    assert plain.needed_bytes == host.needed_bytes - 256 * GIB + 98.305579e9 + 98.308271e9


def test_experts_are_counted_once() -> None:
    one = lane("sidecar")
    sums = {memory.memory.split()[0]: dict(memory.parts) for memory in memory_sums(one)}
    assert sums["primary"]["hot experts"] + sums["sidecar"]["cold experts"] == approx(one.checkpoint.routed_bytes)
    assert one.checkpoint.routed_bytes == approx(288.8e9, rel=1e-3)  # 40 x 384 x 18.80 MB


def test_four_cards_hold_a_quarter_each() -> None:
    (memory,) = (m for m in memory_sums(lane("tp4")) if m.memory.startswith("primary"))
    assert dict(memory.parts)["hot experts"] == approx(lane("tp4").checkpoint.routed_bytes / 4)
    assert memory.needed_bytes == sum(size for _, size in memory.parts)


@pytest.mark.parametrize("name", names("lanes", catalogue_roots()))
def test_every_shipped_lane_fits(name: str) -> None:
    require_fit(lane(name))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["placement.hot=384", "placement.cold_on=none"], ["primary (gb300)", "GiB hot experts", "Lower placement.hot"]),
        (["placement.hot=0"], ["sidecar (rtx-pro-6000-max-q)", "GiB cold experts"]),
        (["placement.kv_memory=100 GiB"], ["primary (gb300)", "100.0 GiB KV memory"]),
        (["placement.host_prefix_memory=300 GiB"], ["host (grace)", "128.0 GiB Engram table, pinned", "300.0 GiB prefix tier"]),
        (["devices.primary.memory=80 GiB"], ["and has 80.0 GiB"]),
    ],
)  # fmt: skip
def test_a_placement_that_does_not_fit_is_refused_with_its_sum(settings: list[str], says: list[str]) -> None:
    with pytest.raises(CapacityError, match="lane 'sidecar' does not fit") as refused:
        require_fit(lane("sidecar", *settings))
    assert all(part in str(refused.value) for part in says), str(refused.value)


def test_experts_in_host_memory_count_there() -> None:
    box = lane("sidecar", "placement.cold_on=host", "engine.host_read_efficiency=0.9")
    sums = {memory.memory.split()[0]: dict(memory.parts) for memory in memory_sums(box)}
    assert "sidecar" not in sums and sums["host"]["cold experts"] == approx(89 * 40 * 18.80064e6)


def test_two_sidecars_share_the_cold_experts() -> None:
    one, two = (memory_sums(lane("sidecar", f"placement.sidecars={n}"))[1] for n in (1, 2))
    assert one.needed_bytes == approx(2 * two.needed_bytes)


def test_context_that_fits_is_memory_over_bytes_a_token() -> None:
    assert kv_tokens(lane("tp4")) == approx(13.3 * GIB / 890)
