"""How fast `twin watch` finds a drift and how often it raises a false alarm: serve and watch on one simulated clock.

    python -m tests.watch.measure                       a few minutes, prints the tables
    python -m tests.watch.measure --runs 40 --hours 4 --write      the tables of docs/watch.md

A run begins with the lane at work for a minute; then the watch takes its first reading, and the time to the first alarm
counts from there. All randomness is seeded: the same arguments give the same tables.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tests.watch.watch_support import expectations, lane_server, loaded, watch_of
from twin.acceptance.profile import conditional_from_survival, expit, logit, survival_from_conditional
from twin.planning.server import Server
from twin.serving.draws import ProfileDraw
from twin.serving.lane import LaneProfiles
from twin.watch.answers import Present
from twin.watch.likelihood import POSITION_SD, position_shifts
from twin.watch.session import STEP, position

PAGE = Path(__file__).parents[2] / "docs" / "watch.md"
BEGIN, END = "<!-- measured: python -m tests.watch.measure --write -->", "<!-- end of measured -->"
#: (name, class, output tokens; None: the class's own lengths)
TRAFFIC = (
    ("mixed, 200 tokens", "mixed", 200),
    ("mixed, own lengths", "mixed", None),
    ("code, 256 tokens", "code", None),
)
USERS = (1, 4, 16)
WARM_UP_S, LONGEST_S = 60.0, 600.0
DRIFTS: dict[str, tuple[dict[str, object], str]] = {
    "+15 % step time": ({"step_factor": 1.15}, STEP),
    "acceptance at position 1 lowered by 0.1": ({"acceptance_shift": {1: -0.1}}, position(0)),
}


@dataclass(frozen=True)
class Found:
    """Of runs with a drift: seconds to the first alarm (LONGEST_S: none), and how many named the right factor."""

    seconds: np.ndarray
    named: int

    def cells(self) -> str:
        median, late = np.percentile(self.seconds, [50, 95])
        within = int((self.seconds <= 120.0).sum())
        return f"{median:.0f} s | {late:.0f} s | {within} of {len(self.seconds)} | {self.named} of {len(self.seconds)}"


def detection(name: str, output: int | None, users: int, drift: str, runs: int) -> Found:
    change, expected = DRIFTS[drift]
    seconds, named = [], 0
    for seed in range(runs):
        engine = loaded(users, output=output, traffic=name, seed=1000 + seed, **change)
        engine.advance(WARM_UP_S)
        taken_s, factor = LONGEST_S, ""
        for observation in watch_of(engine, traffic=name).run(LONGEST_S):
            if observation.alarms:
                taken_s, factor = observation.at_s - WARM_UP_S, observation.alarms[0].factor
                break
        seconds.append(taken_s)
        named += factor == expected
    return Found(np.array(seconds), named)


def false_alarms(name: str, output: int | None, users: int, hours: float, **change: object) -> tuple[int, float]:
    """Alarms on a lane that is the twin's (or changed as told), and the highest level of a chart."""
    engine = loaded(users, output=output, traffic=name, seed=5, **change)
    engine.advance(WARM_UP_S)
    count, highest = 0, 0.0
    for observation in watch_of(engine, traffic=name).run(hours * 3600.0):
        count += len(observation.alarms)
        highest = max(highest, observation.level)
        for stream in engine.streams.values():
            stream.chunks.clear()  # nobody reads them here
    return count, highest


def uneven_server(name: str, seeds: int = 8) -> Server:
    """The lane with streams that also differ from each other at single positions, as the charts allow for."""
    server, rng = lane_server(name), np.random.default_rng(6)
    sources, weights = [], []
    for levels, shares in zip(server.profiles.sources, server.profiles.weights, strict=True):
        found, parts = [], []
        for level, share in zip(levels, shares, strict=True):
            for _ in range(seeds):
                e = rng.normal(0.0, POSITION_SD, 8)
                tables = {k: conditional_from_survival(s[::-1]) for k, s in level._survival.items() if k}
                moved = {k: survival_from_conditional(expit(logit(c) + e[:k])).tolist() for k, c in tables.items()}
                found.append(ProfileDraw(moved))
                parts.append(share / seeds)
        sources.append(found)
        weights.append(parts)
    return replace(server, profiles=LaneProfiles(sources, weights))


def poisson_interval(count: int, exposure: float) -> tuple[float, float]:
    """Exact 95 % interval of a rate (Garwood 1936)."""
    from scipy.stats import chi2

    low = chi2.ppf(0.025, 2 * count) / 2 if count else 0.0
    return low / exposure, chi2.ppf(0.975, 2 * count + 2) / 2 / exposure


def best_possible(name: str, runs: int, within_s: float = 120.0) -> tuple[float, float]:
    """Power at `within_s` for one stream of a test that knows every answer's own counts; and answers in that time.

    The log-likelihood ratio of exactly the drift against the edge of the interval, added up over the answers: by Neyman
    and Pearson no test of these counts at the same size has more power. A counter page shows less.
    """
    expected = expectations(name)
    engine = loaded(1, output=None, traffic=name, seed=7)
    engine.advance(3600.0)
    answers = engine.metrics.histograms["request_generation_tokens"].count / 3600.0 * within_s
    k = expected.server.k_by_streams[1]
    kinds, shifts = expected._kinds[k], expected._shifts(expected._acceptance[k], expected._acceptance[k])
    edge = float(expected._acceptance[k].edge[0])
    # -edge and -0.1 are neighbours on the grid of shifts
    asked = (position_shifts(kinds, 0, edge, 0.1 - edge), *shifts[1:])
    moved = float(np.interp(-0.1, asked[0].values, asked[0].logits))
    rng = np.random.default_rng(3)
    limit = math.log(2 * 28_800 / 5.0)
    tokens = expected.server.predictors[0].traffic.length.output.draw(rng, 4096)
    reached = []
    for _ in range(runs):
        total = 0.0
        for _ in range(rng.poisson(answers)):
            kind = rng.choice(len(kinds.answer_share), p=kinds.answer_share)
            own = kinds.conditional[:, kind].copy()
            own[0] = expit(logit(own[0]) + moved)
            survival = np.concatenate([[1.0], np.cumprod(own), [0.0]])
            cells = survival[:-1] - survival[1:]
            blocks = max(round(min(float(rng.choice(tokens)), 4096.0) / (1.0 + float(np.cumprod(own).sum()))), 1)
            counts = rng.multinomial(blocks, cells / cells.sum())
            found = expected._likelihood.of(list(counts), (k, k, 1.0), asked, Present(0, 1, 1e6, 1.0, 0.0))
            total += float(found[0][2] - found[0][3])
        reached.append(total > limit)
    return float(np.mean(reached)), answers


def tables(runs: int, hours: float) -> Iterator[str]:
    for drift in DRIFTS:
        yield f"Time to the alarm, {drift} ({runs} runs each):\n"
        yield "| traffic | C | median | 95th percentile | within two minutes | named right |"
        yield "|---|---|---|---|---|---|"
        for label, name, output in TRAFFIC:
            for users in USERS:
                yield f"| {label} | {users} | {detection(name, output, users, drift, runs).cells()} |"
        yield ""
    yield f"False alarms on the lane itself ({hours:g} simulated hours each; rate an hour, 95 % Poisson interval):\n"
    yield "| traffic | C | alarms | rate | highest level |"
    yield "|---|---|---|---|---|"
    alarms, watched = 0, 0.0
    for label, name, output in TRAFFIC:
        for users in USERS:
            count, highest = false_alarms(name, output, users, hours)
            low, high = poisson_interval(count, hours)
            alarms, watched = alarms + count, watched + hours
            yield f"| {label} | {users} | {count} | {low:.3f} to {high:.3f} | {highest:.2f} |"
    low, high = poisson_interval(alarms, watched)
    yield f"| all | | {alarms} in {watched:g} h | {low:.4f} to {high:.4f} | |\n"
    yield f"False alarms where streams also differ at single positions ({hours / 4:g} h simulated each):\n"
    yield "| traffic | C | alarms | rate | highest level |"
    yield "|---|---|---|---|---|"
    for label, name, output in TRAFFIC[:2]:
        for users in USERS:
            count, highest = false_alarms(name, output, users, hours / 4, server=uneven_server(name))
            low, high = poisson_interval(count, hours / 4)
            yield f"| {label} | {users} | {count} | {low:.3f} to {high:.3f} | {highest:.2f} |"
    yield ""
    yield f"At the edge of the intervals (mixed, 200 tokens, {hours / 4:g} h simulated each; 0.125 an hour is the limit):\n"
    yield "| factor at its edge | C | alarms | rate |"
    yield "|---|---|---|---|"
    for users in USERS:
        expected = expectations("mixed")
        k = expected.server.k_by_streams[users]
        edges = {
            "step time": {"step_factor": math.exp(expected._edge(k, users, 1024))},
            "acceptance at position 1": {"acceptance_shift": {1: -float(expected._acceptance[k].edge[0])}},
        }
        for factor, change in edges.items():
            count, _ = false_alarms("mixed", 200, users, hours / 4, **change)
            low, high = poisson_interval(count, hours / 4)
            yield f"| {factor} | {users} | {count} | {low:.3f} to {high:.3f} |"
    yield ""
    for label, name in (("mixed", "mixed"), ("code", "code")):
        power, answers = best_possible(name, max(5 * runs, 20))
        yield (
            f"Best possible at C = 1, {label} at its own lengths, position 1 lowered by 0.1: {answers:.0f} answers in two "
            f"minutes, power {power:.2f} of a test that knows each answer's counts, at the same false-alarm rate."
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.name}")
    given = parser.parse_args()
    found = []
    for row in tables(given.runs, given.hours):
        print(row, flush=True)
        found.append(row)
    if given.write:
        page = PAGE.read_text(encoding="utf-8")
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(found) + f"\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
