"""A plan: every option of a study with its largest load under the SLO, cost, replicas and Pareto points."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from twin.errors import CapacityError
from twin.planning.capacity import Capacity, Said, largest_load, replicas_for
from twin.planning.cost import Cost, Prices, lane_cost
from twin.planning.pareto import Point, curve, mark_front
from twin.planning.server import make_server, server_dict
from twin.planning.slo import Clause
from twin.planning.study import Study


@dataclass(frozen=True, slots=True)
class PlannedOption:
    """One option of a plan. `replicas` for the target is None when none was asked or no number was found."""

    name: str
    server: dict[str, Any]
    capacity: Capacity
    cost: Cost
    replicas: int | None
    pareto: tuple[Point, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Options in the order of the largest load they sustain, best first."""

    slo: tuple[Clause, ...]
    target: float | None
    seed: int
    options: tuple[PlannedOption, ...]
    refused: tuple[tuple[str, str], ...] = ()  # options that cannot be, and why
    interrupted: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain data with `schema_version`."""
        options = []
        for o in self.options:
            options.append(
                o.server
                | {
                    "capacity": asdict(o.capacity), "cost": asdict(o.cost), "replicas_for_target": o.replicas,
                    "pareto": [asdict(p) for p in o.pareto], "warnings": list(o.warnings),
                }
            )  # fmt: skip
        return {
            "schema_version": 1, "command": "plan", "slo": [c.text() for c in self.slo], "target": self.target,
            "seed": self.seed, "interrupted": self.interrupted, "ranking": [o.name for o in self.options],
            "options": options, "refused": [{"option": n, "reason": r} for n, r in self.refused],
        }  # fmt: skip


def make_plan(
    study: Study, clauses: Sequence[Clause], roots: Sequence[Path], *, seed: int, replications: int,
    target: float | None = None, prices: Prices | None = None, pareto: bool = True, executor: Executor | None = None,
    said: Said | None = None,
) -> Plan:  # fmt: skip
    """Plan every option of a study.

    Ctrl-C keeps the options that are done and says so. An option that does not fit into its box is left out with the
    reason; when none fits, its CapacityError is raised.
    """
    done: list[PlannedOption] = []
    refused: list[tuple[str, str]] = []
    interrupted = False
    for option in study.options:
        try:
            server = make_server(option, study.traffic, roots, seed=seed)
            capacity = largest_load(
                server, study.arrivals, study.extent, clauses, seed=seed, replications=replications,
                executor=executor, said=said,
            )  # fmt: skip
            tok_s = capacity.at_load.output_tok_s if capacity.at_load is not None else None
            boxes = server.deployment.replicas + server.deployment.prefill_replicas
            cost = lane_cost(server.lane, prices or Prices(), tok_s, boxes=boxes)
            needed = None
            if target is not None:
                needed = replicas_for(
                    server, study.arrivals, study.extent, clauses, target, single=capacity.load, seed=seed,
                    replications=replications,
                )  # fmt: skip
            points = tuple(curve(server, seed=seed)) if pareto else ()
            found = PlannedOption(
                option.name, server_dict(server), capacity, cost, needed, points, server.warnings + cost.notes
            )
            done.append(found)
        except CapacityError as error:
            refused.append((option.name, str(error)))
            if len(refused) == len(study.options):
                raise
        except KeyboardInterrupt:
            interrupted = True
            break
    marked = mark_front([p for o in done for p in o.pareto])
    done = [_with_points(o, [p for p in marked if p.option == o.name]) for o in done]
    ranked = sorted(done, key=lambda o: -o.capacity.load)
    return Plan(tuple(clauses), target, seed, tuple(ranked), tuple(refused), interrupted)


def _with_points(option: PlannedOption, points: Sequence[Point]) -> PlannedOption:
    return PlannedOption(
        option.name, option.server, option.capacity, option.cost, option.replicas, tuple(points), option.warnings
    )
