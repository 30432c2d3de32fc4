"""Traffic files: the shipped ones are sound, broken ones are refused with a next step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from acceptance_support import ROOTS
from hypothesis import given
from hypothesis import strategies as st

from twin.acceptance.counters import traffic_toml
from twin.acceptance.traffic import Tokens, load_traffic, parse_traffic, read_traffic, traffic_names
from twin.errors import TrafficError

NAMES = traffic_names(ROOTS)
GOOD = traffic_toml(load_traffic("prose", ROOTS))


def test_the_classes_of_the_evidence_are_there() -> None:
    expected = {"prose", "code", "mixed", "codegen-padded", "random-ids", "reasoning", "json", "pooled"}
    assert expected <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_number_has_a_source_and_survives_the_round_trip(name: str) -> None:
    traffic = load_traffic(name, ROOTS)
    assert parse_traffic(traffic_toml(traffic)) == traffic
    numbers = [traffic.stream_sd, traffic.routing.beta, traffic.routing.diversity, *traffic.routing.cold_share.values()]
    numbers += [p.mean for p in traffic.profiles if p.mean is not None]
    numbers += [n for t in (traffic.length.prompt, traffic.length.output) for n in (t.median, t.sigma) if n]
    assert all(n.source for n in numbers)
    for p in traffic.profiles:
        # A derived shape must carry the measured mean it was derived from.
        assert p.evidence == "measured" or p.mean is not None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("k = 5\n", "k = 4\n", "needs 4 values"),
        ('kind = "survival"', 'kind = "conditinal"', "kind"),
        ("0.72,", "1.72,", "between 0 and 1"),
        ("value = 2.85", "value = 2.95", "the mean says"),
        ("[routing]\n", "[routing]\nbetta = 1\n", "did you mean 'beta'"),
        ("schema_version = 1", "schema_version = 2", "schema_version"),
        ("k = 9\n", "k = 9\nk = 9\n", "not valid TOML"),
        ('name = "prose"', 'name = "../prose"', "name"),
        ("relative_sd = 0.02", "relative_sd = nan", "relative_sd"),
    ],
)
def test_a_broken_file_says_what_and_where(old: str, new: str, message: str) -> None:
    with pytest.raises(TrafficError, match=r"here\.toml") as caught:
        parse_traffic(GOOD.replace(old, new, 1), where="here.toml")
    assert message in str(caught.value)


def test_unknown_class_names_the_nearest() -> None:
    with pytest.raises(TrafficError, match="'prose'"):
        load_traffic("proze", ROOTS)


@pytest.mark.parametrize("name", ["../prose", "", ".hidden", "a/b", "a\0b"])
def test_a_name_cannot_leave_the_folder(name: str) -> None:
    with pytest.raises(TrafficError):
        load_traffic(name, ROOTS)


def test_the_first_root_wins(tmp_path: Path) -> None:
    folder = tmp_path / "scenarios" / "traffic"
    folder.mkdir(parents=True)
    (folder / "prose.toml").write_text(GOOD.replace("Prose from", "My prose from"), encoding="utf-8")
    assert load_traffic("prose", (tmp_path, *ROOTS)).description.startswith("My prose")


def test_file_and_class_name_must_agree(tmp_path: Path) -> None:
    path = tmp_path / "other.toml"
    path.write_text(GOOD, encoding="utf-8")
    with pytest.raises(TrafficError, match="must agree"):
        read_traffic(path)


@given(st.text(max_size=200))
def test_any_text_is_refused_without_a_traceback(text: str) -> None:
    with pytest.raises(TrafficError):
        parse_traffic(text)


def test_lengths_have_their_mean() -> None:
    rng = np.random.default_rng(0)
    lognormal = Tokens.model_validate({"median": {"value": 500}, "sigma": {"value": 0.6}})
    table = Tokens.model_validate({"histogram": [[100, 1], [300, 3]]})
    assert lognormal.draw(rng, 100_000).mean() == pytest.approx(lognormal.mean_tokens, rel=0.02)
    assert table.draw(rng, 100_000).mean() == pytest.approx(250, rel=0.02) == table.mean_tokens
