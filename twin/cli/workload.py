"""The flags of a workload and a server, which `twin simulate` and `twin plan` share, and the study they say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from twin.cli import options as shared
from twin.cli.printable import cursor_stream, escaped

if TYPE_CHECKING:
    from twin.planning.study import Study

F = TypeVar("F", bound=Callable[..., Any])
FILE = click.Path(dir_okay=False, path_type=Path)

_OPTIONS = (
    click.option(
        "--lane", "lanes", multiple=True, type=shared.LaneName(), help="A lane of the catalogue; again to compare."
    ),
    click.option(
        "--traffic", multiple=True, metavar="NAME[:WEIGHT]", help="Traffic class; again for a mix. Default: the lane's."
    ),
    click.option("--rate", type=shared.Finite(), help="Poisson arrivals, requests a second."),
    click.option("--cv", type=shared.Finite(), help="Burstiness: coefficient of variation of the gaps (1 is Poisson)."),
    click.option("--ramp", metavar="TO@TIME", help='Change the rate to TO over TIME, e.g. "4@10 min".'),
    click.option(
        "-c", "--concurrency", type=int, help="Closed loop: users who send the next request after the answer."
    ),
    click.option("--think", default="0 s", metavar="TIME", help="Mean pause of a user (exponential)."),
    click.option(
        "--turns", type=int, default=1, help="Turns of a conversation; each prompt holds what was said before."
    ),
    click.option("--trace", type=FILE, help="Replay a trace: Azure, Mooncake, BurstGPT or plain CSV."),
    click.option(
        "--time-scale", type=shared.Finite(), default=1.0, help="Stretch the trace's clock (0.5: twice as fast)."
    ),
    click.option(
        "--rate-scale", type=shared.Finite(), default=1.0, help="Thin (<1) or copy (>1) the trace's requests."
    ),
    click.option("--repeat", type=int, default=1, help="Play the trace so many times."),
    click.option("--duration", metavar="TIME", help='Simulated time, e.g. "10 min".'),
    click.option("--requests", type=int, help="Stop after so many requests."),
    click.option("--warmup", metavar="TIME", help="Leave out the start. Default: found from the run (0 for a trace)."),
    click.option(
        "--prompt", "prompt_tokens", type=int, help="Prompt tokens of every request. Default: the class's lengths."
    ),
    click.option("--output", "output_tokens", type=int, help="Output tokens of every request."),
    click.option("--shared-prefix", type=int, default=0, help="Tokens that all prompts of a class begin with."),
    click.option("--timeout", metavar="TIME", help="Clients leave after this long."),
    click.option("--k", "k", type=int, help="Drafted tokens a step; 0 is plain decoding. Default: the lane's policy."),
    click.option("--schedule", metavar="TEXT", help='k by live streams: "1-4:5, 5-8:3, 9-32:3".'),
    click.option("--verification", type=click.Choice(["token", "block", "greedy"]), help="Default: the lane's policy."),
    click.option(
        "--max-seqs", type=int, help="Sequences that run at once. Default: what the k-schedule covers, or 32."
    ),
    click.option(
        "--limit", "limits", multiple=True, metavar="KEY=VALUE", help="Scheduler limit, e.g. max_batched_tokens=4096."
    ),
    click.option("--replicas", type=int, help="Copies of the lane behind a router."),
    click.option("--router", type=click.Choice(["round-robin", "least-loaded", "prefix-affinity"])),
    click.option("--prefill-replicas", type=int, help="Copies that only compute prompts and send the KV on."),
    click.option("--link", metavar="BANDWIDTH", help='What carries the KV, e.g. "50 GB/s".'),
    click.option(
        "--outage", multiple=True, metavar="WHO@AT+FOR", help='A replica (or the router) is down, e.g. "0@60 s+10 s".'
    ),
    click.option("--slo", metavar="TEXT", help='For goodput, e.g. "p95 TTFT 2 s, p99 TPOT 25 ms".'),
)


def options(function: F) -> F:
    """All of them, in the order of the help page."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def study_from(given: dict[str, Any], roots: Sequence[Path], *, needs_arrivals: bool = True) -> Study:
    """The same study that a file would say, from flags. Without arrivals a rate is assumed, for what searches one."""
    from twin.lane.catalogue import load_lane
    from twin.planning.study import make_study

    kinds = {name: given[name] for name in ("rate", "concurrency", "trace") if given[name] is not None}
    if not given["lanes"] or len(kinds) > 1 or (needs_arrivals and not kinds):
        raise click.UsageError("give a study file, or --lane with one of --rate, --concurrency or --trace.")
    lanes = [load_lane(name, roots) for name in dict.fromkeys(given["lanes"])]
    names = given["traffic"] or (lanes[0].policy.traffic,)
    arrivals: dict[str, Any] = {"think": given["think"], "turns": given["turns"]}
    if given["trace"] is not None:
        arrivals |= {"kind": "trace", "trace": str(given["trace"].resolve())}
        arrivals |= {n: given[n] for n in ("time_scale", "rate_scale", "repeat")}
    elif given["concurrency"] is not None:
        arrivals |= {"kind": "closed", "users": given["concurrency"]}
    else:
        arrivals |= {"kind": "poisson" if given["cv"] is None else "gamma", "rate": given["rate"] or 1.0}
        arrivals |= {"cv": given["cv"]} if given["cv"] is not None else {}
        arrivals |= _ramp(given["ramp"]) if given["ramp"] else {}
    extent = {n: given[n] for n in ("duration", "requests", "warmup") if given[n] is not None}
    common: dict[str, Any] = {"set": list(given["settings"]), "limits": _pairs(given["limits"])}
    common |= {
        n: given[n] for n in ("k", "schedule", "verification", "max_seqs", "calibration") if given[n] is not None
    }
    common["deployment"] = _deployment(given)
    raw = {
        "traffic": [_share(text, given) for text in names], "arrivals": arrivals, "extent": extent,
        "options": [{"name": lane.name, "lane": lane.name} | common for lane in lanes], "seed": given["seed"],
        "slo": given["slo"] or "", "title": " and ".join(lane.title for lane in lanes)[:200],
    }  # fmt: skip
    return make_study(raw, "the command line")


def _share(text: str, given: dict[str, Any]) -> dict[str, Any]:
    name, _, weight = text.partition(":")
    share: dict[str, Any] = {"name": name, "shared_prefix_tokens": given["shared_prefix"]}
    if weight:
        share["weight"] = _number(weight, "--traffic")
    for key in ("prompt_tokens", "output_tokens", "timeout"):
        if given[key] is not None:
            share[key] = given[key]
    return share


def _deployment(given: dict[str, Any]) -> dict[str, Any]:
    from twin.units import parse_quantity

    found = {n: given[n] for n in ("replicas", "router", "prefill_replicas") if given[n] is not None}
    if given["link"] is not None:
        found["link"] = {"bytes_per_s": parse_quantity(given["link"], "bandwidth", where="--link")}
    if given["outage"]:
        found["outages"] = [_outage(text) for text in given["outage"]]
    return found


def _outage(text: str) -> dict[str, Any]:
    from twin.errors import PolicyError
    from twin.units import parse_quantity

    who, at, rest = text.partition("@")
    start, plus, length = rest.partition("+")
    if not at or not plus:
        raise PolicyError(f'--outage {text!r}: expected WHO@AT+FOR, for example "0@60 s+10 s".')
    times = {n: parse_quantity(t.strip(), "time", where="--outage") for n, t in (("at_s", start), ("for_s", length))}
    return {"replica": int(who) if who.strip().isdigit() else who.strip(), **times}


def _ramp(text: str) -> dict[str, Any]:
    from twin.errors import PolicyError

    to, at, over = text.partition("@")
    if not at:
        raise PolicyError(f'--ramp {text!r}: expected TO@TIME, for example "4@10 min".')
    return {"ramp_to": _number(to, "--ramp"), "ramp_over": over.strip()}


def _number(text: str, where: str) -> float:
    from twin.errors import PolicyError

    try:
        return float(text)
    except ValueError:
        raise PolicyError(f"{where}: {text!r} is not a number.") from None


def _pairs(texts: tuple[str, ...]) -> dict[str, Any]:
    from twin.errors import PolicyError

    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise PolicyError(f"--limit {text!r}: expected KEY=VALUE, for example max_batched_tokens=4096.")
        plain = value.strip()
        try:
            found[key.strip()] = int(plain) if plain.lstrip("-").isdecimal() else float(plain)
        except ValueError:
            found[key.strip()] = plain
    return found


class Progress:
    """A line on stderr that is rewritten; silent when stderr is not a terminal."""

    def __init__(self, name: str) -> None:
        self._name = escaped(name)
        self._shown = False

    def __enter__(self) -> Callable[[float, int], None]:
        return self._tell

    def __exit__(self, *_: object) -> None:
        if self._shown:
            click.echo("\r\033[K", file=cursor_stream(), nl=False)

    def _tell(self, now_s: float, ended: int) -> None:
        import sys

        if sys.stderr.isatty():
            self._shown = True
            click.echo(f"\r{self._name}: {now_s:,.0f} s simulated, {ended:,} requests", file=cursor_stream(), nl=False)
