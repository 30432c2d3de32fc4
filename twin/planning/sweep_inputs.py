"""What a sweep is computed from: lanes, calibrations and traffic by name, and the hashes that every worker must find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from twin.acceptance.traffic import TrafficClass, load_traffic
from twin.errors import CatalogueError
from twin.fitting.calibration import Calibration, find_calibration, load_calibration
from twin.lane.capacity import require_fit
from twin.lane.catalogue import lane_sha256, load_lane
from twin.lane.override import override
from twin.planning.grid import Design, Point
from twin.planning.predict import CellRequest, Predictor
from twin.planning.requests import cell_requests
from twin.planning.store import content_key
from twin.step.coefficients import coefficients


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a sweep is computed from: names and folders, and the hashes of what they held when it was planned."""

    roots: tuple[str, ...]
    calibration: str | None
    seed: int
    samples: int
    sha256: tuple[tuple[str, str], ...]


class WrongFiles(CatalogueError):
    """A worker's catalogue is not the one the sweep was planned with."""


def plan_inputs(design: Design, roots: Sequence[Path], *, calibration: str | None, seed: int, samples: int) -> Inputs:
    """Look up everything once: names that do not exist are refused before anything is computed. Raises TwinError."""
    folders = tuple(str(r) for r in roots)
    sha256: dict[str, str] = {}
    classes = [v for a in design.axes if a.key == "traffic" for v in a.values]
    for name in design.lanes:
        lane = load_lane(name, roots)
        sha256[f"lane {name}"] = lane_sha256(lane)
        sha256[f"calibration {name}"] = _calibration(name, folders, calibration)[1]
        for axis in design.axes:
            if "." in axis.key:
                _require_key(name, f"{axis.key}={axis.values[0]}", roots)
        for traffic in classes or [lane.policy.traffic]:
            sha256[f"traffic {traffic}"] = content_key(_traffic(traffic, folders).model_dump(mode="json"))
    return Inputs(folders, calibration, seed, samples, tuple(sorted(sha256.items())))


def _require_key(lane: str, setting: str, roots: Sequence[Path]) -> None:
    try:
        override(load_lane(lane, roots), [setting])
    except CatalogueError as error:
        # A value that cannot be is a refused cell; a key that cannot be is a mistake.
        if "no such key" in str(error) or "is a list or a table" in str(error):
            raise CatalogueError(str(error).replace("--set", "--grid")) from None


def predictor_of(point: Point, inputs: Inputs) -> tuple[Predictor, CellRequest]:
    """The predictor and the request of one cell. Raises TwinError when the cell cannot be."""
    predictor = _predictor(point.lane, point.overrides, point.traffic, inputs)
    (request,) = cell_requests(
        predictor.lane, k=point.k, schedule=None, concurrency=[point.streams], verification=point.verification,
        context_tokens=point.context_tokens,
    )  # fmt: skip
    return predictor, request


@lru_cache(maxsize=32)
def _predictor(lane_name: str, overrides: tuple[str, ...], traffic: str | None, inputs: Inputs) -> Predictor:
    roots = tuple(Path(r) for r in inputs.roots)
    plain = load_lane(lane_name, roots)
    if not overrides and dict(inputs.sha256)[f"lane {lane_name}"] != lane_sha256(plain):
        raise WrongFiles(
            f"lane {lane_name!r}: this worker's catalogue differs from the one of the sweep; give every machine the same files."
        )
    lane = override(plain, overrides)
    require_fit(lane)
    calibration, sha256 = _calibration(lane_name, inputs.roots, inputs.calibration)
    if sha256 != dict(inputs.sha256)[f"calibration {lane_name}"]:
        raise WrongFiles(
            f"lane {lane_name!r}: this worker's calibration differs from the one of the sweep; give every machine the same files."
        )
    found = _traffic(traffic or lane.policy.traffic, inputs.roots)
    return Predictor(lane, found, calibration, calibration_sha256=sha256, seed=inputs.seed, samples=inputs.samples)


@lru_cache(maxsize=64)
def _calibration(lane_name: str, folders: tuple[str, ...], given: str | None) -> tuple[Calibration, str]:
    roots = tuple(Path(f) for f in folders)
    lane = load_lane(lane_name, roots)
    name = given or lane.calibration or lane.name
    if given is None and find_calibration(name, roots) is None:
        name = "priors"
    return load_calibration(name, lane_name, coefficients(lane), roots)


@lru_cache(maxsize=64)
def _traffic(name: str, folders: tuple[str, ...]) -> TrafficClass:
    return load_traffic(name, tuple(Path(f) for f in folders))
