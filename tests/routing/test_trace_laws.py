"""A trace's own unions from its law, for traces no fitted family made: real text, topics, bursts, copies at a distance.

Run with -s to see each layer's largest error over 2 to 16 tokens: on its own blocks, on other streams, and of the
one-exponent law.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.routing import trace_mechanisms as mechanisms
from twin.cli.placement import command as placement
from twin.routing.counts import RoutingTrace, read_trace
from twin.routing.evidence import UnionRow, read_union, shipped_union
from twin.routing.fitting import LENGTHS, LayerFit, MeasuredUnion, fit_trace, measured_unions

ALL_LENGTHS = range(2, 17)
TOKENS = 16_000


def _text() -> str:
    """The language reference that Python carries for its help(): 465,000 characters of English prose and examples."""
    topics = pytest.importorskip("pydoc_data.topics").topics
    return " ".join(topics[name] for name in sorted(topics))


def _half(trace: RoutingTrace, which: int) -> RoutingTrace:
    use = trace.stream % 2 == which
    return RoutingTrace(trace.experts[use], trace.stream[use], trace.source)


@pytest.fixture(scope="module")
def traces() -> dict[str, tuple[RoutingTrace, int]]:
    return {
        "words": (
            mechanisms.words(_text(), experts=128, top_k=8, own=(1.0, 0.7, 0.4), tokens=TOKENS), 128
        ),
        "topics": (mechanisms.topics(experts=384, top_k=6, stay=(0.5, 0.9, 0.99), tokens=TOKENS), 384),
        "bursts": (mechanisms.bursts(experts=128, top_k=6, share=(0.2, 0.5, 0.8), tokens=TOKENS), 128),
        "copies": (mechanisms.copies(experts=128, top_k=6, copied=(0.2, 0.5, 0.8), tokens=TOKENS), 128),
    }  # fmt: skip


def _largest(fit: LayerFit, trace: RoutingTrace) -> float:
    """Largest relative error of a layer's law against the unions a trace measures at 2 to 16 tokens."""
    unique = measured_unions(trace, fit.layer, ALL_LENGTHS)[0]
    return float(np.abs(np.asarray([fit.law.mean(m) for m in ALL_LENGTHS]) / unique - 1.0).max())


def _scatter(trace: RoutingTrace, layer: int) -> float:
    """Three standard errors of the difference of two halves of the streams, from the scatter between streams."""
    streams = [RoutingTrace(trace.experts[trace.stream == s], trace.stream[trace.stream == s], "") for s in
               np.unique(trace.stream)]  # fmt: skip
    unique = np.asarray([measured_unions(stream, layer, ALL_LENGTHS)[0] for stream in streams])
    relative = unique.std(axis=0, ddof=1) / unique.mean(axis=0)
    return float(3 * relative.max() * np.sqrt(4 / len(streams)))


def _one_exponent(fit: LayerFit, trace: RoutingTrace, experts: int) -> float:
    unique = measured_unions(trace, fit.layer, ALL_LENGTHS)[0]
    hit = np.log1p(-trace.experts.shape[2] / experts)
    law = -experts * np.expm1(hit * np.asarray(ALL_LENGTHS, dtype=float) ** fit.exponent.beta)
    return float(np.abs(law / unique - 1.0).max())


@pytest.mark.parametrize("name", ["words", "topics", "bursts", "copies"])
def test_a_trace_reproduces_its_own_unions_in_every_layer(
    traces: dict[str, tuple[RoutingTrace, int]], name: str
) -> None:
    trace, experts = traces[name]
    fits, halves = fit_trace(trace, experts), fit_trace(_half(trace, 0), experts)
    print(f"\n{trace.source}: {trace.experts.shape[0]} tokens, {experts} experts, top {trace.experts.shape[2]}")
    for fit, half in zip(fits, halves, strict=True):
        own, held_out, limit = _largest(fit, trace), _largest(half, _half(trace, 1)), _scatter(trace, fit.layer)
        print(
            f"  layer {fit.layer}: {fit.law.mean(6):.1f} at 6 tokens, own {own:.2%}, other streams {held_out:.2%} "
            f"(streams differ by {limit:.2%}), one exponent {_one_exponent(fit, trace, experts):.1%}"
        )
        assert own < 0.01  # 2 % asked for; lengths 5, 7, 9, 10, 11, 13, 14, 15 are not among the fitted
        # Half of the streams against the other half: 2 %, or what the streams themselves differ by.
        assert held_out < max(0.02, limit)
    assert len(fits) == trace.experts.shape[1] == 3
    assert not set(ALL_LENGTHS) <= set(LENGTHS)


def test_a_length_left_out_of_a_real_trace_is_predicted() -> None:
    # Unions that their authors (and in one case we) counted in ordered traces of three models: each length between the
    # shortest and the longest from the others. 34 lengths, median 0.2 %, largest 1.8 % (shell commands, 6 tokens).
    series: dict[tuple[str, str], list[UnionRow]] = {}
    for row in read_union(shipped_union()):
        if row.kind == "stream" and row.tokens and row.unique:
            series.setdefault(row.series, []).append(row)
    errors = []
    for (model, workload), rows in series.items():
        tokens, unique = (np.asarray([float(getattr(r, name)) for r in rows]) for name in ("tokens", "unique"))
        for i in np.flatnonzero((tokens > 1) & (tokens < tokens.max())):
            law = MeasuredUnion(rows[0].experts or 0, rows[0].top_k or 0, np.delete(tokens, i), np.delete(unique, i))
            errors.append(abs(law.mean(tokens[i]) / unique[i] - 1))
            print(f"  {model}, {workload}: {tokens[i]:.0f} tokens {errors[-1]:.2%}")
    assert len(errors) >= 30 and max(errors) < 0.02 and np.median(errors) < 0.004


def test_real_text_is_predicted_from_other_text(traces: dict[str, tuple[RoutingTrace, int]]) -> None:
    # The first half of the reference against the second: other subjects, the same words.
    trace, experts = traces["words"]
    first, second = (trace.stream < trace.stream[-1] // 2), (trace.stream >= trace.stream[-1] // 2)
    part, rest = (RoutingTrace(trace.experts[use], trace.stream[use], "part") for use in (first, second))
    for fit in fit_trace(part, experts):
        error = _largest(fit, rest)
        print(f"  layer {fit.layer}: other text {error:.2%}")
        assert error < 0.05


def test_these_traces_are_not_of_the_family(traces: dict[str, tuple[RoutingTrace, int]]) -> None:
    # One exponent passes none of the strongly local layers within 2 %: the points carry the law, not the family.
    for name, (trace, experts) in traces.items():
        assert max(_one_exponent(fit, trace, experts) for fit in fit_trace(trace, experts)) > 0.02, name


def test_order_is_what_is_measured(traces: dict[str, tuple[RoutingTrace, int]]) -> None:
    # The same tokens shuffled touch more experts: locality is in the order, popularity is in the counts.
    for name, (trace, experts) in traces.items():
        shuffled = RoutingTrace(trace.experts[np.random.default_rng(0).permutation(TOKENS)], trace.stream, trace.source)
        local, mixed = fit_trace(trace, experts)[2], fit_trace(shuffled, experts)[2]
        # Words seldom come back within six tokens; what they share is popularity, which shuffling keeps.
        assert mixed.law.mean(6) > (1.0 if name == "words" else 1.03) * local.law.mean(6), name


def test_the_command_reports_the_unions_of_a_file(tmp_path: Path, traces: dict[str, tuple[RoutingTrace, int]]) -> None:
    trace, experts = traces["words"]
    file = tmp_path / "words.npz"
    np.savez(file, experts=trace.experts.astype(np.int16), stream=trace.stream)
    again = read_trace(file)
    result = CliRunner().invoke(placement, [str(file), "--experts", str(experts), "--hot", "96", "--json"])
    assert result.exit_code == 0, result.output
    for layer in json.loads(result.stdout)["locality"]:
        unique, error, _ = measured_unions(again, layer["layer"], LENGTHS)
        assert layer["unique"] == pytest.approx(unique.tolist()) and layer["tokens"] == list(LENGTHS)
        assert layer["standard_error"] == pytest.approx(error.tolist())
