"""Periodic log lines of a server as measurements: windows with the same number of running requests, pooled.

In a window with R running requests, G generated tokens per second and A tokens per step, a step takes R x A / G
seconds. That holds while R is constant and nothing is prefilled, so windows at a change of R and windows with prompt
tokens in them are set aside as warm-up, drain or prefill interference, and counted. Windows are folded as they come: a
log of months costs sixteen bytes a window, for the medians.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from twin.ingest.model import Cell

MAX_WINDOWS = 4_000_000
#: fewest clean windows a concurrency needs
MIN_WINDOWS = 3


@dataclass(slots=True)
class Window:
    """One log interval: running requests, step time in seconds, tokens per step, whether a prefill fell into it."""

    running: int
    step_s: float | None
    tokens_per_step: float | None
    disturbed: bool = False
    waiting: int = 0
    context_tokens: float | None = None
    drafts: float = 0.0
    accepted_per_position: tuple[float, ...] = ()


@dataclass
class Acceptance:
    """Tokens per step and acceptance by position over windows; positions only of the windows that print most of them."""

    count: int = 0
    total: float = 0.0
    drafts: float = 0.0
    accepted: tuple[float, ...] = ()

    def add(self, window: Window) -> None:
        """Fold a window's acceptance in."""
        if window.tokens_per_step:
            self.count, self.total = self.count + 1, self.total + window.tokens_per_step
        own = window.accepted_per_position
        if len(own) > len(self.accepted):
            self.drafts, self.accepted = 0.0, (0.0,) * len(own)
        if own and len(own) == len(self.accepted):
            self.drafts += window.drafts
            self.accepted = tuple(a + b for a, b in zip(self.accepted, own, strict=True))

    @property
    def tokens_per_step(self) -> float | None:
        """The plain mean: windows at one concurrency have about the same number of steps."""
        return self.total / self.count if self.count else None

    @property
    def survival(self) -> tuple[float, ...]:
        """Accepted at least that far over drafts, by position."""
        return tuple(min(1.0, a / self.drafts) for a in self.accepted) if self.drafts > 0 else ()


@dataclass
class _Group:
    steps_s: array[float] = field(default_factory=lambda: array("d"))
    contexts: array[float] = field(default_factory=lambda: array("d"))
    acceptance: Acceptance = field(default_factory=Acceptance)


class Tally:
    """Windows of a log, in order; whether one is steady is known when the next has come."""

    def __init__(self) -> None:
        self.count = 0
        self._before = 0
        self._last: Window | None = None
        self._groups: dict[int, _Group] = defaultdict(_Group)
        self._aside: dict[str, int] = defaultdict(int)

    def add(self, window: Window) -> None:
        """Take the next window. The one given before must not change any more."""
        self._settle(window.running)
        self.count, self._last = self.count + 1, window

    def cells(self, source: str) -> tuple[list[Cell], dict[str, int]]:
        """One cell for each concurrency with enough clean windows, and how many windows were set aside and why."""
        self._settle(0)
        self._last = None
        cells = []
        aside = dict(self._aside)
        for running, group in sorted(self._groups.items()):
            if len(group.steps_s) < MIN_WINDOWS:
                reason = f"fewer than {MIN_WINDOWS} clean windows at {running} running"
                aside[reason] = aside.get(reason, 0) + len(group.steps_s)
                continue
            cells.append(_cell(running, group, source))
        return cells, aside

    def _settle(self, after: int) -> None:
        window, before = self._last, self._before
        if window is None:
            return
        self._before = window.running
        if window.running == 0:
            self._aside["idle"] += 1
        elif window.step_s is None:
            self._aside["no rate"] += 1
        elif before != window.running or after != window.running:
            self._aside["the number of running requests changed (warm-up and drain)"] += 1
        elif window.disturbed:
            self._aside["a prompt was prefilled meanwhile"] += 1
        else:
            group = self._groups[window.running]
            group.steps_s.append(window.step_s)
            if window.context_tokens is not None:
                group.contexts.append(window.context_tokens)
            group.acceptance.add(window)


def _cell(running: int, group: _Group, source: str) -> Cell:
    steps = np.array(group.steps_s)
    middle = float(np.median(steps))
    cell = Cell(f"{running} running", concurrency_asked=float(running), step_s=middle, step_definition="step_interval")
    kept = group.acceptance.tokens_per_step
    if kept:
        cell.tokens_per_step, cell.acceptance_source = kept, "run"
        cell.tok_s_per_stream, cell.per_stream_definition = kept / middle, "fixed_window"
    # 1.4826 makes the median absolute deviation a standard deviation for normal noise.
    cell.noise = max(0.005, 1.4826 * float(np.median(np.abs(steps - middle))) / middle)
    if group.acceptance.survival:
        cell.survival, cell.drafts = group.acceptance.survival, round(group.acceptance.drafts)
    if group.contexts:
        cell.context_tokens = float(np.median(group.contexts))
        cell.notes.append("context is the tokens held per request while decoding, not the prompt length")
    cell.notes.append(f"median of {len(steps)} {source} windows")
    return cell
