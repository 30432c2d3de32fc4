"""Every model that is read from a file: none without a strategy, and what all of them promise."""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Iterator

import pytest
import strategies
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import twin
from twin.lane.catalogue import lane_sha256
from twin.lane.lane import Lane
from twin.lane.sourced import Strict

NAMES = sorted(strategies.STRATEGIES)
every_model = pytest.mark.parametrize("name", NAMES)
few = settings(max_examples=10)
#: read from files and never written back: times come with a unit and are kept as seconds
READ_ONLY = "twin.planning.study."
#: what an extra brings; a module that needs one may be missing
EXTRAS = {"matplotlib", "emcee", "pyarrow", "distributed", "starlette", "uvicorn", "jinja2", "httpx"}


def _subclasses(model: type[Strict]) -> Iterator[type[Strict]]:
    for child in model.__subclasses__():
        yield child
        yield from _subclasses(child)


def test_no_model_is_without_a_strategy() -> None:
    for module in pkgutil.walk_packages(twin.__path__, "twin."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            assert (error.name or "").split(".")[0] in EXTRAS, f"{module.name}: {error}"
    found = {f"{m.__module__}.{m.__qualname__}" for m in _subclasses(Strict) if m.__module__.startswith("twin.")}
    assert found == set(NAMES), "register the model in tests/strategies.py (or take it out)"


@pytest.mark.parametrize("name", [n for n in NAMES if not n.startswith(READ_ONLY)])
@settings(max_examples=20)
@given(data=st.data())
def test_a_model_survives_its_own_dump(name: str, data: st.DataObject) -> None:
    model = strategies.model(name)
    one = data.draw(strategies.models(name))
    assert model.model_validate(one.model_dump()) == one
    assert model.model_validate_json(one.model_dump_json()) == one


@every_model
@few
@given(data=st.data())
def test_a_model_refuses_what_it_does_not_know(name: str, data: st.DataObject) -> None:
    raw = data.draw(strategies.raw(name))
    with pytest.raises(ValidationError):
        strategies.model(name).model_validate(raw | {"no_such_key": 1})


@every_model
@few
@given(data=st.data())
def test_a_model_cannot_be_changed(name: str, data: st.DataObject) -> None:
    one = data.draw(strategies.models(name))
    with pytest.raises(ValidationError):
        setattr(one, next(iter(type(one).model_fields)), None)


@every_model
@few
@given(data=st.data(), number=st.sampled_from([math.inf, -math.inf, math.nan]))
def test_a_model_refuses_numbers_without_end(name: str, data: st.DataObject, number: float) -> None:
    raw = data.draw(strategies.raw(name))
    floats = sorted(key for key, value in raw.items() if isinstance(value, float))
    written = sorted(
        key for key, value in raw.items() if isinstance(value, dict) and "kind" in value and "source" in value
    )
    for key in floats:
        with pytest.raises(ValidationError):
            strategies.model(name).model_validate(raw | {key: number})
    for key in written:
        with pytest.raises(ValidationError):
            strategies.model(name).model_validate(raw | {key: raw[key] | {"value": number}})


@few
@given(strategies.models("twin.lane.lane.Lane"))
def test_a_lane_is_told_by_its_content(lane: Lane) -> None:
    assert lane_sha256(Lane.model_validate(lane.model_dump())) == lane_sha256(lane)
    other = lane.model_copy(update={"title": lane.title + "x"})
    assert lane_sha256(other) != lane_sha256(lane)
