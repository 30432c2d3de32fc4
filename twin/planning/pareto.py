"""Speed for one user against speed of the box: closed loops of growing size, and the points nobody beats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from twin.planning.server import Server, serve
from twin.planning.study import Arrivals, Extent

USERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
#: requests a user in one run: the first wave, which all start together, is one of many
WAVES = 8


@dataclass(frozen=True, slots=True)
class Point:
    """One option with `users` in a closed loop. `front`: no other point is better in both."""

    option: str
    users: int
    tok_s_per_user: float
    tok_s_per_box: float
    ttft_s: float
    front: bool = False


def curve(server: Server, *, users: Sequence[int] = USERS, seed: int = 0) -> list[Point]:
    """Points up to the sequences the server runs at once. A user's speed is 1 / mean TPOT."""
    points = []
    for n in users:
        if n > server.limits.max_seqs * server.deployment.replicas:
            break
        arrivals = Arrivals(kind="closed", users=n)
        result = serve(server, arrivals, Extent(requests=max(WAVES * n, 24)), seed=seed).result
        if result.interrupted:
            raise KeyboardInterrupt
        if result.tpot_s.mean and result.ttft_s.mean is not None:
            per_user = 1.0 / result.tpot_s.mean
            points.append(Point(server.option.name, n, per_user, result.output_tok_s, result.ttft_s.mean))
    return points


def mark_front(points: Sequence[Point]) -> list[Point]:
    """The same points, those on the Pareto front marked."""
    return [
        replace(p, front=not any(_beats(q, p) for q in points))
        for p in points
    ]  # fmt: skip


def _beats(q: Point, p: Point) -> bool:
    no_worse = q.tok_s_per_user >= p.tok_s_per_user and q.tok_s_per_box >= p.tok_s_per_box
    return no_worse and (q.tok_s_per_user > p.tok_s_per_user or q.tok_s_per_box > p.tok_s_per_box)


def plot_pareto(points: Sequence[Point], path: Path, *, title: str) -> None:
    """tok/s per user against tok/s per box, a line an option. Needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5.5), layout="constrained")
    axes = figure.subplots()
    for option in dict.fromkeys(p.option for p in points):
        mine = [p for p in points if p.option == option]
        axes.plot([p.tok_s_per_user for p in mine], [p.tok_s_per_box for p in mine], marker="o", label=option)
        for p in mine:
            axes.annotate(str(p.users), (p.tok_s_per_user, p.tok_s_per_box), textcoords="offset points", xytext=(4, 4))
    axes.set_xlabel("tok/s per user (1 / mean TPOT)")
    axes.set_ylabel("tok/s per box")
    axes.set_title(title)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path)
