"""A draw's moments by series are those of the law; what a series cannot give is the law itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twin.lane.catalogue import catalogue_roots, load_lane, names
from twin.planning.predict import CellRequest, make_predictor
from twin.routing import moments
from twin.routing.batch import RoutingNoise, RoutingParameters, RoutingShape, draw_experts
from twin.routing.chebyshev import series
from twin.routing.law import Array
from twin.routing.moments import draw_moments
from twin.step.builders import build_step_graph
from twin.step.fast import step_times
from twin.step.model import draw_step_s

V41 = RoutingShape(layers=40, experts=384, top_k=6)
SAMPLES = 600


def _weights(centre: float, log_sd: float) -> Array:
    normal = np.random.default_rng(1).standard_normal(SAMPLES)
    return np.asarray(centre * np.exp(log_sd * normal))


@given(
    beta=st.floats(0.3, 1.0), centre=st.floats(0.05, 2.0), log_sd=st.floats(1e-6, 0.6), streams=st.sampled_from([1, 4, 32, 512]),
    accepted=st.floats(1.0, 6.0), rejected=st.floats(0.1, 8.0), cold=st.sampled_from([0, 1, 99, 300]),
    share=st.floats(0.0, 1.0), skew=st.floats(0.0, 3.0), drawn_share=st.booleans(),
)  # fmt: skip
def test_draws_are_those_of_the_law(
    beta: float, centre: float, log_sd: float, streams: int, accepted: float, rejected: float, cold: int, share: float, skew: float,
    drawn_share: bool,
) -> None:  # fmt: skip
    """Ten digits of the union, whatever is asked: the error allowed is that of a series' last terms."""
    shares = share * np.linspace(0.5, 1.0, SAMPLES) if drawn_share else share
    parameters = RoutingParameters(beta, _weights(centre, log_sd), cold_share=shares, stream_skew=skew)
    what = {"streams": streams, "accepted_rows": accepted, "rejected_rows": rejected, "cold_experts": cold}
    noise = RoutingNoise.draw(0, V41.layers, SAMPLES)
    drawn = draw_experts(V41, parameters, **what, noise=noise)  # type: ignore[arg-type]
    # Rows with samples are not for a series: this is the law.
    what["accepted_rows"] = np.full(SAMPLES, accepted)  # type: ignore[assignment]
    exact = draw_experts(V41, parameters, **what, noise=noise)  # type: ignore[arg-type]
    assert drawn.unique == pytest.approx(exact.unique, rel=1e-9)
    assert drawn.cold == pytest.approx(exact.cold, rel=1e-8, abs=1e-9)
    assert drawn.hot + drawn.cold == pytest.approx(drawn.unique, rel=1e-12)


def test_many_samples_are_summed_from_a_series_and_few_are_not() -> None:
    def is_series(samples: int, **change: object) -> bool:
        parameters = replace(RoutingParameters(0.747, _weights(0.8, 0.2)[:samples]), **change)  # type: ignore[arg-type]
        found = draw_moments(V41, parameters, 4, 2.1, 3.9, 99)
        return found.mean.__qualname__.startswith("_of")

    assert is_series(SAMPLES, cold_share=np.full(SAMPLES, 0.1))
    assert is_series(SAMPLES) and not is_series(moments.MANY - 1)
    assert not is_series(SAMPLES, diversity=np.full(SAMPLES, 0.5))
    assert not is_series(SAMPLES, rejected_weight=np.full(SAMPLES, 0.5))


def test_a_draw_does_not_depend_on_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = RoutingParameters(0.747, _weights(0.8, 0.2), cold_share=0.05)
    noise = RoutingNoise.draw(0, V41.layers, SAMPLES)

    def drawn() -> Array:
        return draw_experts(V41, parameters, streams=4, accepted_rows=2.1, rejected_rows=3.9, cold_experts=99, noise=noise).cold  # fmt: skip

    whole = drawn()
    monkeypatch.setattr(moments, "BLOCK_ELEMENTS", 40 * 7)
    assert drawn() == pytest.approx(whole, rel=1e-13)


def test_a_series_is_exact_where_it_is_smooth_and_refuses_a_kink() -> None:
    x = np.linspace(-1.0, 3.0, 50)

    def size(values: Array) -> Array:
        return np.max(np.abs(values), axis=1, keepdims=True)

    found = series(lambda t: np.stack([np.exp(t), 1.0 + t**3]), size, x)
    assert found is not None and len(found.terms) < 28
    assert found.at(slice(0, 2), slice(0, 50)) == pytest.approx(np.stack([np.exp(x), 1.0 + x**3]), abs=1e-11)
    cubic = series(lambda t: (1.0 + t**3)[None], size, x)
    assert cubic is not None and len(cubic.terms) == 4
    assert series(lambda t: np.abs(t)[None], size, x) is None
    assert series(lambda t: t[None], size, np.ones(9)) is None


@pytest.mark.parametrize("lane", names("lanes", catalogue_roots()))
def test_step_times_alone_are_those_of_the_resolved_step(lane: str) -> None:
    """Durations that take the place of the draws change no bit, and no lane reads what is not drawn."""
    found = load_lane(lane, catalogue_roots())
    predictor = make_predictor(found, found.policy.traffic, catalogue_roots(), samples=20)
    request = CellRequest(0 if found.checkpoint.draft is None else 3, 2, "token", 1024)
    _, durations = predictor.resolve(request)
    alone = draw_step_s(predictor.lane, predictor.traffic, predictor.values, predictor.batch(request), predictor._noise)
    assert np.array_equal(alone, step_times(build_step_graph(predictor.lane, request.k), durations))
