"""Published expert kernels: a law fitted on balanced routing predicts power-law routing through the union law."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from twin.errors import IngestError
from twin.lane.catalogue import shipped_root
from twin.routing import exact
from twin.routing.kernels import (
    KernelLaw,
    KernelTable,
    balanced_workload,
    fit_kernel,
    power_law_workload,
    read_kernel_tables,
)

DATA = shipped_root() / "calibration" / "routing"
EXPERTS, TOP_K = 384, 6
#: Bytes a weight, block scales included; an expert is 3 x 7168 x 3072 weights.
WEIGHT_BYTES = {"fp8_block": 1.0 + 4 / 128**2, "w4a8_mxfp4_mxfp8": 17 / 32, "nvfp4": 9 / 16}
#: Specified memory bandwidth, B/s (makers' sheets).
BANDWIDTH = {
    "gb300": 8.0e12,
    "b300_sxm": 8.0e12,
    "b200_sxm": 8.0e12,
    "h200_sxm": 4.8e12,
    "rtx_pro_6000_server": 1.792e12,
}


@pytest.fixture(scope="module")
def errors() -> list[tuple[KernelTable, np.ndarray, np.ndarray, KernelLaw]]:
    """Power-law tables with the relative errors of the union law and of the uniform law, and the balanced fit."""
    return list(_predict(read_kernel_tables(DATA / "moe_384x6.csv.gz")))


def _predict(tables: list[KernelTable]) -> Iterator[tuple[KernelTable, np.ndarray, np.ndarray, KernelLaw]]:
    cache: dict[tuple[float, int, str], float] = {}

    def touched(table: KernelTable) -> np.ndarray:
        for m in table.tokens:
            key = (float(m), table.expert_parallel, table.routing)
            if key not in cache:
                if table.routing == "balanced":
                    cache[key] = balanced_workload(EXPERTS, TOP_K, int(m), table.expert_parallel)
                else:
                    exponent = float(table.routing.rsplit("_", 1)[1])
                    cache[key] = power_law_workload(EXPERTS, TOP_K, int(m), table.expert_parallel, exponent, draws=6)
        return np.asarray([cache[float(m), table.expert_parallel, table.routing] for m in table.tokens])

    balanced = {t.configuration: t for t in tables if t.routing == "balanced"}
    for table in tables:
        if table.routing == "balanced":
            continue
        base = balanced[table.configuration]
        law = fit_kernel(touched(base), base.tokens, base.time_s)
        uniform = np.asarray([exact.mean_unique(EXPERTS, TOP_K, m) / table.expert_parallel for m in table.tokens])
        yield (
            table, law.time_s(touched(table), table.tokens) / table.time_s - 1.0,
            law.time_s(uniform, table.tokens) / table.time_s - 1.0, law,
        )  # fmt: skip


def _median(errors: list[tuple[KernelTable, np.ndarray, np.ndarray, KernelLaw]], which: int, **where: object) -> float:
    chosen = [e[which] for e in errors if all(getattr(e[0], k) == v for k, v in where.items())]  # type: ignore[index]
    return float(np.median(np.abs(np.concatenate(chosen))))


def test_power_law_rows_are_predicted_from_balanced_rows(
    errors: list[tuple[KernelTable, np.ndarray, np.ndarray, KernelLaw]],
) -> None:
    # 19,133 power-law points: 4.5 % median (8 % asked for); independent uniform routing is 11.4 % off.
    assert _median(errors, 1) < 0.055
    assert _median(errors, 2) > 0.10
    for system in BANDWIDTH:
        assert _median(errors, 1, system=system) < 0.06
        assert _median(errors, 2, system=system) > 0.10
    for dtype in WEIGHT_BYTES:
        assert _median(errors, 1, dtype=dtype) < 0.08
    for ranks in (1, 2, 4, 8, 16, 32, 64, 128):
        assert _median(errors, 1, expert_parallel=ranks) < 0.08


def test_every_kernel_but_one(errors: list[tuple[KernelTable, np.ndarray, np.ndarray, KernelLaw]]) -> None:
    kernels = {e[0].kernel for e in errors}
    medians = {kernel: _median(errors, 1, kernel=kernel) for kernel in kernels}
    # vllm_fused_moe of vLLM 0.22 is not linear even in its balanced rows (18.7 % fit error): no law of this form.
    assert medians.pop("vllm_fused_moe") > 0.1
    assert max(medians.values()) < 0.085


def test_expert_costs_agree_with_bytes_over_bandwidth(
    errors: list[tuple[KernelTable, np.ndarray, np.ndarray, KernelLaw]],
) -> None:
    whole = [
        e for e in errors if e[0].expert_parallel == 1 and e[0].tensor_parallel == 1 and e[0].kernel != "vllm_fused_moe"
    ]
    shares = []
    for table, _, _, law in whole:
        achieved = 3 * 7168 * 3072 * WEIGHT_BYTES[table.dtype] / law.per_expert_s
        shares.append(achieved / BANDWIDTH[table.system])
    # Reading an expert once at 60 to 100 % of the memory's specified rate explains the per-expert cost.
    assert min(shares) > 0.55 and max(shares) < 1.0
    assert 0.75 < float(np.median(shares)) < 0.97


def test_balanced_routing_touches_every_pick_until_all_are_touched() -> None:
    for m in (1, 2, 8, 32, 64, 512):
        assert balanced_workload(EXPERTS, TOP_K, m) == min(EXPERTS, TOP_K * m)
    assert balanced_workload(EXPERTS, TOP_K, 4, 8) == 3


def test_power_law_loads_add_up_and_are_reproducible() -> None:
    one = power_law_workload(EXPERTS, TOP_K, 64, 1, 1.2, draws=4, seed=3)
    assert one == power_law_workload(EXPERTS, TOP_K, 64, 1, 1.2, draws=4, seed=3)
    assert one < exact.mean_unique(EXPERTS, TOP_K, 64)
    assert power_law_workload(EXPERTS, TOP_K, 1, 8, 1.01) == 1.0
    assert power_law_workload(EXPERTS, TOP_K, 1024, 8, 1.01) <= 48


def test_gb300_layer_law() -> None:
    # fizban007 DETAILS.md: one layer of DeepSeek-V4.1-Flash, 36.8, 149.8 and 742.2 us at 1, 8 and 64 tokens of random
    # routing: 19.6 us + unique x 18.8 MB / 6.56 TB/s within 3 %.
    law = KernelLaw(19.6e-6, 18.8e6 / 6.56e12, 0.0)
    unique = np.asarray([exact.mean_unique(384, 6, m) for m in (1, 8, 64)])
    measured = np.asarray([36.8e-6, 149.8e-6, 742.2e-6])
    assert np.abs(law.time_s(unique, np.zeros(3)) / measured - 1.0).max() < 0.035


def test_broken_kernel_tables_are_refused(tmp_path: Path) -> None:
    bad = tmp_path / "k.csv"
    bad.write_text("system,us_1\nx,1.0\n")
    with pytest.raises(IngestError, match="line 2"):
        read_kernel_tables(bad)
    bad = tmp_path / "k.csv.gz"
    bad.write_bytes(b"not gzip")
    with pytest.raises(IngestError, match="cannot be read"):
        read_kernel_tables(bad)
