"""ITL, TPOT and acceptance belong together: TPOT = ITL / tokens per step, within 3 %, or the run is flagged."""

from __future__ import annotations

import hypothesis.strategies as st
import ingest_build as build
import pytest
from hypothesis import given

from twin.ingest.meaning import IDENTITY_TOLERANCE, settle
from twin.ingest.model import Cell
from twin.ingest.registry import read_file

steps = st.floats(1e-3, 1.0)
lengths = st.floats(1.2, 9.0)


def codes(cell: Cell) -> set[str]:
    return {flag.code for flag in cell.flags}


@given(steps, lengths, st.floats(-0.029, 0.029))
def test_a_chunk_is_a_step(step_s: float, kept: float, off: float) -> None:
    cell = Cell("c", itl_s=step_s, itl_unit="chunk", tpot_s=step_s / kept / (1 + off), tokens_per_step=kept)
    settle(cell)
    assert cell.step_s == step_s and cell.step_definition == "chunk_interval"
    assert "identity-failed" not in codes(cell) and not cell.doubt


@given(steps, lengths, st.floats(0.04, 0.5))
def test_a_run_that_fails_is_flagged_and_gives_no_step(step_s: float, kept: float, off: float) -> None:
    # ITL too short by `off`, but not by so much that it looks like one sample a token.
    itl = step_s * (1 - off)
    if abs(itl * kept / step_s - 1) <= IDENTITY_TOLERANCE or abs(itl / (step_s / kept) - 1) <= IDENTITY_TOLERANCE:
        return
    cell = settle(Cell("c", itl_s=itl, itl_unit="chunk", tpot_s=step_s / kept, tokens_per_step=kept))
    assert "identity-failed" in codes(cell)
    assert cell.step_s is None and cell.doubt


@given(steps, lengths)
def test_a_client_that_spreads_chunks_over_tokens(step_s: float, kept: float) -> None:
    tpot = step_s / kept
    cell = settle(Cell("c", itl_s=tpot, itl_unit="chunk", tpot_s=tpot, tokens_per_step=kept))
    assert cell.itl_unit == "token" and "itl-per-token" in codes(cell) and cell.step_s is None
    assert cell.tok_s_per_stream == pytest.approx(kept / step_s)


@given(steps, lengths)
def test_acceptance_from_the_ratio_is_said_to_be_derived(step_s: float, kept: float) -> None:
    cell = settle(Cell("c", itl_s=step_s, itl_unit="chunk", tpot_s=step_s / kept))
    assert cell.tokens_per_step == pytest.approx(kept) and cell.acceptance_source == "itl_over_tpot"
    assert "acceptance-derived" in codes(cell)


def test_without_speculation_the_step_is_the_tpot() -> None:
    cell = settle(Cell("c", k=0, itl_s=0.016, itl_unit="chunk", tpot_s=0.016))
    assert cell.step_s == 0.016 and cell.tokens_per_step == 1.0


def test_survival_gives_tokens_per_step() -> None:
    cell = settle(Cell("c", survival=(0.8, 0.6, 0.4)))
    assert cell.tokens_per_step == pytest.approx(2.8)


def test_more_than_k_plus_one_is_impossible() -> None:
    cell = settle(Cell("c", k=3, tokens_per_step=4.2, acceptance_source="run"))
    assert "impossible-acceptance" in codes(cell) and cell.exclude


def test_concurrency_asked_and_achieved() -> None:
    reached = settle(Cell("c", concurrency_asked=8, concurrency_achieved=7.6))
    assert "concurrency-not-reached" not in codes(reached)
    short = settle(Cell("c", concurrency_asked=64, concurrency_achieved=41.2))
    assert "concurrency-not-reached" in codes(short)


def test_a_mean_above_the_median_is_interference() -> None:
    cell = settle(Cell("c", itl_s=0.093, itl_median_s=0.060, itl_unit="chunk", tpot_s=0.0322, tokens_per_step=2.88))
    assert cell.step_s == 0.060 and "prefill-interference" in codes(cell)


def test_settling_twice_changes_nothing() -> None:
    once = settle(Cell("c", itl_s=0.012, itl_unit="chunk", tpot_s=0.0033, tokens_per_step=3.65, k=5))
    flags, step = list(once.flags), once.step_s
    assert settle(once).flags == flags and once.step_s == step


def test_real_run_without_speculation() -> None:
    """InferenceX, MiniMax-M2.5 at 8 streams: mean TPOT 16.392615779661135 ms, mean ITL 16.392615859419287 ms."""
    (cell,) = read_file(build.FIXTURES / "real/vllm_bench_minimax-m2.5_conc8.json").cells
    assert cell.itl_s is not None and cell.tpot_s is not None
    assert cell.itl_s / cell.tpot_s == pytest.approx(1.0, abs=1e-6)
    assert cell.step_s == pytest.approx(0.016392615859419287)
    assert cell.k is None and "plain-decoding?" in codes(cell)


def test_real_run_with_speculation() -> None:
    """InferenceX, Kimi-K2.5 with MTP at 4 streams: 48.699 ms / 17.294 ms = 2.816 tokens a step, no counters."""
    (cell,) = read_file(build.FIXTURES / "real/inferencex_agg_kimik2.5_conc4.json").cells
    assert cell.tokens_per_step == pytest.approx(0.04869889880906398 / 0.017294128568510713)
    assert cell.acceptance_source == "itl_over_tpot"
    assert cell.tok_s_aggregate == pytest.approx(8 * 27.678011491816765)
