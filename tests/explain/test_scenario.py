"""Settings and scenarios: what is read back is what was written, and a mistake is answered with the way out."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from explain_support import ROOTS
from hypothesis import given
from hypothesis import strategies as st

from twin.errors import CatalogueError, PolicyError, TwinError
from twin.planning.scenario import (
    Scenario,
    Setting,
    command_line,
    find_scenario,
    parse_setting,
    read_scenario,
    resolve,
    scenario_toml,
)

labels = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
settings_ = st.builds(
    Setting,
    lane=st.sampled_from(["sidecar", "tp4"]),
    label=labels,
    k=st.none() | st.integers(0, 64),
    verification=st.none() | st.sampled_from(["token", "block", "greedy"]),
    traffic=st.none() | st.sampled_from(["mixed", "codegen-padded"]),
    context_tokens=st.integers(1, 10**6),
    concurrency=st.integers(1, 65536),
    overrides=st.lists(st.sampled_from(["placement.hot=330", "links.sidecar.latency=8 us"]), max_size=2, unique=True),
)


@given(settings_)
def test_the_short_text_reads_back(setting: Setting) -> None:
    assert parse_setting(setting.spec()) == setting.model_copy(update={"label": ""})


@given(
    st.builds(
        Scenario,
        schema_version=st.just(1),
        title=labels.filter(bool),
        question=labels,
        seed=st.integers(0, 9),
        settings=st.lists(settings_, min_size=1, max_size=2),
    )
)
def test_the_file_reads_back(scenario: Scenario) -> None:
    import tomllib

    assert Scenario.model_validate(tomllib.loads(scenario_toml(scenario))) == scenario


def test_the_command_line_is_the_one_that_asks_the_same() -> None:
    setting = parse_setting("sidecar:k=5,links.sidecar.latency=8 us,traffic=mixed")
    words = shlex.split(command_line([setting], 3))
    assert words[:2] == ["twin", "predict"] and words[-2:] == ["--seed", "3"]
    assert words[words.index("--set") + 1] == "links.sidecar.latency=8 us"
    assert shlex.split(command_line([setting, setting], 0))[2:] == [setting.spec()] * 2


def test_defaults_hold_where_a_side_does_not_say() -> None:
    setting = parse_setting(
        "sidecar:k=3", {"k": 5, "traffic": "mixed", "overrides": ["placement.hot=300"], "concurrency": 2}
    )
    assert (setting.k, setting.traffic, setting.concurrency, setting.overrides) == (
        3,
        "mixed",
        2,
        ["placement.hot=300"],
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sidecar:k=five", "whole number"),
        ("sidecar:kk=5", "did you mean 'k'"),
        ("sidecar:verification=blok", "verification"),
        ("sidecar:5", "not key=value"),
        ("sidecar:k=65", "0 (plain decoding) to 64"),
        ("sidecar:context=0", "expected 1 to"),
        ("sidecar:streams=0", "expected 1 to"),
        ("sidecr:k=5", "did you mean 'sidecar"),
        ("sidecar:placement.hat=3", "placement.hot"),
        ("sidecar:placement.hot=384", "does not fit"),
        ("sidecar:traffic=../x", "plain name"),
        ("sidecar:" + "k=5," * 3 + "x" * 300 + ".y=1", "at most 200 characters"),
    ],
)
def test_a_mistake_is_answered_with_the_way_out(text: str, said: str) -> None:
    with pytest.raises(TwinError) as refusal:
        resolve(parse_setting(text), ROOTS)
    assert said in str(refusal.value)


def test_every_shipped_scenario_is_one() -> None:
    folder = ROOTS[-1] / "scenarios" / "reports"
    files = sorted(folder.glob("*.toml"))
    assert files
    for file in files:
        for setting in read_scenario(find_scenario(file.stem, ROOTS)).settings:
            resolve(setting, ROOTS)


def test_a_scenario_with_an_unknown_key_or_name_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('schema_version = 1\ntitle = "x"\nquestio = "?"\n[[settings]]\nlane = "tp4"\n')
    with pytest.raises(CatalogueError, match=r"x.toml: unknown key 'questio'; did you mean 'question'"):
        read_scenario(file)
    with pytest.raises(CatalogueError, match="did you mean 'one-stream'"):
        find_scenario("one-strem", ROOTS)
    with pytest.raises(PolicyError, match="unknown key"):
        parse_setting("tp4", {"nothing": 1})
