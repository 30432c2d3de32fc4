"""Draft work: passes, rows and the head's own expert union."""

from __future__ import annotations

import pytest
from acceptance_support import ROOTS

from twin.acceptance.drafter import draft_work
from twin.errors import PolicyError
from twin.lane.catalogue import load_entry
from twin.lane.checkpoint import Checkpoint, DraftHead

ENTRY = load_entry("checkpoints", "deepseek-v4.1-flash", ROOTS)
assert isinstance(ENTRY, Checkpoint) and ENTRY.draft is not None
BLOCK: DraftHead = ENTRY.draft
NESTED = BLOCK.model_copy(update={"kind": "autoregressive"})


def test_a_block_drafter_runs_once_an_autoregressive_head_k_times() -> None:
    block, nested = draft_work(BLOCK, streams=2, k=5), draft_work(NESTED, streams=2, k=5)
    assert (block.passes, block.rows_per_pass) == (1, 10)
    assert (nested.passes, nested.rows_per_pass) == (5, 2)
    assert nested.fixed_bytes * nested.passes == 5 * block.fixed_bytes
    assert nested.read_bytes > block.read_bytes


def test_the_union_of_the_head() -> None:
    assert draft_work(BLOCK, streams=1, k=1).experts_per_stage == pytest.approx(3.0)  # top 3 of 128, one row
    one, many = draft_work(BLOCK, streams=1, k=5), draft_work(BLOCK, streams=1000, k=5)
    assert 3 < one.experts_per_stage < 15
    assert many.experts_per_stage == pytest.approx(128, rel=1e-3)
    assert one.stages == 3
    assert draft_work(BLOCK, streams=4, k=5).experts_per_stage > one.experts_per_stage


def test_four_small_boxes_draft_in_the_measured_time() -> None:
    # 4.8 ms of a step at one stream on four GB10 at 232 GB/s each; the catalogue's fixed bytes come from this figure
    assert draft_work(BLOCK, streams=1, k=5).read_bytes / (4 * 232e9) == pytest.approx(4.8e-3, rel=0.08)
    # 7.4 ms at eight streams was not used for it
    assert draft_work(BLOCK, streams=8, k=5).read_bytes / (4 * 232e9) == pytest.approx(7.4e-3, rel=0.15)


def test_no_draft_is_no_work() -> None:
    assert draft_work(BLOCK, streams=3, k=0).read_bytes == 0
    with pytest.raises(PolicyError):
        draft_work(BLOCK, streams=0, k=5)
