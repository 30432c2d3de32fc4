"""Traffic classes: what a request asks of a lane. One TOML file a class, `scenarios/traffic/NAME.toml`.

A class has acceptance profiles (each with the k, rule, temperature and draft sampling it was measured with), a routing
locality, length distributions, and the spread between streams. Every number says where it comes from.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from twin.acceptance.profile import Array, Counts, check_survival, survival_from_conditional, tokens_per_step
from twin.errors import TrafficError, nearest
from twin.lane.sourced import Number, Strict

MAX_BYTES = 2**20
MAX_K = 64

Verification = Literal["token", "block", "greedy"]
ProfileKind = Literal["survival", "conditional"]
Evidence = Literal["measured", "derived", "assumed"]


class Profile(Strict):
    """Acceptance by position of one block length under one rule.

    `evidence` speaks of the positions (`values`); `mean` of tokens per step, bonus included. Often only the mean was
    measured: then the positions are `derived` and must add up to it. `drafts` is the number of draft blocks counted.
    """

    k: int = Field(ge=1, le=MAX_K)
    kind: ProfileKind
    values: tuple[float, ...] = Field(strict=False)
    verification: Verification
    temperature: float = Field(default=1.0, ge=0)
    draft_sampling: Literal["probabilistic", "greedy", "unknown"] = "unknown"
    drafts: int | None = Field(default=None, ge=1)
    relative_sd: float = Field(default=0.03, ge=0, le=1)  # of the mean, when nothing was counted
    mean: Number | None = None
    lane: str = ""
    streams: int = Field(default=1, ge=1)
    source: str = Field(min_length=1)
    evidence: Evidence

    @model_validator(mode="after")
    def _consistent(self) -> Profile:
        if len(self.values) != self.k:
            raise ValueError(f"k = {self.k} needs {self.k} values, one a position; got {len(self.values)}")
        try:
            check_survival(self.survival.tolist() if self._in_range() else self.values, f"k = {self.k}")
        except TrafficError as error:
            raise ValueError(str(error)) from None
        if self.mean is not None and abs(self.mean.value - self.tokens_per_step) > 0.005:
            found = f"{self.tokens_per_step:.4f} tokens per step (bonus included)"
            raise ValueError(f"the positions give {found}, the mean says {self.mean.text}")
        return self

    def _in_range(self) -> bool:
        return all(0.0 <= v <= 1.0 for v in self.values)

    @property
    def survival(self) -> Array:
        """P(first p drafts all accepted), shape (k,)."""
        values = np.asarray(self.values, dtype=float)
        return values if self.kind == "survival" else survival_from_conditional(values)

    @property
    def tokens_per_step(self) -> float:
        """1 + sum of survival."""
        return float(tokens_per_step(self.survival))

    def relative_sd_of_mean(self, stream_sd: float) -> float:
        """Relative standard deviation of the class mean: from counts where they exist, else as the file says.

        Drafts of one context are alike, so counts alone would be too sure: the spread between contexts is added over
        `streams`, the number of streams that the counts came from.
        """
        counts = self.counts
        if counts is None:
            return self.relative_sd
        return float(np.hypot(counts.relative_sd(), stream_sd / np.sqrt(self.streams)))

    @property
    def counts(self) -> Counts | None:
        """Accepted blocks by position, when the number of drafts is known."""
        if self.drafts is None:
            return None
        return Counts(self.drafts, tuple(round(float(s) * self.drafts) for s in self.survival))


class Routing(Strict):
    """Which experts this traffic touches; the routing layer gives the meaning.

    `beta`: exponent of the effective tokens of one stream's block (1 = independent tokens). `diversity`: 0 all streams
    share one prompt, 1 unrelated streams. `cold_share`: share of decode routes that leave the hot set, by the relation
    of the traffic to the map's calibration ("own", "other"), measured with `hot_fraction` of the experts hot.
    """

    beta: Number
    diversity: Number
    cold_share: dict[str, Number] = Field(default_factory=dict)
    hot_fraction: Number | None = None

    @model_validator(mode="after")
    def _ranges(self) -> Routing:
        checks = {"beta": self.beta.value, "diversity": self.diversity.value}
        checks |= {f"cold_share.{name}": share.value for name, share in self.cold_share.items()}
        if self.hot_fraction is not None:
            checks["hot_fraction"] = self.hot_fraction.value
        for name, value in checks.items():
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} is {value:g}; it lies between 0 and 1")
        return self


def _pairs(raw: Any) -> Any:
    """TOML arrays of two numbers as tuples; anything else is left for the model to refuse."""
    if not isinstance(raw, list):
        return raw
    return tuple(
        tuple(float(n) if isinstance(n, int) and not isinstance(n, bool) else n for n in pair)
        if isinstance(pair, (list, tuple))
        else pair
        for pair in raw
    )


class Tokens(Strict):
    """A length distribution in tokens: log-normal (`median`, `sigma` of the log) or `histogram` of [tokens, weight]."""

    median: Number | None = None
    sigma: Number | None = None
    histogram: Annotated[tuple[tuple[float, float], ...], BeforeValidator(_pairs)] = ()
    source: str = ""

    @model_validator(mode="after")
    def _one_form(self) -> Tokens:
        if bool(self.histogram) == (self.median is not None):
            raise ValueError("a length is either median (and sigma) or a histogram of [tokens, weight]")
        if self.median is not None and self.median.value < 1:
            raise ValueError(f"median is {self.median.value:g} tokens; at least 1")
        if self.sigma is not None and not 0 <= self.sigma.value <= 5:
            raise ValueError(f"sigma is {self.sigma.value:g}; the spread of log(tokens) lies between 0 and 5")
        if any(t < 1 or w < 0 for t, w in self.histogram) or (self.histogram and not sum(w for _, w in self.histogram)):
            raise ValueError("a histogram has tokens of at least 1 and weights of at least 0, not all 0")
        return self

    @property
    def mean_tokens(self) -> float:
        """Expected length in tokens."""
        if self.median is None:
            return sum(t * w for t, w in self.histogram) / sum(w for _, w in self.histogram)
        sigma = self.sigma.value if self.sigma else 0.0
        return float(self.median.value * np.exp(sigma**2 / 2))

    def draw(self, rng: np.random.Generator, samples: int) -> Array:
        """Lengths in whole tokens, at least 1, shape (samples,)."""
        if self.median is None:
            tokens, weights = np.asarray(self.histogram, dtype=float).T
            return np.maximum(1.0, np.round(rng.choice(tokens, size=samples, p=weights / weights.sum())))
        sigma = self.sigma.value if self.sigma else 0.0
        return np.maximum(1.0, np.round(self.median.value * np.exp(sigma * rng.standard_normal(samples))))


class Length(Strict):
    """Prompt and output lengths of a request, tokens."""

    prompt: Tokens
    output: Tokens


class TrafficClass(Strict):
    """One class of traffic as its file says it; `stream_sd`: relative spread of tokens per step between streams."""

    schema_version: Literal[1]
    name: str = Field(min_length=1, max_length=80, pattern=r"^[a-z0-9][a-z0-9._-]*$")
    description: str
    stream_sd: Number
    profile: tuple[Profile, ...] = Field(min_length=1, strict=False)
    routing: Routing
    length: Length

    @model_validator(mode="after")
    def _unique(self) -> TrafficClass:
        if not 0.0 <= self.stream_sd.value <= 1.0:
            raise ValueError(f"stream_sd is {self.stream_sd.value:g}; it lies between 0 and 1")
        seen = set()
        for p in self.profile:
            key = (p.k, p.verification)
            if key in seen:
                raise ValueError(f"two profiles for k = {p.k} under {p.verification} verification; keep one")
            seen.add(key)
        return self

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """The profiles, the TOML tables `[[profile]]`."""
        return self.profile

    @property
    def ks(self) -> tuple[int, ...]:
        """Block lengths that have a profile."""
        return tuple(sorted({p.k for p in self.profile}))


def traffic_names(roots: Sequence[Path]) -> list[str]:
    """Names of all classes below the roots, sorted."""
    return sorted({f.stem for root in roots for f in (root / "scenarios" / "traffic").glob("*.toml")})


def load_traffic(name: str, roots: Sequence[Path]) -> TrafficClass:
    """Read `scenarios/traffic/NAME.toml` from the first root that has it. Raises TrafficError naming file and key."""
    if not name or any(c in name for c in "/\\\0") or name.startswith("."):
        raise TrafficError(f"traffic class {name!r}: expected a plain name; {nearest(name, traffic_names(roots))}")
    for root in roots:
        path = root / "scenarios" / "traffic" / f"{name}.toml"
        if path.is_file():
            return read_traffic(path)
    where = ", ".join(str(root / "scenarios" / "traffic") for root in roots) or "no folder was given"
    raise TrafficError(
        f"traffic class {name!r}: no {name}.toml in {where}; {nearest(name, traffic_names(roots))} "
        f"A new class is written by `twin traffic import`."
    )


def read_traffic(path: Path) -> TrafficClass:
    """Read one class file. Raises TrafficError naming file and dotted key."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise TrafficError(f"{path}: larger than {MAX_BYTES // 2**20} MiB; a traffic class is a short TOML file.")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TrafficError(f"{path}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError as error:
        raise TrafficError(f"{path}: not UTF-8 text (byte {error.start}).") from None
    traffic = parse_traffic(text, where=str(path))
    if traffic.name != path.stem:
        raise TrafficError(f"{path}: the class calls itself {traffic.name!r}; name and file name must agree.")
    return traffic


@lru_cache(maxsize=64)
def parse_traffic(text: str, *, where: str = "traffic class") -> TrafficClass:
    """Parse the TOML text of one class."""
    try:
        raw = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise TrafficError(f"{where}: not valid TOML ({error}).") from None
    try:
        return TrafficClass.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the file"
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = f"unknown key; {nearest(str(first['loc'][-1]), _keys_near(first['loc']))}"
        raise TrafficError(f"{where}, {key}: {message}. Run `twin traffic show prose` for a valid class.") from None


def _keys_near(loc: tuple[int | str, ...]) -> list[str]:
    tables: dict[str, type[Strict]] = {"profile": Profile, "routing": Routing, "length": Length}
    table = TrafficClass if len(loc) == 1 else tables.get(str(loc[0]), TrafficClass)
    if str(loc[0]) == "length" and len(loc) > 2:
        table = Tokens
    return list(table.model_fields)
