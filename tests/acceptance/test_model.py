"""Resolved acceptance: measured facts, properties, draws."""

from __future__ import annotations

import numpy as np
import pytest
from acceptance_support import ROOTS, TRAINED
from hypothesis import given
from hypothesis import strategies as st

from twin.acceptance.model import Acceptance, resolve_acceptance
from twin.acceptance.traffic import load_traffic, traffic_names
from twin.errors import PolicyError

CLASSES = {name: load_traffic(name, ROOTS) for name in traffic_names(ROOTS)}
names = st.sampled_from(sorted(CLASSES))
ks = st.integers(0, 20)
rules = st.sampled_from(["token", "block", "greedy"])


def acceptance(name: str, k: int, rule: str) -> Acceptance:
    return resolve_acceptance(CLASSES[name], k, rule, trained_block=TRAINED)


# The lane's own measurements. Tolerance: half of the last digit that the source gives, wider where it says "about".
@pytest.mark.parametrize(
    ("name", "k", "rule", "tokens", "tolerance"),
    [
        ("codegen-padded", 5, "token", 5.1, 0.05),
        ("codegen-padded", 3, "token", 3.7, 0.05),  # measured at 8 streams under a k-schedule
        ("codegen-padded", 7, "block", 5.92, 0.05),  # 1.16 times 5.1, on the tensor-parallel lane
        ("codegen-padded", 9, "block", 5.875, 0.175),  # 5.70 to 6.05 over prompt sizes
        ("mixed", 5, "token", 2.1, 0.1),  # "about"
        ("prose", 5, "token", 2.85, 0.005),
        ("prose", 9, "block", 2.60, 0.005),
        ("code", 5, "token", 3.83, 0.005),
        ("code", 9, "block", 3.66, 0.005),
        ("pooled", 5, "token", 3.20, 0.005),
        ("pooled", 5, "block", 3.26, 0.005),
        ("random-ids", 5, "token", 4.95, 0.35),  # four repeats: 4.69 to 5.14, two more at 4.7 and 5.3
        ("reasoning", 1, "token", 1.75, 0.01),
        ("reasoning", 3, "token", 2.62, 0.02),
        ("mixed-8k", 1, "token", 1.71, 0.01),
        ("news", 3, "token", 2.66, 0.02),  # 2.65 to 2.674
    ],
)
def test_measured_tokens_per_step(name: str, k: int, rule: str, tokens: float, tolerance: float) -> None:
    assert acceptance(name, k, rule).tokens_per_step == pytest.approx(tokens, abs=tolerance)


def test_position_1_of_prose_falls_with_k() -> None:
    assert acceptance("prose", 5, "token").survival[0] == pytest.approx(0.72, abs=0.005)
    assert acceptance("prose", 9, "block").survival[0] == pytest.approx(0.61, abs=0.005)


@pytest.mark.parametrize("name", ["prose", "code", "pooled"])
def test_conditionals_of_long_blocks_lie_in_the_measured_bands(name: str) -> None:
    # "0.62-0.85 to position 5, 0.51-0.63 from 7" over the served classes. Position 1 of prose was measured at 0.61,
    # under the band by one unit of its last digit, hence 0.01.
    c = acceptance(name, 9, "block").conditional
    assert c[:5].min() >= 0.62 - 0.011
    assert c[:5].max() <= 0.85 + 0.005
    assert c[6:].min() >= 0.51 - 0.005
    assert c[6:].max() <= 0.63 + 0.005


def test_block_gains_two_per_cent_pooled_and_one_to_five_by_class() -> None:
    token_only = CLASSES["pooled"].model_copy(update={"profile": CLASSES["pooled"].profile[:1]})
    converted = resolve_acceptance(token_only, 5, "block", trained_block=TRAINED)
    assert converted.tokens_per_step == pytest.approx(3.26, abs=0.005)
    for name in ("prose", "code", "mixed"):
        gain = acceptance(name, 5, "block").tokens_per_step / acceptance(name, 5, "token").tokens_per_step - 1
        assert 0.01 <= gain <= 0.05


@given(names, ks, rules)
def test_bounds_and_order(name: str, k: int, rule: str) -> None:
    a = acceptance(name, k, rule)
    assert a.survival.shape == (k,)
    assert 1.0 <= a.tokens_per_step <= k + 1
    assert a.tokens_per_step == pytest.approx(1 + a.survival.sum())
    assert np.all(np.diff(a.survival) <= 1e-12)
    assert np.all((a.survival >= 0) & (a.survival <= 1))
    assert a.relative_sd >= 0


@given(names, ks)
def test_block_never_keeps_less_than_token(name: str, k: int) -> None:
    token, block = acceptance(name, k, "token"), acceptance(name, k, "block")
    assert block.tokens_per_step >= token.tokens_per_step - 1e-12
    if k <= 1 or CLASSES[name].profiles[0].temperature == 0:
        assert block.tokens_per_step == pytest.approx(token.tokens_per_step)


def test_no_draft_keeps_exactly_one_token() -> None:
    a = acceptance("code", 0, "block")
    assert a.tokens_per_step == 1.0
    assert np.all(a.draw_mean(np.zeros((2, 5)), streams=1, steps=1) == 1.0)
    assert np.all(a.draw_step(np.random.default_rng(0), 3, 4) == 1.0)


def test_beyond_the_trained_block_it_warns_and_far_from_data_it_widens() -> None:
    near, far, further = (acceptance("prose", k, "token") for k in (5, 12, 16))
    assert not near.warnings
    assert any("trained" in w for w in far.warnings)
    assert near.relative_sd < far.relative_sd < further.relative_sd
    assert acceptance("prose", 4, "token").relative_sd > near.relative_sd


def test_every_answer_names_its_source() -> None:
    assert all(acceptance(name, k, "token").sources for name in CLASSES for k in (1, 5, 9))


@pytest.mark.parametrize(("k", "rule"), [(-1, "token"), (65, "token"), (5, "tokens")])
def test_impossible_policies_are_refused(k: int, rule: str) -> None:
    with pytest.raises(PolicyError):
        acceptance("code", k, rule)


def test_draws_of_a_step_have_the_profile() -> None:
    a = acceptance("code", 5, "token")
    kept = a.draw_step(np.random.default_rng(1), 4, 50_000)
    assert kept.shape == (4, 50_000)
    assert kept.min() >= 1 and kept.max() <= 6
    for position, survival in enumerate(a.survival, start=1):
        # 200,000 draws: sd below 0.0012
        assert (kept > position).mean() == pytest.approx(survival, abs=0.005)


def test_draws_of_a_run_have_the_stated_spread() -> None:
    a = acceptance("prose", 5, "token")
    z = np.random.default_rng(2).standard_normal((2, 40_000))
    long, short = (a.draw_mean(z, streams=s, steps=n) for s, n in ((10_000, 10_000), (1, 50)))
    assert long.std() / long.mean() == pytest.approx(a.relative_sd, rel=0.05)
    run = np.hypot(a.stream_sd, a.step_sd / a.tokens_per_step / np.sqrt(50))
    assert short.std() / short.mean() == pytest.approx(np.hypot(a.relative_sd, run), rel=0.1)
    assert np.all((short >= 1) & (short <= 6))
    assert np.median(short) == pytest.approx(a.tokens_per_step, rel=0.01)
    both = a.draw_mean(z[0], streams=1, steps=50)
    assert both.std() == pytest.approx(short.std(), rel=0.05)
