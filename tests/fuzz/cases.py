"""A case: a command line and the files it reads, made from a seed and a number alone."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import click

from twin.cli.main import cli

from .listening import board_requests, endpoint_requests, replies
from .mutate import NUMBERS, WORDS, mutated
from .servers import Reply

ROOT = Path(__file__).resolve().parents[2]
LANES = (
    "tp4",
    "sidecar",
    "sidecar-el8",
    "rtx4-sglang",
    "gb10x4-vllm",
    "grace-nightly",
    "v3-4090-xeon2",
    "mixtral-8x7b-h100x2",
)
TRAFFIC = ("code", "prose", "math", "mixed", "pooled")
#: drawn by kinds of their own, with the other end of the socket
NETWORKED = frozenset({"serve", "board", "watch"})
#: commands that take a second and more: drawn less often
SLOW = frozenset({"plan", "levers", "report", "fit", "validate", "suggest", "sweep", "simulate", "explain", "check"})


@dataclass
class Case:
    """`words` of the command line; `{dir}` in a word is the folder that holds `files`, `{url}` the server with `replies`.

    `requests` are what clients send to the server that the command starts.
    """

    kind: str
    words: list[str]
    files: dict[str, bytes] = field(default_factory=dict)
    names: str = ""  # what a refusal must mention
    replies: list[Reply] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)


@lru_cache(maxsize=1)
def _commands() -> dict[str, click.Command]:
    context = click.Context(cli)
    found = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


@lru_cache(maxsize=64)
def _texts(pattern: str) -> list[tuple[str, str]]:
    paths = sorted(p for p in ROOT.glob(pattern) if p.is_file() and p.stat().st_size < 500_000)
    return [(p.name, p.read_text(encoding="utf-8", errors="replace")) for p in paths]


def make_case(seed: int, number: int) -> Case:
    """The case of a number; the same on every machine."""
    rng = random.Random(f"{seed}:{number}")
    return rng.choices(_KINDS, _WEIGHTS)[0](rng)


def _flags(rng: random.Random) -> Case:
    commands = _commands()
    quick = [name for name in commands if name not in SLOW | NETWORKED]
    alone = [name for name in commands if name not in NETWORKED]
    name = rng.choice(alone if rng.random() < 0.15 else quick)
    words, command = [name], commands[name]
    if isinstance(command, click.Group):
        sub = rng.choice(sorted(command.commands))
        words, command = [name, sub], command.commands[sub]
    words += _options(command, rng)
    # Without a table these two go through every receipt there is, which takes minutes and reads nothing hostile.
    words += {"validate": ["--receipts", "{dir}/none.csv"], "fit": ["{dir}/none.csv"]}.get(name, [])
    if rng.random() < 0.1:
        words.insert(rng.randrange(len(words) + 1), rng.choice(WORDS))
    return Case(f"flags {name}", words)


def _options(command: click.Command, rng: random.Random, skip: frozenset[str] = frozenset()) -> list[str]:
    words: list[str] = []
    for parameter in command.params:
        if parameter.name in skip:
            continue
        required = parameter.required or parameter.name in ("lane_name", "rate", "study_file")
        if rng.random() < (0.9 if required else 0.25):
            words += _given(parameter, rng)
    return words


def _given(parameter: click.Parameter, rng: random.Random) -> list[str]:
    value = _a_value(parameter, rng)
    if isinstance(parameter, click.Argument):
        return [value]
    assert isinstance(parameter, click.Option)
    flag = rng.choice([*parameter.opts, *parameter.secondary_opts])
    if parameter.is_flag:
        return [flag]
    return [flag, value] if not flag.startswith("--") or rng.random() < 0.5 else [f"{flag}={value}"]


def _a_value(parameter: click.Parameter, rng: random.Random) -> str:
    if rng.random() < 0.15:
        return rng.choice(WORDS)
    name = parameter.name or ""
    if isinstance(parameter.type, click.Choice):
        return rng.choice([str(c) for c in parameter.type.choices])
    if isinstance(parameter.type, click.Path) or "file" in name or name in ("output", "catalogue", "store"):
        return rng.choice(
            [
                "{dir}/new.json",
                "{dir}/new.csv",
                "{dir}/new.toml",
                "{dir}",
                "{dir}/none",
                "/dev/null",
                "/proc/self/mem",
                "",
            ]
        )
    if isinstance(parameter.type, (click.types.IntParamType, click.types.FloatParamType)):
        return rng.choice([*NUMBERS, "1", "2", "3", "4", "5", "7", "8"])
    likely = {
        "lane_name": LANES, "lanes": LANES, "traffic": TRAFFIC, "name": (*LANES, *TRAFFIC), "kind": ("lane", "device", "link"),
        "concurrency": ("1", "1,4", "1..8"), "verification": ("token", "block", "greedy"), "checkpoint": ("deepseek-v4.1-flash", "kimi-k2"),
        "schedule": ("1-4:5, 5-8:3", "[[1,4,5]]", "1-4:"), "tokens": ("1,2,4", "6"), "streams": ("1,4",), "rate": ("2/s", "0.5 /s"),
        "a": LANES, "b": LANES, "settings": ('links.sidecar.latency="8 us"', "placement.hot=330", "policy.k=3", "x=1", "placement.hot=nan"),
        "calibration": ("priors", *LANES), "question": ("k=7 vs k=5",), "slo": ("p95 TTFT 2 s",),
    }  # fmt: skip
    return rng.choice(likely.get(name, WORDS))


def _catalogue(rng: random.Random) -> Case:
    folder = rng.choice(["devices", "links", "checkpoints", "engines", "lanes", "lanes"])
    name, text = rng.choice(_texts(f"hardware/{folder}/*.toml"))
    stem = name.removesuffix(".toml")
    words = ["show", folder.removesuffix("s"), stem, "--catalogue", "{dir}"]
    if folder == "lanes":
        words = [
            "predict",
            "--lane",
            stem,
            "--catalogue",
            "{dir}",
            *rng.choice([[], ["--k", "3"], ["--json"], ["-c", "1,8"]]),
        ]
    elif rng.random() < 0.4:
        words = ["predict", "--lane", rng.choice(LANES), "--catalogue", "{dir}"]
    return Case("catalogue", words, {f"hardware/{folder}/{name}": mutated(text, rng)})


def _traffic(rng: random.Random) -> Case:
    name, text = rng.choice(_texts("scenarios/traffic/*.toml"))
    stem = name.removesuffix(".toml")
    words = rng.choice([
        ["predict", "--lane", rng.choice(LANES), "--traffic", stem], ["acceptance", "--traffic", stem], ["traffic", "show", stem],
        ["schedule", "--lane", "sidecar", "--traffic", stem],
    ])  # fmt: skip
    return Case("traffic", [*words, "--catalogue", "{dir}"], {f"scenarios/traffic/{name}": mutated(text, rng)})


def _calibration(rng: random.Random) -> Case:
    name, text = rng.choice(_texts("calibration/fits/*.json"))
    lane = rng.choice([name.removesuffix(".json"), "tp4"])
    words = ["predict", "--lane", lane, "--calibration", f"{{dir}}/{name}", *rng.choice([[], ["--json"], ["--csv"]])]
    return Case("calibration", words, {name: mutated(text, rng)}, name)


def _receipts(rng: random.Random) -> Case:
    _name, text = rng.choice(_texts("calibration/receipts/*.csv") + _texts("calibration/receipts/evidence/*.csv"))
    lines = text.splitlines(keepends=True)
    text = "".join([lines[0], *lines[1 : rng.randrange(2, 12)]])
    if rng.random() < 0.12:
        words = ["fit", "{dir}/r.csv", "--lane", "tp4", "-o", "{dir}/out.json"]
    else:
        words = ["validate", "--receipts", "{dir}/r.csv", *rng.choice([[], ["--json"], ["--fail-over", "5%"]])]
    return Case("receipts", words, {"r.csv": mutated(text, rng)})


def _import(rng: random.Random) -> Case:
    name, text = rng.choice(_texts("tests/ingest/fixtures/*/*"))
    words = ["import", f"{{dir}}/{name}"]
    words += rng.choice(
        [[], ["--json"], ["--lane", "tp4", "--traffic", "code", "--verification", "block", "-o", "{dir}/out.csv"]]
    )
    return Case("import", words, {name: mutated(text, rng)}, name)


def _study(rng: random.Random) -> Case:
    name, text = rng.choice(_texts("scenarios/reports/*.toml") + _texts("scenarios/whatif/*.toml"))
    # What is read is what is fuzzed: a whole plan takes a minute, so two options and twenty requests are left of it.
    text = re.sub(r"(?m)^requests = .*", "requests = 20", re.sub(r"(?m)^duration = .*", 'duration = "5 s"', text))
    text = "[[options]]".join(text.split("[[options]]")[:3])
    command = rng.choice(
        [
            ["report", f"{{dir}}/{name}", "-o", "{dir}/page.html"],
            ["simulate", f"{{dir}}/{name}"],
            ["plan", f"{{dir}}/{name}", "--replications", "1", "--no-pareto", "--workers", "1"],
        ]
    )
    return Case("study", command, {name: mutated(text, rng)})


def _counts(rng: random.Random) -> Case:
    name, text = rng.choice(
        _texts("tests/ingest/fixtures/constructed/*routing_counts*")
        + _texts("tests/ingest/fixtures/constructed/expert*")
    )
    words = [
        "placement",
        f"{{dir}}/{name}",
        "--top-k",
        "2",
        "--hot",
        "24",
        *rng.choice([[], ["--json"], ["--experts", "64"]]),
    ]
    return Case("counts", words, {name: mutated(text, rng)})


def _rerun(rng: random.Random) -> Case:
    _name, text = rng.choice(_texts("tests/data/*.json"))
    return Case("rerun", ["rerun", "{dir}/r.json"], {"r.json": mutated(text, rng)})


def _clean(rng: random.Random) -> Case:
    table, rules = (_texts(f"calibration/evidence/{name}")[0][1] for name in ("receipts.csv", "rules.toml"))
    lines = table.splitlines(keepends=True)
    start = rng.randrange(1, len(lines))
    table = "".join([lines[0], *lines[start : start + rng.randrange(1, 12)]])
    files = {
        "runs.csv": mutated(table, rng),
        "rules.toml": mutated(rules, rng) if rng.random() < 0.5 else rules.encode(),
    }
    words = [
        "receipts",
        "clean",
        "{dir}/runs.csv",
        "-o",
        "{dir}/out",
        *rng.choice([[], ["--json"], ["--log", "{dir}/log.csv"]]),
    ]
    return Case("clean", words, files)


# A port that is taken, too large or no number; 0 takes a free one and lets the server start.
_PORTS = (*["0"] * 40, "65536", "-1", "x", "", "1e3", "9" * 30)


def _port_and_host(rng: random.Random) -> list[str]:
    host = (
        []
        if rng.random() < 0.8
        else ["--host", rng.choice([*WORDS, "::1", "localhost", "256.0.0.1", "127.0.0.1 ", "a" * 80 + ".b"])]
    )
    return ["--port", rng.choice(_PORTS), *host]


def _mostly(good: Sequence[str], bad: Sequence[str], rng: random.Random) -> str:
    # One wrong flag ends a command before it opens its socket.
    return rng.choice(good if rng.random() < 0.9 else bad)


def _serve(rng: random.Random) -> Case:
    speed = _mostly(["max", "max", "1000", "1e6"], ["0", "nan", "", "max "], rng)
    words = ["serve", "--lane", rng.choice(LANES), "--speed", speed]
    if rng.random() < 0.3:
        words += _options(_commands()["serve"], rng, frozenset({"host", "port", "lane_name", "speed"}))
    return Case("serve", [*words, *_port_and_host(rng)], requests=endpoint_requests(rng))


def _board(rng: random.Random) -> Case:
    words = ["board"]
    if rng.random() < 0.2:
        words += _options(_commands()["board"], rng, frozenset({"host", "port"}))
    return Case("board", [*words, *_port_and_host(rng)], requests=board_requests(rng))


def _watch(rng: random.Random) -> Case:
    url = _mostly(
        ["{url}", "http://{url}/v1", "http://{url}/metrics"],
        [*WORDS, "http://[", "file:///etc/passwd", "ftp://x", "http://127.0.0.1:99999", "http://user:pass@{url}/"],
        rng,
    )
    timeout = _mostly(["0.1 s", "100 ms"], ["0 s", "nan s", "1e300 s"], rng)
    interval = _mostly(["10 ms", "1 ms"], ["0 s", "-1 s", "nan s", "1e300 s", "1e-300 s", "8 parsecs", "9 s"], rng)
    words = ["watch", url, "--lane", rng.choice(LANES), "--once", "--timeout", timeout, "--interval", interval]
    words += rng.choice(
        [
            [],
            [],
            ["--json"],
            ["--record", "{dir}/r.csv"],
            ["--refit", "{dir}/out.json"],
            ["--prometheus", rng.choice(_PORTS)],
        ]
    )
    if rng.random() < 0.2:
        skip = {"url", "lane_name", "once", "duration", "timeout", "interval", "record", "refit", "port", "as_json"}
        words += _options(_commands()["watch"], rng, frozenset(skip))
    return Case("watch", words, replies=replies(rng))


_KINDS: Sequence[Callable[[random.Random], Case]] = (
    _flags, _catalogue, _traffic, _calibration, _receipts, _import, _study, _counts, _rerun, _clean, _serve, _board, _watch,
)  # fmt: skip
_WEIGHTS = (36, 16, 10, 10, 8, 10, 2, 4, 4, 4, 1, 2, 2)
