"""Settings and scenarios: what a person compares, in a short text, a TOML file, or a command line.

sidecar                                             the lane as its policy runs it
tp4:k=7,verification=block                          another policy
sidecar:placement.hot=330,links.sidecar.latency=8 us     a what-if by dotted key, as with --set
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints

from twin.errors import CatalogueError, PolicyError, nearest
from twin.lane.capacity import require_fit
from twin.lane.catalogue import build, load_lane, read_toml
from twin.lane.lane import Lane
from twin.lane.override import override
from twin.lane.sourced import Strict
from twin.planning.predict import Cell, CellRequest, Prediction, Predictor, make_predictor
from twin.planning.requests import cell_requests

Text = Annotated[str, StringConstraints(max_length=200)]
#: Keys of a setting's text -> field. Anything with a dot is a catalogue value.
KEYS = {
    "k": "k",
    "verification": "verification",
    "traffic": "traffic",
    "context": "context_tokens",
    "context_tokens": "context_tokens",
    "streams": "concurrency",
    "concurrency": "concurrency",
    "c": "concurrency",
}
_WHOLE = ("k", "context_tokens", "concurrency")


class Setting(Strict):
    """One side of a question. None: as the lane's policy. `overrides` (`set` in files): "dotted.key=value" what-ifs."""

    lane: Text
    label: Text = ""
    k: int | None = None
    verification: Literal["token", "block", "greedy"] | None = None
    traffic: Text | None = None
    context_tokens: int = 2048
    concurrency: int = 1
    overrides: list[Text] = Field(default=[], max_length=64, alias="set")

    model_config = ConfigDict(populate_by_name=True)

    @property
    def title(self) -> str:
        """The label, or a short text that says what is special about this side."""
        if self.label:
            return self.label
        policy = [f"k={self.k}"] if self.k is not None else []
        policy += [self.verification] if self.verification is not None else []
        return " ".join([self.lane, *policy, *self.overrides])

    def arguments(self) -> list[str]:
        """Arguments after `twin predict` that ask for the same cell."""
        found = ["--lane", self.lane]
        if self.k is not None:
            found += ["--k", str(self.k)]
        found += ["-c", str(self.concurrency)]
        if self.traffic is not None:
            found += ["--traffic", self.traffic]
        if self.verification is not None:
            found += ["--verification", self.verification]
        found += ["--context", str(self.context_tokens)]
        return found + [part for text in self.overrides for part in ("--set", text)]

    def spec(self) -> str:
        """The text that `parse_setting` reads back."""
        parts = [f"k={self.k}"] if self.k is not None else []
        parts += [
            f"{name}={value}"
            for name, value in (("verification", self.verification), ("traffic", self.traffic))
            if value is not None
        ]
        parts += [f"context={self.context_tokens}", f"streams={self.concurrency}", *self.overrides]
        return f"{self.lane}:{','.join(parts)}"


def command_line(settings: Sequence[Setting], seed: int) -> str:
    """The shell line that reproduces one prediction, or the comparison of two."""
    tail = ["--seed", str(seed)] if seed else []
    if len(settings) == 1:
        return shlex.join(["twin", "predict", *settings[0].arguments(), *tail])
    return shlex.join(["twin", "explain", *(setting.spec() for setting in settings), *tail])


def parse_setting(text: str, defaults: dict[str, Any] | None = None) -> Setting:
    """A setting from "LANE[:key=value,...]"; `defaults` are fields it does not name. Raises PolicyError."""
    lane, _, rest = text.partition(":")
    fields: dict[str, Any] = {name: value for name, value in (defaults or {}).items() if value is not None}
    overrides = list(fields.pop("overrides", ()))
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, value = (p.strip() for p in part.partition("="))
        if not equals:
            raise PolicyError(f"{text!r}: {part!r} is not key=value; for example sidecar:k=5,verification=block.")
        if "." in key:
            overrides.append(f"{key}={value}")
        elif key in KEYS:
            fields[KEYS[key]] = whole(value, f"{text!r}: {key}") if KEYS[key] in _WHOLE else value
        else:
            hint = f"{nearest(key, KEYS)} A catalogue value has a dotted key, e.g. placement.hot=330."
            raise PolicyError(f"{text!r}: no key {key!r}; {hint}")
    return make_setting(fields | {"lane": lane.strip(), "overrides": overrides}, text)


def whole(text: str, where: str) -> int:
    """A whole number from text. Raises PolicyError."""
    if not text.lstrip("-").isdecimal() or len(text) > 9:
        raise PolicyError(f"{where} = {text[:40]!r}: expected a whole number.")
    return int(text)


def make_setting(fields: dict[str, Any], where: str) -> Setting:
    """A validated setting. Raises PolicyError naming the field."""
    try:
        return build(Setting, fields, where)
    except CatalogueError as error:
        raise PolicyError(str(error)) from None


class Scenario(Strict):
    """A question in a file: one setting, or two to compare, and what to draw around them."""

    schema_version: Literal[1]
    title: str = Field(min_length=1, max_length=200)
    question: str = Field(default="", max_length=2000)
    seed: int = Field(default=0, ge=0, lt=2**31)
    ks: list[Annotated[int, Field(ge=0, le=64)]] = Field(
        default=[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], min_length=1, max_length=32
    )
    streams: list[Annotated[int, Field(ge=1, le=65536)]] = Field(
        default=[1, 2, 4, 8, 16, 32], min_length=1, max_length=32
    )
    receipts: bool = True
    notes: str = Field(default="", max_length=10_000)
    settings: list[Setting] = Field(min_length=1, max_length=2)


def find_scenario(name_or_path: str, roots: Sequence[Path]) -> Path:
    """A scenario's file: a path, or a name under scenarios/reports of the roots. Raises CatalogueError."""
    if name_or_path.endswith(".toml") or Path(name_or_path).is_file():
        path = Path(name_or_path)
        if not path.is_file():
            raise CatalogueError(f"{path}: no such file; a scenario is a TOML file with title and [[settings]].")
        return path
    known = {path.stem: path for root in reversed(roots) for path in (root / "scenarios" / "reports").glob("*.toml")}
    if name_or_path not in known:
        raise CatalogueError(f"no scenario named {name_or_path!r}; {nearest(name_or_path, known)}")
    return known[name_or_path]


def read_scenario(path: Path) -> Scenario:
    """A scenario from a TOML file. Raises CatalogueError naming file and key."""
    return build(Scenario, read_toml(path), str(path))


def scenario_toml(scenario: Scenario) -> str:
    """The file that `read_scenario` reads back, without what is at its default."""
    lines = [
        f"{name} = {_toml(value)}"
        for name, value in scenario.model_dump(exclude_defaults=True, exclude={"settings"}).items()
    ]
    for setting in scenario.settings:
        lines += ["", "[[settings]]"]
        lines += [
            f"{name} = {_toml(value)}"
            for name, value in setting.model_dump(exclude_defaults=True, by_alias=True).items()
        ]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    # JSON strings, numbers, booleans and lists of them are TOML too; only DEL must be escaped there and is not here.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


@dataclass(frozen=True, eq=False)
class Resolved:
    """A setting with its lane, calibration and traffic looked up and checked: ready to be predicted."""

    setting: Setting
    lane: Lane
    predictor: Predictor
    request: CellRequest

    @cached_property
    def prediction(self) -> Prediction:
        """What `twin predict` answers for this cell."""
        return self.predictor.predict([self.request])

    @property
    def cell(self) -> Cell:
        """The one cell of `prediction`."""
        return self.prediction.cells[0]

    def others(self, *, k: int | None = None, concurrency: int | None = None) -> Cell:
        """The cell of the same setting at another k or number of streams."""
        drafts = self.request.k if k is None else k
        streams = self.request.concurrency if concurrency is None else concurrency
        return self.predictor.cell(CellRequest(drafts, streams, self.request.verification, self.request.context_tokens))


def resolve(setting: Setting, roots: Sequence[Path], *, calibration: str | None = None, seed: int = 0) -> Resolved:
    """Look everything up and refuse what cannot be, as `twin predict` does. Raises TwinError."""
    lane = override(load_lane(setting.lane, roots), setting.overrides)
    require_fit(lane)
    (request,) = cell_requests(
        lane,
        k=setting.k,
        schedule=None,
        concurrency=[setting.concurrency],
        verification=setting.verification,
        context_tokens=setting.context_tokens,
    )
    predictor = make_predictor(lane, setting.traffic or lane.policy.traffic, roots, calibration=calibration, seed=seed)
    return Resolved(setting, lane, predictor, request)
