"""Which cells `twin sweep` is asked for, and which of them a sensitivity is taken at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from twin.planning.grid import Design
    from twin.planning.sweep_inputs import Inputs


def design_of(given: dict[str, Any]) -> Design:
    """The design of the options --lane, --scenario, --grid, --random and --sobol. Raises TwinError for a wrong axis."""
    from twin.planning.grid import make_design, parse_axis

    lanes, axes = list(given["lanes"]), [parse_axis(text) for text in given["grid"]]
    if given["scenario"] is not None:
        from twin.planning.scenario import read_scenario

        scenario = read_scenario(given["scenario"])
        lanes += [s.lane for s in scenario.settings]
        asked = {a.key for a in axes}
        ranges = {"k": scenario.ks, "streams": scenario.streams}
        axes += [
            parse_axis(f"{key}={','.join(map(str, values))}") for key, values in ranges.items() if key not in asked
        ]
        for setting in scenario.settings:
            axes += [
                parse_axis(text) for text in setting.overrides if text.partition("=")[0] not in {a.key for a in axes}
            ]
    if not lanes:
        raise click.UsageError("give at least one --lane NAME (or --scenario FILE); `twin lanes` lists the lanes.")
    return make_design(lanes, axes, random=given["random"], sobol=given["sobol"], seed=given["seed"])


def indices_of(row: dict[str, Any] | None, design: Design, inputs: Inputs, output: str) -> dict[str, Any]:
    """Sobol indices of `output` at the cell of a row. Raises PolicyError when there is no such cell."""
    from dataclasses import asdict

    from twin.errors import PolicyError
    from twin.planning.grid import Point
    from twin.planning.sensitivity import sensitivity
    from twin.planning.sweep_inputs import predictor_of

    if row is None:
        raise PolicyError("--sensitivity: every cell was refused, so there is nothing to vary.")
    overrides = tuple(f"{a.key}={row[a.key]}" for a in design.axes if "." in a.key)
    point = Point(
        row["lane"], overrides, row["traffic"], row["verification"], row["context_tokens"], row["k"], row["streams"]
    )
    predictor, request = predictor_of(point, inputs)
    return {
        "output": output,
        "cell": row,
        "indices": [asdict(i) for i in sensitivity(predictor, request, output, seed=inputs.seed)],
    }
