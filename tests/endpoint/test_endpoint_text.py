"""Filler and counting: the text that leaves has exactly the tokens that usage says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twin.endpoint.text import block_names, cut_at_stop, filler, tokens_of

small = st.integers(0, 200)


@given(small, small, small)
def test_filler_has_the_tokens_it_says(offset: int, start: int, count: int) -> None:
    assert len(tokens_of(filler(offset, start, count))) == count


@given(small, st.lists(st.integers(1, 6), max_size=40))
def test_chunks_put_together_are_the_whole(offset: int, chunks: list[int]) -> None:
    parts, at = [], 0
    for tokens in chunks:
        parts.append(filler(offset, at, tokens))
        at += tokens
    assert "".join(parts) == filler(offset, 0, at)


@given(small, st.integers(1, 300), st.lists(st.sampled_from(["word", "s a", "zzz", "tok", "e", "right length one"])))
def test_stop_texts_are_found_where_they_first_end(offset: int, tokens: int, stops: list[str]) -> None:
    text = filler(offset, 0, tokens)
    ends = [(text.find(s) + len(s), text.find(s)) for s in stops if s in text]
    found = cut_at_stop(offset, tokens, stops)
    assert (found is None) == (not ends)
    if found is not None:
        end, at = min(ends)
        assert found[1] == text[:at]
        assert found[0] == len(tokens_of(text[:end]))


@given(st.lists(st.integers(0, 9), max_size=60), st.lists(st.integers(0, 9), max_size=60))
def test_blocks_are_shared_as_far_as_prompts_are(first: list[int], second: list[int]) -> None:
    same = 0
    while same < min(len(first), len(second)) and first[same] == second[same]:
        same += 1
    a, b = block_names(first, 4), block_names(second, 4)
    shared = sum(x == y for x, y in zip(a, b, strict=False))
    assert shared == min(same // 4, len(a), len(b))
