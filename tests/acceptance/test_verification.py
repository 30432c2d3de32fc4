"""Verification rules keep the target's distribution: enumeration on tiny vocabularies, chi-square on small ones."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from acceptance_support import distributions
from hypothesis import given, settings
from hypothesis import strategies as st

from twin.acceptance.verification import Chain, outcome, verify
from twin.errors import PolicyError

seeds = st.integers(0, 2**31)
alphas = st.sampled_from([0.15, 1.0, 8.0])


def chain(vocabulary: int, alpha_target: float, alpha_draft: float, seed: int) -> Chain:
    target = distributions(vocabulary, vocabulary, alpha_target, seed)
    return Chain(target, distributions(vocabulary, vocabulary, alpha_draft, seed + 1))


@settings(max_examples=25, deadline=None)
@given(seeds, alphas, alphas, st.sampled_from([(2, 1), (2, 4), (3, 3), (4, 2)]), st.sampled_from(["token", "block"]))
def test_exact_enumeration(seed: int, a: float, b: float, size: tuple[int, int], rule: str) -> None:
    vocabulary, k = size
    model = chain(vocabulary, a, b, seed)
    np.testing.assert_allclose(model.output(rule, k), model.target_output(k), atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(seeds, alphas, alphas, st.sampled_from([(2, 5), (3, 3), (4, 2)]))
def test_block_never_accepts_fewer_than_token(seed: int, a: float, b: float, size: tuple[int, int]) -> None:
    model = chain(size[0], a, b, seed)
    token, block = model.survival("token", size[1]), model.survival("block", size[1])
    assert block.sum() >= token.sum() - 1e-12


@given(seeds, alphas)
def test_block_is_token_at_k_1(seed: int, alpha: float) -> None:
    model = chain(3, alpha, 1.0, seed)
    np.testing.assert_allclose(model.survival("block", 1), model.survival("token", 1), atol=1e-12)
    # and both accept 1 - total variation distance
    distance = 0.5 * np.abs(model.target[0] - model.draft[0]).sum()
    assert model.survival("token", 1)[0] == pytest.approx(1 - distance)


def test_equal_models_accept_everything() -> None:
    rows = distributions(3, 3, 1.0, 5)
    model = Chain(rows, rows)
    for rule in ("token", "block"):
        np.testing.assert_allclose(model.survival(rule, 4), 1.0)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_disjoint_models_accept_nothing_and_keep_the_target(rule: str) -> None:
    target, draft = np.array([[1.0, 0.0]] * 2), np.array([[0.0, 1.0]] * 2)
    model = Chain(target, draft)
    np.testing.assert_array_equal(model.survival(rule, 3), 0.0)
    np.testing.assert_allclose(model.output(rule, 3), model.target_output(3))


def test_a_known_case_of_the_paper() -> None:
    # Sun et al., motivating example: target (1/3, 2/3), draft (2/3, 1/3) at every position, two drafts. Token-level
    # keeps 10/9 drafts in expectation, block verification 11/9.
    target, draft = np.array([[1 / 3, 2 / 3]] * 2), np.array([[2 / 3, 1 / 3]] * 2)
    model = Chain(target, draft)
    assert model.survival("token", 2).sum() == pytest.approx(10 / 9)
    assert model.survival("block", 2).sum() == pytest.approx(11 / 9)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_one_hot_target_is_greedy_whatever_the_rule(rule: str) -> None:
    # temperature 0: the target is certain, the draft is sampled
    target = np.eye(3)[[1, 2, 0]]
    draft = distributions(3, 3, 1.0, 3)
    for tokens in product(range(3), repeat=3):
        block = np.array(tokens)
        rows = Chain(target, draft).rows(block)
        chance, after = outcome(rule, *rows, block)
        greedy, best = outcome("greedy", *rows, block)
        np.testing.assert_allclose(chance, greedy, atol=1e-12)
        accepted = int(greedy.argmax())
        np.testing.assert_allclose(after[accepted], best[accepted], atol=1e-12)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_chi_square_of_the_running_algorithm(rule: str) -> None:
    # 20,000 steps over 3^3 outcomes; the statistic has 26 degrees of freedom, mean 26, sd 7.2: below 60 with 99.98 %.
    from scipy.stats import chi2

    model, k, steps = chain(3, 1.0, 1.0, 11), 2, 20_000
    rng = np.random.default_rng(0)
    counts = np.zeros((3, 3, 3))
    for _ in range(steps):
        block = [int(rng.choice(3, p=model.draft[0]))]
        block.append(int(rng.choice(3, p=model.draft[block[0]])))
        tokens = np.array(block)
        text = list(verify(rule, *model.rows(tokens), tokens, rng))
        while len(text) < k + 1:
            text.append(int(rng.choice(3, p=model.target[text[-1]])))
        counts[tuple(text)] += 1
    expected = model.target_output(k) * steps
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert chi2.sf(statistic, 26) > 1e-4


def test_verify_keeps_the_accepted_prefix() -> None:
    model = chain(4, 1.0, 1.0, 3)
    tokens = np.array([1, 2, 3])
    out = verify("token", *model.rows(tokens), tokens, np.random.default_rng(0))
    assert 1 <= len(out) <= 4
    np.testing.assert_array_equal(out[:-1], tokens[: len(out) - 1])


def test_unknown_rule_names_the_nearest() -> None:
    with pytest.raises(PolicyError, match="'block'"):
        outcome("blok", np.eye(2), np.eye(2)[:1], np.array([0]))
