"""Options that several commands share."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

catalogue = click.option(
    "--catalogue",
    metavar="DIR",
    envvar="TWIN_CATALOGUE",
    help="A folder with your own hardware/, calibration/ and scenarios/, searched first.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
seed = click.option(
    "--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Seed of every random draw."
)
settings = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help='What-if on any catalogue value by dotted key, e.g. links.sidecar.latency="8 us".',
)
calibration = click.option(
    "--calibration",
    metavar="NAME|FILE",
    help='A calibration by name or .json file; "priors" for none. Default: the lane\'s own.',
)


def workers_by_default(count: int | None) -> Callable[[F], F]:
    """The options --workers and --cluster of everything heavy: `count` processes when not given, None for one a processor."""
    processes = click.option(
        "--workers",
        type=click.IntRange(1, 256),
        default=count,
        show_default=True,
        help="Processes to use; the answer is the same bytes whatever the number."
        + (" Default: one a processor." if count is None else ""),
    )
    cluster = click.option(
        "--cluster",
        metavar="ADDRESS",
        help="A Dask cluster: tcp://scheduler:8786, or local for --workers processes here.",
    )
    return lambda command: processes(cluster(command))


workers = workers_by_default(1)


if TYPE_CHECKING:
    _Text = click.ParamType[str]
else:
    _Text = click.ParamType  # not generic before click 8.5


class Finite(click.FloatRange):
    """A number, within a range if one is given; NaN lies in every range and infinity beyond none, so both are refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is no finite number.", param, ctx)
        return number


class LaneName(_Text):
    """The name of a lane, with shell completion from the catalogue."""

    name = "lane"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """Lanes that start with what was typed."""
        from click.shell_completion import CompletionItem

        from twin.lane.catalogue import catalogue_roots, names

        return [CompletionItem(name) for name in names("lanes", catalogue_roots()) if name.startswith(incomplete)]


def lane(required: bool = True) -> Callable[[F], F]:
    """The option --lane."""
    return click.option(
        "--lane",
        "lane_name",
        type=LaneName(),
        required=required,
        help="A lane of the catalogue; `twin lanes` lists them.",
    )


def print_json(value: Any) -> None:
    """JSON on stdout, keys in the order given, non-finite numbers refused; a document also says how it was made."""
    if isinstance(value, dict) and "command" in value:
        from twin.report.provenance import provenance

        value = value | provenance(click.get_current_context(silent=True))
    click.echo(json.dumps(value, indent=2, allow_nan=False))
