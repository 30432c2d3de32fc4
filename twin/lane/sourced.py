"""Values that say where they come from: the atom of every catalogue file.

In TOML a value is an inline table, `{ value = "6481 GB/s", source = "...", kind = "measured" }`. `kind` is one of
spec (a maker's sheet), measured (somebody ran it), derived (arithmetic on the other kinds), assumed (nobody knows yet).
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from twin.errors import QuantityError
from twin.units import parse_quantity

Kind = Literal["spec", "measured", "derived", "assumed"]


class Strict(BaseModel):
    """Base of every model read from a file: frozen, unknown keys refused, no inf or nan."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Sourced(Strict):
    """One number in internal units (`value`), as it was written (`text`), with its source and kind."""

    value: float
    text: str
    source: str = ""
    kind: Kind = "assumed"


def _read_sourced(dimension: str, raw: Any) -> Any:
    if isinstance(raw, Sourced):
        return raw
    if isinstance(raw, dict):
        unknown = set(raw) - {"value", "text", "source", "kind"}
        if unknown:
            raise ValueError(f"unknown key {sorted(unknown)[0]!r}; a value has value, source and kind")
        if "value" not in raw:
            raise ValueError('expected { value = "...", source = "...", kind = "..." }, the value is missing')
        written = raw["value"]
        text = raw.get("text", str(written))
        # A dumped model carries the internal number together with the text it was read from.
        value = float(written) if "text" in raw else _parse(written, dimension)
        return {"value": value, "text": text, "source": raw.get("source", ""), "kind": raw.get("kind", "assumed")}
    return {"value": _parse(raw, dimension), "text": str(raw), "source": "", "kind": "assumed"}


def _parse(raw: Any, dimension: str) -> float:
    try:
        return parse_quantity(raw, dimension)
    except QuantityError as error:
        raise ValueError(str(error)) from None


def within(low: float, high: float, *, above: bool = False, whole: bool = False) -> AfterValidator:
    """A range for a sourced value in internal units: `low` to `high`, without `low` when `above`, `whole` numbers only.

    Ranges are wide: they refuse what no machine is, so that every formula stays finite and every size affordable.
    """
    expected = "a whole number " if whole else ""
    expected += f"above {low:g} and up to {high:g}" if above else f"from {low:g} to {high:g}"

    def check(sourced: Sourced) -> Sourced:
        value = sourced.value
        if not low <= value <= high or (above and value == low) or (whole and value != int(value)):
            unit = "" if sourced.text[-1:].isdigit() else ", in seconds, bytes, watts or flops"
            raise ValueError(f"got {sourced.text}; expected {expected}{unit}")
        return sourced

    return AfterValidator(check)


def _dimension(name: str) -> Any:
    return BeforeValidator(partial(_read_sourced, name))


Seconds = Annotated[Sourced, _dimension("time"), within(0, 1e4)]
Bytes = Annotated[Sourced, _dimension("bytes"), within(0, 1e18)]
BytesPerSecond = Annotated[Sourced, _dimension("bandwidth"), within(1.0, 1e18)]
SecondsPerByte = Annotated[Sourced, _dimension("time_per_byte"), within(0, 1)]
Flops = Annotated[Sourced, _dimension("flops"), within(1.0, 1e24)]
Watts = Annotated[Sourced, _dimension("power"), within(0, 1e9)]
Money = Annotated[Sourced, _dimension("money"), within(0, 1e12)]
Number = Annotated[Sourced, _dimension("number")]
#: How many there are of something that a step graph or a sum goes through one by one.
Count = Annotated[Sourced, _dimension("number"), within(1, 1000, whole=True)]
#: A whole number of something that only enters formulas.
Amount = Annotated[Sourced, _dimension("number"), within(0, 1e9, whole=True)]
