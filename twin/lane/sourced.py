"""Values that say where they come from: the atom of every catalogue file.

In TOML a value is an inline table, `{ value = "6481 GB/s", source = "...", kind = "measured" }`. `kind` is one of
spec (a maker's sheet), measured (somebody ran it), derived (arithmetic on the other kinds), assumed (nobody knows yet).
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict

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


def _dimension(name: str) -> Any:
    return BeforeValidator(partial(_read_sourced, name))


Seconds = Annotated[Sourced, _dimension("time")]
Bytes = Annotated[Sourced, _dimension("bytes")]
BytesPerSecond = Annotated[Sourced, _dimension("bandwidth")]
SecondsPerByte = Annotated[Sourced, _dimension("time_per_byte")]
Flops = Annotated[Sourced, _dimension("flops")]
Watts = Annotated[Sourced, _dimension("power")]
Money = Annotated[Sourced, _dimension("money")]
Number = Annotated[Sourced, _dimension("number")]
