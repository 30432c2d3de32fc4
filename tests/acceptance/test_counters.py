"""Classes from what servers count."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
from acceptance_support import DATA, ROOTS
from hypothesis import given
from hypothesis import strategies as st

from twin.acceptance.counters import class_from, read_counters, traffic_toml
from twin.acceptance.model import resolve_acceptance
from twin.acceptance.traffic import load_traffic, parse_traffic
from twin.errors import IngestError

WINDOW = (DATA / "rhys101_speculation_c8_window.json").read_text()
METRICS = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {drafts}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="0"}} {first}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="1"}} {second}
"""


def test_a_counter_window() -> None:
    seen = read_counters(WINDOW)
    assert seen.drafts == 3197
    assert 1 + sum(seen.survival) == pytest.approx(3.57179, abs=1e-5)  # 8222 accepted over 3197 drafts, plus the bonus
    raw = json.loads(WINDOW)
    assert read_counters(json.dumps(raw["after"]), before=json.dumps(raw["before"])) == seen
    assert read_counters(json.dumps({"delta": raw["delta"]})) == seen


def test_metrics_pages_one_and_two() -> None:
    early, late = METRICS.format(drafts=100, first=70, second=40), METRICS.format(drafts=300, first=230, second=140)
    assert read_counters(early).survival == pytest.approx((0.7, 0.4))
    both = read_counters(late, before=early)
    assert both.drafts == 200
    assert both.survival == pytest.approx((0.8, 0.5))
    with pytest.raises(IngestError, match="restarted"):
        read_counters(early, before=late)


def test_a_log_line_has_rates_but_no_counts() -> None:
    line = (
        "SpecDecoding metrics: Mean acceptance length: 2.74, Accepted throughput: 13.40 tokens/s, "
        "Per-position acceptance rate: 0.579, 0.447, 0.316, 0.237, 0.158, Avg Draft acceptance rate: 34.7%"
    )
    seen = read_counters(line)
    assert seen.drafts is None
    assert 1 + sum(seen.survival) == pytest.approx(2.74, abs=0.005)


@pytest.mark.parametrize("text", ["", "nothing here", "{", "{}", "[]", '{"num_drafts_total": "x"}', "\x00"])
def test_other_text_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(IngestError):
        read_counters(text, where="file")


@given(st.text(max_size=300))
def test_any_text_is_refused_or_read(text: str) -> None:
    with contextlib.suppress(IngestError):
        read_counters(text)


def test_the_class_resolves_and_a_short_run_is_wide() -> None:
    like = load_traffic("mixed", ROOTS)
    seen = read_counters(WINDOW)
    traffic = class_from(seen, name="window", source="a file", verification="token", streams=8, like=like)
    assert parse_traffic(traffic_toml(traffic)) == traffic
    long = resolve_acceptance(traffic, 5, "token", trained_block=5)
    np.testing.assert_allclose(long.survival, seen.survival, atol=1e-9)
    page = METRICS.format(drafts=20, first=14, second=8)
    short = class_from(read_counters(page), name="short", source="a page", verification="token", streams=8, like=like)
    assert resolve_acceptance(short, 2, "token", trained_block=5).relative_sd > 1.03 * long.relative_sd
    assert short.profiles[0].counts is not None and short.profiles[0].counts.relative_sd() > 0.05
