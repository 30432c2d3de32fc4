"""Cells with what a file cannot say filled in: refusals that name the flag, one fitting row a run, ids that differ."""

from __future__ import annotations

from pathlib import Path

import ingest_build as build
import pytest

from twin.errors import IngestError
from twin.fitting.receipts import parse_receipts, receipts_csv
from twin.ingest.fill import Fill
from twin.ingest.model import Cell, Found
from twin.ingest.receipts import receipts_of
from twin.ingest.registry import read_file

CONSTRUCTED = build.FIXTURES / "constructed"
FILL = Fill(lane="tp4", traffic="codegen-padded", verification="block")


def found(**values: object) -> Found:
    cell = Cell("one", **values)  # type: ignore[arg-type]
    return Found("x", "file.json", "0" * 64, [cell])


def test_rows_of_one_run_count_once() -> None:
    receipts = receipts_of([read_file(CONSTRUCTED / "vllm_bench_spec.json")], FILL)
    by = {r.quantity: r for r in receipts}
    assert set(by) == {"step_time", "tok_s_per_stream", "tok_s_aggregate", "tokens_per_step", "ttft"}
    assert [q for q, r in by.items() if r.use == "fit"] == ["step_time", "tokens_per_step", "ttft"]
    assert by["tok_s_aggregate"].reason == f"same run as {by['step_time'].id}; counted once"
    assert by["step_time"].value == pytest.approx(8.5) and by["step_time"].definition == "chunk_interval"
    assert (by["step_time"].k, by["step_time"].context_tokens, by["step_time"].output_tokens) == (7, 2048, 1024)
    assert "sha256:" in by["step_time"].source
    again = parse_receipts(receipts_csv(receipts))
    assert [(r.id, r.use, r.reason) for r in again] == [(r.id, r.use, r.reason) for r in receipts]
    assert [r.value for r in again] == pytest.approx([r.value for r in receipts])


def test_without_a_step_the_rate_is_for_fitting() -> None:
    receipts = receipts_of([found(k=0, concurrency_asked=1.0, context_tokens=0.0, tok_s_per_stream=50.0)], FILL)
    assert [(r.quantity, r.use) for r in receipts] == [("tok_s_per_stream", "fit")]


def test_identity_failure_keeps_rates_out_of_a_fit() -> None:
    receipts = receipts_of([read_file(CONSTRUCTED / "vllm_bench_identity_fails.json")], FILL)
    by = {r.quantity: r for r in receipts}
    assert (
        "step_time" not in by and by["tok_s_per_stream"].use == "exclude" and "+40.0%" in by["tok_s_per_stream"].reason
    )
    assert by["tokens_per_step"].use == "fit"


@pytest.mark.parametrize(
    ("change", "flags"),
    [
        ({"lane": None}, ["--lane"]),
        ({"traffic": None, "lane": None}, ["--lane", "--traffic"]),
        ({"verification": None}, ["--verification"]),
    ],
)
def test_missing_flags_are_named(change: dict[str, None], flags: list[str]) -> None:
    fill = Fill(**({"lane": "tp4", "traffic": "t", "verification": "block"} | change))
    with pytest.raises(IngestError, match="the file does not say, so pass") as refusal:
        receipts_of([read_file(CONSTRUCTED / "vllm_bench_spec.json")], fill)
    assert all(flag in str(refusal.value) for flag in flags)


def test_every_number_that_matters_is_asked_for() -> None:
    with pytest.raises(IngestError) as refusal:
        receipts_of([found(step_s=0.01)], Fill(lane="tp4", traffic="t"))
    for flag in ("--k", "--verification", "--concurrency", "--context"):
        assert flag in str(refusal.value)


def test_a_flag_against_the_file_is_refused() -> None:
    file = read_file(CONSTRUCTED / "vllm_bench_spec.json")
    with pytest.raises(IngestError, match=r"says k = 7, --k says 5"):
        receipts_of([file], Fill(lane="tp4", traffic="t", verification="block", k=5))
    with pytest.raises(IngestError, match=r"says 1 requests in flight, --concurrency says 4"):
        receipts_of([file], Fill(lane="tp4", traffic="t", verification="block", concurrency=4))


def test_verification_does_not_matter_without_drafts() -> None:
    (one,) = receipts_of(
        [found(k=0, step_s=0.01, concurrency_asked=1.0, context_tokens=9.0)], Fill(lane="l", traffic="t")
    )
    assert one.verification == "token"


def test_a_prefill_needs_no_draft_length() -> None:
    (one,) = receipts_of([found(prefill_tok_s=900.0, concurrency_asked=1.0, context_tokens=9.0)], Fill("l", "t"))
    assert (one.quantity, one.k, one.use) == ("prefill_tok_s", 0, "fit")


def test_ttft_is_for_fitting_only_alone_and_cold() -> None:
    alone = {"k": 0, "ttft_s": 0.3, "context_tokens": 2048.0}
    fill = Fill(lane="l", traffic="t")
    assert receipts_of([found(**alone, concurrency_asked=1.0)], fill)[0].use == "fit"
    assert "queueing" in receipts_of([found(**alone, concurrency_asked=8.0)], fill)[0].reason
    assert "prefix cache" in receipts_of([found(**alone, concurrency_asked=1.0, prefix_hit_share=0.5)], fill)[0].reason


def test_acceptance_that_is_not_the_runs_is_kept_out() -> None:
    receipts = receipts_of([read_file(CONSTRUCTED / "sglang_bench.jsonl")], Fill("tp4", "t", 5, "block"))
    accepted = [r for r in receipts if r.quantity == "tokens_per_step"]
    assert [r.use for r in accepted] == ["exclude", "exclude"] and "since its start" in accepted[0].reason


def test_the_achieved_load_replaces_one_that_was_not_reached() -> None:
    cell = found(k=0, step_s=0.01, concurrency_asked=64.0, concurrency_achieved=41.2, context_tokens=9.0)
    assert receipts_of([cell], Fill(lane="l", traffic="t"))[0].concurrency == 41


def test_same_file_twice_has_different_ids() -> None:
    receipts = receipts_of([read_file(CONSTRUCTED / "vllm_bench_spec.json")] * 2, FILL)
    assert len({r.id for r in receipts}) == len(receipts) == 10


def test_batch_tokens_by_k_or_by_concurrency() -> None:
    by_k = receipts_of([read_file(CONSTRUCTED / "step_cost.csv")], Fill("tp4", "t", 7, "block", context_tokens=2048))
    assert [(r.k, r.concurrency) for r in by_k] == [(7, 1), (7, 2), (7, 4)]
    by_c = receipts_of([read_file(CONSTRUCTED / "step_cost.csv")], Fill("tp4", "t", None, "block", 1, 2048))
    assert [r.k for r in by_c] == [0, 1, 3, 5, 7, 15, 31]


def test_batch_rows_that_fit_nothing_are_said() -> None:
    file = read_file(CONSTRUCTED / "step_cost.csv")
    receipts_of([file], Fill("tp4", "t", 7, "block", context_tokens=2048))
    assert any("6 tokens are not a whole number of streams" in note for note in file.notes)
    with pytest.raises(IngestError, match="no row fits"):
        receipts_of([file], Fill("tp4", "t", 40, "block", context_tokens=2048))
    with pytest.raises(IngestError, match=r"pass --k .* or --concurrency"):
        receipts_of([file], Fill("tp4", "t"))


def test_table_rate_of_several_streams_must_say_what_it_is_of() -> None:
    def cell() -> Found:
        return found(k=0, unclear_tok_s=800.0, concurrency_asked=4.0, context_tokens=9.0)

    with pytest.raises(IngestError, match="--tg-is"):
        receipts_of([cell()], Fill("l", "t"))
    assert receipts_of([cell()], Fill("l", "t", tg_is="aggregate"))[0].quantity == "tok_s_aggregate"
    assert receipts_of([cell()], Fill("l", "t", tg_is="per-stream"))[0].quantity == "tok_s_per_stream"


@pytest.mark.parametrize(("as_what", "value", "kept"), [("length", 3.6, 3.6), ("rate", 0.52, 3.6), ("rate", 52.0, 3.6)])
def test_table_acceptance_must_say_what_it_is(as_what: str, value: float, kept: float) -> None:
    def cell() -> Found:
        return found(unclear_accept=value, tok_s_per_stream=90.0, concurrency_asked=1.0, context_tokens=9.0)

    with pytest.raises(IngestError, match=r"--accept-is|--k"):
        receipts_of([cell()], Fill("l", "t", None, "token"))
    receipts = receipts_of([cell()], Fill("l", "t", 5, "token", accept_is=as_what))
    assert receipts[0].tokens_per_step == pytest.approx(kept)


@pytest.mark.parametrize(("value", "kept"), [(0.52, 3.6), (3.6, 3.6), (52.0, 3.6)])
def test_table_acceptance_by_what_its_value_admits(value: float, kept: float) -> None:
    cell = found(unclear_accept=value, tok_s_per_stream=90.0, concurrency_asked=1.0, context_tokens=9.0)
    assert receipts_of([cell], Fill("l", "t", 5, "token"))[0].tokens_per_step == pytest.approx(kept)


@pytest.mark.parametrize(
    ("four", "quantity", "rate"), [(400.0, "tok_s_per_stream", 400.0), (1600.0, "tok_s_aggregate", 1600.0)]
)
def test_table_rate_by_what_one_stream_shows(four: float, quantity: str, rate: float, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"prompt,C,TG,PP,accept\n2048,1,690,6400,5.9\n2048,4,{four},9900,5.9\n")
    receipts = receipts_of([read_file(path)], Fill("l", "t", 7, "block"))
    (one,) = [r for r in receipts if r.concurrency == 4 and r.quantity.startswith("tok_s")]
    assert (one.quantity, one.value, one.tokens_per_step) == (quantity, rate, 5.9) and "rate-read-as" in one.notes


def test_stage_times_are_for_fitting_only_without_drafts() -> None:
    cell = {"stages_s": {"experts": 0.004, "all_reduce": 0.001}, "concurrency_asked": 1.0, "context_tokens": 9.0}
    plain = receipts_of([found(**cell, k=0)], Fill("l", "t"))
    assert [(r.stage, r.use) for r in plain] == [("experts", "fit"), ("all_reduce_exposed", "exclude")]
    drafted = receipts_of([found(**cell, k=5)], Fill("l", "t", verification="token"))
    assert [r.use for r in drafted] == ["exclude", "exclude"] and "draft pass" in drafted[0].reason


def test_control_characters_and_surrogates_do_not_reach_the_table() -> None:
    cell = found(
        k=0, step_s=0.01, concurrency_asked=1.0, context_tokens=9.0, checkpoint="a\ud800\x1b[31m,b", date="x\n"
    )
    (one,) = receipts_of([cell], Fill("l", "t"))
    assert one.checkpoint == "a??[31m,b"
    receipts_csv([one]).encode()


def test_a_value_no_receipt_can_carry_is_named() -> None:
    cell = found(k=0, step_s=0.01, concurrency_asked=1e9, context_tokens=9.0)
    with pytest.raises(IngestError, match="value of concurrency cannot be a receipt"):
        receipts_of([cell], Fill("l", "t"))
