"""The step table against the function it was built from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving_support import AnalyticStepTime

from twin.errors import PolicyError
from twin.serving.steptime import TableAxes, TableStepTime, interpolation_error

AXES = TableAxes(
    max_streams=64,
    rows_per_stream=(1, 4, 6),
    context_tokens=(0.0, 1024.0, 8192.0, 65536.0, 262144.0),
    prefill_tokens=(1, 512, 2048, 8192),
    prefill_context_tokens=(0.0, 8192.0, 65536.0),
    token_buckets=(64,),
)
SOURCE = AnalyticStepTime()
TABLE = TableStepTime(SOURCE, AXES, tolerance=0.005)


def test_every_stream_count_is_within_tolerance() -> None:
    points = [(s, s * r, c) for s in range(1, 65) for r in (1, 4, 6) for c in (0.0, 500.0, 30_000.0, 200_000.0)]
    worst = interpolation_error(TABLE, SOURCE, points)[0]
    assert abs(worst[1]) < 0.01, f"worst at (streams, rows, context) = {worst[0]}"


def test_jump_at_a_bucket_is_kept() -> None:
    """16 streams x 4 rows fill the bucket of 64 tokens, 17 x 4 do not fit."""
    for streams in (16, 17):
        assert TABLE.decode_s(streams, streams * 4, 1024.0) == pytest.approx(
            SOURCE.decode_s(streams, streams * 4, 1024.0)
        )


def test_building_is_cheaper_than_asking_everywhere() -> None:
    assert TABLE.calls < 64 * 3 * 5


@given(st.integers(1, 64), st.sampled_from([1, 4, 6]), st.integers(1, 8192), st.floats(0, 65536), st.floats(0, 262144))
def test_mixed_steps(streams: int, rows: int, chunk: int, chunk_context: float, context: float) -> None:
    exact = SOURCE.mixed_s(streams, streams * rows, context, chunk, chunk_context)
    assert TABLE.mixed_s(streams, streams * rows, context, chunk, chunk_context) == pytest.approx(exact, rel=0.01)
    assert TABLE.prefill_s(chunk, chunk_context) == pytest.approx(SOURCE.prefill_s(chunk, chunk_context), rel=0.01)


def test_rows_between_two_draft_lengths_lie_between_their_times() -> None:
    low, high = TABLE.decode_s(10, 40, 1000.0), TABLE.decode_s(10, 60, 1000.0)
    assert low < TABLE.decode_s(10, 50, 1000.0) < high


def test_chunks_beyond_the_table_go_on_in_proportion() -> None:
    assert TABLE.prefill_s(16384, 0.0) == pytest.approx(SOURCE.prefill_s(16384, 0.0), rel=0.01)


@pytest.mark.parametrize("broken", [{"max_streams": 0}, {"rows_per_stream": ()}, {"context_tokens": (5.0, 5.0)}])
def test_broken_axes_are_refused(broken: dict[str, object]) -> None:
    values = {name: getattr(AXES, name) for name in AXES.__dataclass_fields__}
    with pytest.raises(PolicyError):
        TableAxes(**(values | broken))
