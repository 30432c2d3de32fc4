"""The Python side of `twin predict`: the same frozen record the command prints."""

from __future__ import annotations

from collections.abc import Sequence

from twin.acceptance.policy import parse_schedule
from twin.lane.catalogue import catalogue_roots
from twin.lane.catalogue import load_lane as _load_lane
from twin.lane.lane import Lane
from twin.lane.override import override
from twin.planning.predict import Prediction, make_predictor
from twin.planning.requests import cell_requests


def load_lane(name: str, *, catalogue: str | None = None, settings: Sequence[str] = ()) -> Lane:
    """A lane from the catalogue, with what-ifs ("placement.hot=330") applied. Raises CatalogueError."""
    return override(_load_lane(name, catalogue_roots(catalogue)), settings)


def predict(
    lane: str | Lane, *, k: int | None = None, concurrency: Sequence[int] = (1,), traffic: str | None = None, verification: str | None = None,
    schedule: str | Sequence[Sequence[int]] | None = None, context_tokens: int = 2048, calibration: str | None = None,
    catalogue: str | None = None, seed: int = 0,
) -> Prediction:  # fmt: skip
    """Predict cells of a lane: one for every entry of `concurrency`.

    k, or a k-schedule by live streams ("1-4:5, 5-8:3"), or neither for the lane's own policy. Times in the record are
    ms.
    Raises TwinError with what was wrong, where, and the nearest valid name.
    """
    roots = catalogue_roots(catalogue)
    resolved = lane if isinstance(lane, Lane) else _load_lane(lane, roots)
    parsed = parse_schedule(schedule) if schedule is not None else None
    requests = cell_requests(
        resolved,
        k=k,
        schedule=parsed,
        concurrency=concurrency,
        verification=verification,
        context_tokens=context_tokens,
    )
    predictor = make_predictor(resolved, traffic or resolved.policy.traffic, roots, calibration=calibration, seed=seed)
    return predictor.predict(requests)
