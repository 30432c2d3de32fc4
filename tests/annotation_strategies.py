"""Raw data of a pydantic model from what its annotations say: type, range, length, unit.

Rules between fields are not seen here; `strategies.py` states them by hand.
"""

from __future__ import annotations

import importlib
import math
import types
import typing
from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types as at
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from pydantic import BeforeValidator, StringConstraints
from pydantic.fields import FieldInfo

from twin.lane.sourced import Sourced, Strict

Raw = SearchStrategy[Any]

#: dotted name of a model -> what makes its raw data
STRATEGIES: dict[str, Callable[[], Raw]] = {}


def model(name: str) -> type[Strict]:
    """The class of a dotted name."""
    module, _, attribute = name.rpartition(".")
    found: type[Strict] = getattr(importlib.import_module(module), attribute)
    return found


def raw(name: str) -> Raw:
    """Valid raw data of a model."""
    return STRATEGIES[name]()


# --- texts and numbers ------------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12)
NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,9}", fullmatch=True)
#: a plausible unit and range by dimension, so that drawn lanes are like machines
_WRITTEN = {
    "time": ("us", 0.1, 500.0),
    "bytes": ("MB", 1.0, 1e4),
    "bandwidth": ("GB/s", 1.0, 1e4),
    "flops": ("TFLOPS", 1.0, 1e4),
    "time_per_byte": ("us/KiB", 0.001, 1.0),
    "power": ("W", 1.0, 2000.0),
    "money": ("USD", 0.0, 1e5),
    "number": ("", 1.0, 9.0),
}
KINDS = st.sampled_from(["spec", "measured", "derived", "assumed"])


def sourced(value: SearchStrategy[Any]) -> Raw:
    """An inline table of the catalogue around what `value` draws."""
    return st.fixed_dictionaries({"value": value, "source": st.just("a test"), "kind": KINDS})


def quantity(dimension: str, low: float | None = None, high: float | None = None) -> Raw:
    """A sourced quantity with a unit, between `low` and `high` of the unit that `_WRITTEN` gives."""
    unit, least, most = _WRITTEN[dimension]
    numbers = st.floats(least if low is None else low, most if high is None else high)
    return sourced(numbers.map(lambda n: f"{n!r} {unit}" if unit else n))


def whole(low: int, high: int) -> Raw:
    """A sourced whole number."""
    return sourced(st.integers(low, high))


# --- what an annotation says ------------------------------------------------------------------------------------------


def fields(name: str, /, **given: Raw | None) -> Raw:
    """Raw data of a model from its annotations; `given` replaces fields, None leaves a field out."""
    required, optional = {}, {}
    for field_name, field in model(name).model_fields.items():
        if field_name in given:
            replaced = given[field_name]
            if replaced is not None:
                required[field_name] = replaced
        elif field.is_required():
            required[field_name] = _of(field.annotation, field.metadata)
        else:
            optional[field_name] = _of(field.annotation, field.metadata)
    return st.fixed_dictionaries(required, optional=optional)


def _of(annotation: Any, metadata: Iterable[Any] = ()) -> Raw:
    marks = list(metadata)
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        marks += more
    marks = [mark for m in marks for mark in (m.metadata if isinstance(m, FieldInfo) else [m])]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is Sourced:
        return quantity(_dimension(marks))
    if origin in (typing.Union, types.UnionType):
        return st.one_of([_of(a, marks) for a in arguments if a is not type(None)])
    if origin is Literal:
        return st.sampled_from(arguments)
    if isinstance(annotation, type) and issubclass(annotation, Strict):
        return raw(f"{annotation.__module__}.{annotation.__name__}")
    if origin in (list, tuple):
        low, high = _sizes(marks, most=3)
        items = [a for a in arguments if a is not Ellipsis]
        if origin is tuple and Ellipsis not in arguments:
            return st.tuples(*(_of(a) for a in items))
        return st.lists(_of(items[0]), min_size=low, max_size=high)
    if origin is dict:
        return st.dictionaries(_of(arguments[0]), _of(arguments[1]), max_size=2)
    if _dimension(marks) != "number" and annotation is float:
        return quantity(_dimension(marks)).map(lambda q: q["value"])
    return _plain(annotation, marks)


def _plain(annotation: Any, marks: list[Any]) -> Raw:
    low, high, open_low, open_high = _range(marks)
    if annotation is bool:
        return st.booleans()
    if annotation is int:
        whole_low = None if low is None else math.floor(low) + 1 if open_low else math.ceil(low)
        whole_high = None if high is None else math.ceil(high) - 1 if open_high else math.floor(high)
        return st.integers(-1000 if whole_low is None else whole_low, 100_000 if whole_high is None else whole_high)
    if annotation is float:
        return st.floats(
            -1e6 if low is None else low, 1e6 if high is None else high, exclude_min=open_low, exclude_max=open_high
        )
    if annotation is str:
        shortest, longest = _sizes(marks, most=12)
        return NAMES if shortest or _pattern(marks) else TEXT.map(lambda t: t[:longest])
    return st.one_of(st.booleans(), st.integers(-9, 9), NAMES)


def _range(marks: list[Any]) -> tuple[float | None, float | None, bool, bool]:
    low = high = None
    open_low = open_high = False
    for mark in marks:
        if isinstance(mark, at.Ge):
            low = float(mark.ge)  # type: ignore[arg-type]
        elif isinstance(mark, at.Gt):
            low, open_low = float(mark.gt), True  # type: ignore[arg-type]
        elif isinstance(mark, at.Le):
            high = float(mark.le)  # type: ignore[arg-type]
        elif isinstance(mark, at.Lt):
            high, open_high = float(mark.lt), True  # type: ignore[arg-type]
    return low, high, open_low, open_high


def _sizes(marks: list[Any], most: int) -> tuple[int, int]:
    low, high = 0, most
    for mark in marks:
        if isinstance(mark, at.MinLen):
            low = mark.min_length
        elif isinstance(mark, at.MaxLen) or (isinstance(mark, StringConstraints) and mark.max_length is not None):
            high = min(high, mark.max_length)
    return low, max(low, high)


def _pattern(marks: list[Any]) -> bool:
    return any(getattr(mark, "pattern", None) for mark in marks)


def _dimension(marks: list[Any]) -> str:
    for mark in marks:
        if isinstance(mark, BeforeValidator) and isinstance(mark.func, partial):
            return str(mark.func.args[0])
    return "number"
