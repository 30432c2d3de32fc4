"""A serving study: a workload, what it must be promised, and the servers to try, in a TOML file or from flags.

schema_version = 1
title = "Hot split"
question = "How many experts should stay in HBM?"
slo = "p95 TTFT 2 s, p99 TPOT 25 ms"
[[traffic]]
name = "mixed"
[arrivals]
kind = "poisson"
rate = 0.5
[[options]]
name = "295 hot"
lane = "sidecar"
[[options]]
name = "330 hot"
lane = "sidecar"
set = ["placement.hot=330"]
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from twin.errors import CatalogueError, QuantityError, TrafficError
from twin.lane.catalogue import build, read_toml
from twin.lane.sourced import Strict
from twin.units import parse_quantity

Plain = int | float | bool | str


def _quantity(dimension: str, raw: Any) -> Any:
    try:
        return parse_quantity(raw, dimension)
    except QuantityError as error:
        raise ValueError(str(error)) from None


#: seconds written as people do: "10 min", "250 ms"
Time = Annotated[float, BeforeValidator(partial(_quantity, "time")), Field(ge=0)]
Short = Annotated[str, Field(max_length=200)]


class TrafficShare(Strict):
    """A class of the mix: its share of requests, and what differs from the class's file (lengths in tokens).

    Clients give up after `timeout` in all, or after `first_token_timeout` without a token; lower `priority` is first.
    """

    name: Short
    weight: float = Field(default=1.0, ge=0)
    prompt_tokens: int | None = Field(default=None, ge=1, le=16_000_000)
    output_tokens: int | None = Field(default=None, ge=1, le=16_000_000)
    shared_prefix_tokens: int = Field(default=0, ge=0, le=16_000_000)
    priority: int = Field(default=0, ge=-1000, le=1000)
    timeout: Time | None = None
    first_token_timeout: Time | None = None


class Arrivals(Strict):
    """When requests come.

    poisson / gamma: `rate` a second, gaps with coefficient of variation `cv`, to `ramp_to` over `ramp_over`;
    closed: `users` who think for `think` between `turns` of a conversation; trace: the file `trace`, with its clock
    stretched by `time_scale`, its requests thinned or copied by `rate_scale`, played `repeat` times.
    """

    kind: Literal["poisson", "gamma", "closed", "trace"] = "poisson"
    rate: float | None = Field(default=None, gt=0, le=1e6)
    cv: float = Field(default=1.0, ge=0, le=1000)
    ramp_to: float | None = Field(default=None, ge=0, le=1e6)
    ramp_over: Time | None = None
    users: int | None = Field(default=None, ge=1, le=65_536)
    think: Time = 0.0
    think_distribution: Literal["exponential", "constant"] = "exponential"
    turns: int = Field(default=1, ge=1, le=10_000)
    start_over: Time = 0.0
    trace: str | None = Field(default=None, max_length=4096)
    time_scale: float = Field(default=1.0, gt=0, le=1e6)
    rate_scale: float = Field(default=1.0, gt=0, le=1000)
    repeat: int = Field(default=1, ge=1, le=10_000)

    @model_validator(mode="after")
    def _complete(self) -> Arrivals:
        needs = {"poisson": "rate", "gamma": "rate", "closed": "users", "trace": "trace"}[self.kind]
        if getattr(self, needs) is None:
            raise ValueError(f'kind "{self.kind}" needs {needs}')
        if (self.ramp_to is None) != (self.ramp_over is None):
            raise ValueError("a ramp needs ramp_to (requests a second) and ramp_over (a time)")
        return self


class Extent(Strict):
    """How long to simulate: simulated time, a number of requests, or both; `warmup` None finds it."""

    duration: Time | None = None
    requests: int | None = Field(default=None, ge=1, le=100_000_000)
    warmup: Time | None = None


class Option(Strict):
    """A server to try. `set` are what-ifs by dotted key; `limits` and `deployment` replace what the lane states."""

    name: Short
    lane: Short
    set: list[Annotated[str, Field(max_length=500)]] = Field(default=[], max_length=64)
    k: int | None = Field(default=None, ge=0, le=64)
    schedule: Annotated[str, Field(max_length=20_000)] | None = None
    verification: Literal["token", "block", "greedy"] | None = None
    calibration: str | None = Field(default=None, max_length=4096)
    max_seqs: int | None = Field(default=None, ge=1, le=65_536)
    limits: dict[str, Plain] = Field(default={}, max_length=64)
    deployment: dict[str, Any] = Field(default={}, max_length=64)

    @model_validator(mode="after")
    def _one_policy(self) -> Option:
        if self.k is not None and self.schedule is not None:
            raise ValueError("k and schedule both say how long drafts are; give one of them")
        return self


class Study(Strict):
    """What a study file says. `slo` as "p95 TTFT 2 s, p99 TPOT 25 ms"; `target_rate` asks for replicas."""

    schema_version: Literal[1] = 1
    title: str = Field(default="", max_length=200)
    question: str = Field(default="", max_length=2000)
    notes: str = Field(default="", max_length=10_000)
    seed: int = Field(default=0, ge=0, lt=2**31)
    slo: str = Field(default="", max_length=500)
    target_rate: float | None = Field(default=None, gt=0, le=1e6)
    traffic: list[TrafficShare] = Field(min_length=1, max_length=64)
    arrivals: Arrivals
    extent: Extent = Extent()
    options: list[Option] = Field(min_length=1, max_length=64)

    @model_validator(mode="after")
    def _names(self) -> Study:
        names = [o.name for o in self.options]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two options are called {name!r}")
        return self


def read_study(path: Path) -> Study:
    """A study from a TOML file; a trace named in it is looked for beside it. Raises CatalogueError or TrafficError."""
    study = build(Study, read_toml(path), str(path))
    trace = study.arrivals.trace
    if trace is None or Path(trace).is_absolute():
        return study
    beside = (path.parent / trace).resolve()
    if not beside.is_relative_to(path.parent.resolve()):
        raise TrafficError(f"{path}: arrivals.trace {trace!r} leaves the study's folder; give an absolute path.")
    return study.model_copy(update={"arrivals": study.arrivals.model_copy(update={"trace": str(beside)})})


def make_study(raw: dict[str, Any], where: str) -> Study:
    """A validated study from plain data. Raises CatalogueError naming the key."""
    return build(Study, raw, where)


__all__ = ["Arrivals", "CatalogueError", "Extent", "Option", "Study", "TrafficShare", "make_study", "read_study"]
