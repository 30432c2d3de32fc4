"""Design of experiments: what is suggested narrows the answer, and a known answer needs nothing."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from twin.errors import PolicyError
from twin.lane.catalogue import load_lane
from twin.planning.predict import CellRequest, make_predictor
from twin.planning.suggest import parse_question, suggest

USUAL = CellRequest(5, 1, "token", 2048)


def test_questions_are_read_and_refused():
    one, other = parse_question("k=7 vs k=5,c=8,verification=block", USUAL)
    assert (one.k, one.concurrency, other.k, other.concurrency, other.verification) == (7, 1, 5, 8, "block")
    for text in ("k=7", "k=7 vs j=5", "k=99 vs k=5", "c=0 vs c=1", "k=1 vs k=2 vs k=3"):
        with pytest.raises(PolicyError, match="--question"):
            parse_question(text, USUAL)


def test_every_suggestion_narrows_the_answer_and_the_best_is_first(roots):
    predictor = make_predictor(load_lane("tp4", roots), "mixed", roots)
    answer = suggest(predictor, predictor.calibration, "k=5 vs k=7", *parse_question("k=5 vs k=7", USUAL))
    assert 1 <= len(answer.suggestions) <= 3
    widths = [answer.suggestions[0].half_width_before, *(s.half_width_after for s in answer.suggestions)]
    assert all(after < before for before, after in pairwise(widths))
    gains = [a - b for a, b in pairwise(widths)]
    assert gains[0] >= max(gains) - 1e-12


def test_an_answer_without_uncertainty_needs_no_measurement(roots):
    predictor = make_predictor(load_lane("sidecar", roots), "mixed", roots)
    sure = predictor.calibration.model_copy(
        update={"covariance": (np.array(predictor.calibration.covariance) * 0).tolist()}
    )
    answer = suggest(predictor, sure, "same", USUAL, USUAL)
    assert answer.ratio == pytest.approx(1.0) and answer.suggestions == ()
