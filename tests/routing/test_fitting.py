"""Locality from unions, counts and ordered traces; files that cannot be read."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twin.errors import IngestError, TwinError
from twin.routing.batch import RoutingNoise, RoutingParameters, RoutingShape, draw_experts
from twin.routing.counts import RoutingTrace, is_trace, read_counts, read_trace
from twin.routing.fitting import fit_exponent, fit_trace, layer_spread, measured_unions

ALL_LENGTHS = range(2, 17)


def local_trace(
    seed: int, *, experts: int = 128, top_k: int = 4, tokens: int = 9000, pull: tuple[float, ...] = (0.2, 0.35, 0.45)
) -> RoutingTrace:
    """Streams whose tokens are drawn towards what was used lately, one strength of pull a layer."""
    rng = np.random.default_rng(seed)
    ids = np.empty((tokens, len(pull), top_k), dtype=np.int64)
    stream = np.arange(tokens) // 250
    for layer, strength in enumerate(pull):
        popularity = np.log(rng.gamma(1.5, size=experts))
        lately = np.zeros(experts)
        for t in range(tokens):
            if t % 250 == 0:
                lately[:] = 0.0
            ids[t, layer] = np.argpartition(popularity + lately + rng.gumbel(size=experts), -top_k)[-top_k:]
            lately *= 0.9
            lately[ids[t, layer]] += strength
    return RoutingTrace(ids, stream, "simulated")


@pytest.fixture(scope="module")
def trace() -> RoutingTrace:
    return local_trace(1)


def test_a_trace_reproduces_its_own_unions_in_every_layer(trace: RoutingTrace) -> None:
    # Fitted at LENGTHS, asked at every length from 2 to 16: within 2 % for every layer.
    for fit in fit_trace(trace, 128):
        means, _, _ = measured_unions(trace, fit.layer, ALL_LENGTHS)
        for m, unique in zip(ALL_LENGTHS, means, strict=True):
            assert fit.law.mean(m) == pytest.approx(unique, rel=0.02)


def test_half_a_trace_predicts_the_other_half(trace: RoutingTrace) -> None:
    first = RoutingTrace(trace.experts[:4500], trace.stream[:4500], "first")
    second = RoutingTrace(trace.experts[4500:], trace.stream[4500:], "second")
    for fit in fit_trace(first, 128):
        means, _, _ = measured_unions(second, fit.layer, ALL_LENGTHS)
        for m, unique in zip(ALL_LENGTHS, means, strict=True):
            assert fit.law.mean(m) == pytest.approx(unique, rel=0.05)


def test_more_pull_is_a_smaller_exponent(trace: RoutingTrace) -> None:
    fits = fit_trace(trace, 128)
    betas = [fit.exponent.beta for fit in fits]
    assert betas == sorted(betas, reverse=True)
    for fit in fits:
        low, high = fit.exponent.interval
        assert low < fit.exponent.beta < high
    assert 0.0 < layer_spread(fits) < 0.5


def test_independent_tokens_have_exponent_one() -> None:
    rng = np.random.default_rng(0)
    ids = np.argsort(rng.random((6000, 1, 96)), axis=-1)[..., :4]
    fit = fit_trace(RoutingTrace(ids, np.zeros(6000, dtype=np.int64), "uniform"), 96)[0]
    low, high = fit.exponent.interval
    assert low - 0.01 <= 1.0 <= high + 0.01
    assert fit.law.mean(64) == pytest.approx(96 * (1 - (1 - 4 / 96) ** 64), rel=0.05)


@given(st.floats(0.3, 1.0), st.integers(16, 512), st.integers(1, 8))
def test_an_exponent_is_recovered(beta: float, experts: int, top_k: int) -> None:
    tokens = np.asarray([1.0, 2.0, 4.0, 8.0])
    unique = experts * (1 - (1 - top_k / experts) ** (tokens**beta))
    found = fit_exponent(experts, top_k, tokens, unique, np.full(4, 0.05))
    assert found.beta == pytest.approx(beta, abs=1e-6) and found.points == 3
    with pytest.raises(ValueError, match="more than one token"):
        fit_exponent(experts, top_k, np.ones(1), np.asarray([float(top_k)]))


def test_measured_classes_have_their_exponents() -> None:
    # J-M-Recipes unique_experts_vs_k.json, five classes within about 4 %: prose 0.74, code 0.77.
    tokens = np.asarray([2.0, 3.0, 4.0, 6.0, 8.0])
    prose = fit_exponent(384, 6, tokens, np.asarray([9.97, 13.44, 16.51, 22.09, 26.97]))
    code = fit_exponent(384, 6, tokens, np.asarray([10.29, 14.02, 17.36, 23.39, 28.41]))
    assert prose.beta == pytest.approx(0.739, abs=0.006) and code.beta == pytest.approx(0.772, abs=0.006)
    assert prose.interval[1] < code.interval[0]


def test_the_mean_of_maxima_is_more_than_the_maximum_of_means() -> None:
    # A step sums one maximum a layer (hot against cold leg): sampled layers give more than mean experts do.
    shape, noise = RoutingShape(40, 384, 6), RoutingNoise.draw(0, 40, 2000)
    parameters = RoutingParameters(beta=0.747, cold_share=0.12)
    draw = draw_experts(shape, parameters, streams=1, accepted_rows=6, rejected_rows=0, cold_experts=99, noise=noise)
    hot, cold = draw.hot * 3.0, draw.cold * 13.0  # us an expert, legs about balanced
    sampled = np.maximum(hot, cold).sum(axis=0).mean()
    of_means = np.maximum(hot.mean(axis=1), cold.mean(axis=1)).sum()
    assert sampled > 1.03 * of_means


def write_csv_trace(path: Path, trace: RoutingTrace) -> None:
    head = ["stream", "token", "layer", *(f"expert_{i}" for i in range(trace.experts.shape[2]))]
    lines = [",".join(head)]
    for t, token in enumerate(trace.experts):
        for layer, picks in enumerate(token):
            lines.append(",".join(map(str, [trace.stream[t], t, layer, *picks])))
    path.write_text("\n".join(lines) + "\n")


def test_traces_are_the_same_in_both_formats(tmp_path: Path) -> None:
    small = local_trace(3, tokens=40, experts=16, top_k=2, pull=(0.5, 1.0))
    write_csv_trace(tmp_path / "t.csv", small)
    np.savez(tmp_path / "t.npz", experts=small.experts.astype(np.int16), stream=small.stream)
    for name in ("t.csv", "t.npz"):
        again = read_trace(tmp_path / name)
        assert np.array_equal(again.experts, small.experts) and np.array_equal(again.stream, small.stream)
        assert is_trace(tmp_path / name)
    counts = small.counts(16)
    assert counts.routes.sum() == small.experts.size and counts.chosen(2).sum(axis=1) == pytest.approx([2.0, 2.0])


def test_counts_are_the_same_in_every_format(tmp_path: Path) -> None:
    rows = [[1, 2, 3], [4, 0, 6]]
    texts = {
        "a.json": json.dumps(rows), "b.json": json.dumps({"counts": rows}),
        "c.json": json.dumps({"0": rows[0], "1": rows[1]}),
        "d.json": json.dumps({"phases": {"prefill": {"0": [9, 9, 9]}, "decode": {"1": rows[1], "0": rows[0]}}}),
        "e.csv": "1,2,3\n4,0,6\n", "f.csv": "e0,e1,e2\n1,2,3\n4,0,6\n",
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        assert read_counts(tmp_path / name).routes.tolist() == rows
        assert not is_trace(tmp_path / name)
    with pytest.raises(IngestError, match="did you mean 'prefill'"):
        read_counts(tmp_path / "d.json", phase="prefil")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "[[1, 2], [3]]", "layer 1 has 1 experts"), ("a.json", "[[1, -2]]", "not a count"),
        ("a.json", "[[0, 0]]", "no routes"), ("a.json", '{"counts": 3}', "layers x experts"),
        ("a.json", "nonsense", "not JSON"),
        ("a.json", '[["x", 1]]', "not a number"), ("a.json", "[[1]]", "experts a layer"), ("a.json", "[]", "0 layers"),
        ("a.json", '{"x": [1, 2]}', "layer numbers"), ("a.json", "[[1, NaN]]", "not a count"),
        ("a.csv", "1,2\n3,x\n", "line 2"),
        ("a.csv", "", "0 layers"), ("a.json", "[" * 100_000, "not JSON"),
    ],
)  # fmt: skip
def test_broken_counts_are_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(IngestError, match=message):
        read_counts(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "columns token, layer"), ("token,layer,expert_0\n0,0,x\n", "line 2"),
        ("token,layer,expert_0\n0,0,1\n0,1,1\n1,0,1\n", "every token needs every layer"),
        ("token,layer,expert_0\n0,0,1\n", "tokens >= 2"), ("token,layer,expert_0\n0,0,-1\n1,0,2\n", "expert ids run"),
        ("token,layer,expert_0\n", "shape|empty"),
    ],
)  # fmt: skip
def test_broken_traces_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(IngestError, match=message):
        read_trace(tmp_path / "t.csv")


def test_broken_archives_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.npz"
    file.write_bytes(b"PK\x03\x04 not an archive")
    with pytest.raises(IngestError, match="NPZ"):
        read_trace(file)
    np.savez(file, ids=np.zeros((4, 2, 2), dtype=int))
    with pytest.raises(IngestError, match="no array `experts`"):
        read_trace(file)
    np.savez(file, experts=np.zeros((4, 2, 2)))
    with pytest.raises(IngestError, match="whole numbers"):
        read_trace(file)
    np.savez(file, experts=np.zeros((4, 2), dtype=int))
    with pytest.raises(IngestError, match="shape"):
        read_trace(file)
    np.savez(file, experts=np.asarray([{"a": 1}], dtype=object))
    with pytest.raises(IngestError, match=r"plain arrays|whole numbers"):
        read_trace(file)
    np.savez(file, experts=np.zeros((4, 2, 2), dtype=int), stream=np.zeros(3, dtype=int))
    with pytest.raises(IngestError, match="stream has shape"):
        read_trace(file)


@given(st.binary(max_size=200), st.sampled_from(["x.json", "x.csv", "x.npz"]))
def test_any_bytes_are_read_or_refused(data: bytes, name: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        for read in (read_counts, read_trace):
            with contextlib.suppress(TwinError):
                read(path)


def test_the_error_of_a_mean_is_between_passages() -> None:
    """Texts that change their expert pool every 960 tokens: the mean over 12 such traces scatters as the error says,
    within a factor 1.9 (twelve traces know their scatter to a fifth)."""
    rng = np.random.default_rng(5)

    def trace() -> RoutingTrace:
        parts = []
        for _ in range(20):
            pool = rng.choice(96, size=rng.integers(12, 48), replace=False)
            parts.append(np.stack([rng.choice(pool, 4, replace=False) for _ in range(960)]))
        ids = np.concatenate(parts)[:, None, :]
        return RoutingTrace(ids, np.zeros(len(ids), dtype=int), "made")

    found = [measured_unions(trace(), 0, (6,)) for _ in range(12)]
    scatter = float(np.std([float(mean[0]) for mean, _, _ in found], ddof=1))
    said = float(np.mean([float(error[0]) for _, error, _ in found]))
    assert 1 / 1.9 < said / scatter < 1.9


def test_passages_of_independent_blocks_say_what_blocks_say() -> None:
    rng = np.random.default_rng(6)
    ids = np.stack([rng.choice(64, 4, replace=False) for _ in range(48_000)])[:, None, :]
    trace = RoutingTrace(ids, np.zeros(len(ids), dtype=int), "made")
    _, error, blocks = measured_unions(trace, 0, (6,))
    distinct = np.asarray([len(set(ids[i : i + 6, 0].ravel())) for i in range(0, 48_000, 6)])
    assert float(error[0]) == pytest.approx(distinct.std(ddof=1) / np.sqrt(int(blocks[0])), rel=0.2)
