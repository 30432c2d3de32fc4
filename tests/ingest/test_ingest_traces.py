"""Steps in traces, found from repetition, on constructed traces whose step is known."""

from __future__ import annotations

import json
from pathlib import Path

import hypothesis.strategies as st
import ingest_build as build
import numpy as np
import pytest
from hypothesis import given, settings

from twin.errors import IngestError
from twin.ingest.kernel_class import kernel_class
from twin.ingest.nsys_csv import steps_from_counts
from twin.ingest.registry import read_file
from twin.ingest.trace_steps import find_period


@pytest.mark.parametrize("kind", ["torch", "sqlite"])
def test_step_time_classes_gaps_and_launches(kind: str, tmp_path: Path) -> None:
    make = build.torch_trace if kind == "torch" else build.nsys_sqlite
    found = read_file(make(tmp_path / "x", steps=8))
    (cell,) = found.cells
    trace = found.extras["trace"]
    assert cell.step_s == pytest.approx(build.STEP_US * 1e-6, rel=1e-4)
    assert trace["kernels_per_step"] == build.STEP_KERNELS and trace["steps"] >= 5
    assert cell.stages_s["experts"] == pytest.approx(4 * 38e-6, rel=1e-3)
    assert cell.stages_s["attention"] == pytest.approx(4 * 12e-6, rel=1e-3)
    assert cell.stages_s["all_reduce"] == pytest.approx(4 * 11e-6, rel=1e-3)
    assert trace["idle_ms"] == pytest.approx(
        (build.BETWEEN_STEPS_US + build.STEP_KERNELS * build.GAP_US) * 1e-3, rel=0.02
    )
    assert trace["median_gap_us"] == pytest.approx(build.GAP_US, abs=0.01)
    assert list(trace["launches_per_step"].values()) == [1.0]
    assert trace["evidence"]["first_kernel_of_step"] == "embedding_kernel" and trace["evidence"]["match"] == 1.0
    assert trace["evidence"]["next_best_match"] < 0.9
    assert "gpu-idle" in {flag.code for flag in cell.flags}


def test_a_prefill_between_steps_is_set_aside(tmp_path: Path) -> None:
    found = read_file(build.torch_trace(tmp_path / "x", steps=20, prefill_before=9))
    assert found.cells[0].step_s == pytest.approx(build.STEP_US * 1e-6, rel=1e-4)
    assert found.extras["trace"]["steps_set_aside"] >= 1


def test_cpu_events_are_counted_not_dropped_silently(tmp_path: Path) -> None:
    found = read_file(build.torch_trace(tmp_path / "x"))
    assert found.unknown["events of category 'cpu_op'"] == 8


def test_nothing_repeats(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "kernel", "name": f"k{i * i % 97}", "pid": 0, "tid": 7, "ts": i * 10.0, "dur": 5.0}
        for i in range(60)
    ]
    path = tmp_path / "x"
    path.write_text(json.dumps({"traceEvents": events}))
    with pytest.raises(IngestError, match=r"no sequence of them repeats|fewer than three"):
        read_file(path)


def test_trace_without_kernels(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(
        '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1}]}'
    )
    with pytest.raises(IngestError, match="no GPU kernel"):
        read_file(path)


@given(st.integers(2, 60), st.integers(2, 12), st.integers(4, 12), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_period_of_layers_inside_steps(layer: int, layers: int, steps: int, random: object) -> None:
    """A step of `layers` equal layers between a head and a tail: the step is found, not the layer."""
    one = np.concatenate([[1000], np.tile(np.arange(layer), layers), [1001, 1002]])
    period = find_period(np.tile(one, steps).astype(np.int32))
    assert period is not None and period.kernels == len(one) and period.score == 1.0


@given(st.lists(st.integers(0, 5), min_size=0, max_size=400))
@settings(max_examples=100, deadline=None)
def test_period_never_fails_on_any_sequence(ids: list[int]) -> None:
    period = find_period(np.array(ids, dtype=np.int32))
    assert period is None or 1 <= period.kernels <= len(ids) // 2


def test_gpu_trace_csv() -> None:
    found = read_file(build.FIXTURES / "constructed/nsys_gpu_trace.csv")
    # 23 kernels with 0.23 us between them and 250 us between steps.
    busy = 2 + 4 * (12 + 9 + 38 + 11 + 2.3) + 90 + 6
    assert found.cells[0].step_s == pytest.approx((busy + 23 * 0.23 + 250) * 1e-6, rel=1e-3)


def test_kernel_summary_csv() -> None:
    found = read_file(build.FIXTURES / "constructed/nsys_kern_sum.csv")
    (cell,) = found.cells
    assert found.extras["kernel_summary"]["steps_from_counts"] == 20
    assert cell.stages_s["experts"] == pytest.approx(40 * 38e-6) and cell.step_s is None
    assert {"busy-only", "steps-from-counts"} <= {flag.code for flag in cell.flags}


def test_steps_are_not_layers_times_steps() -> None:
    assert steps_from_counts([800, 800, 800, 800, 800, 20, 20, 20])[0] == 20
    assert steps_from_counts([7, 11, 13])[0] < 3


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<...>>", "attention"),
        ("fused_moe_kernel", "experts"),
        ("void cutlass::device_kernel<GroupedGemm...moe>", "experts"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage)", "all_reduce"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16>", "all_reduce"),
        ("nvjet_tst_128x8_64x12_2x1_v_bz_TNT", "dense"),
        ("void at::native::vectorized_elementwise_kernel<4>", "other"),
        ("Memcpy DtoD (Device -> Device)", "copy"),
        ("", "other"),
    ],
)
def test_kernel_classes(name: str, found: str) -> None:
    assert kernel_class(name) == found
