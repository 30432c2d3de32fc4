"""Periodic log lines of a server as measurements: windows with the same number of running requests, pooled.

In a window with R running requests, G generated tokens per second and A tokens per step, a step takes R x A / G
seconds. That holds while R is constant and nothing is prefilled, so windows at a change of R and windows with prompt
tokens in them are set aside as warm-up, drain or prefill interference, and counted.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from twin.ingest.model import Cell

MAX_WINDOWS = 2_000_000
#: fewest clean windows a concurrency needs
MIN_WINDOWS = 3


@dataclass
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
class Tally:
    """Windows of a log, in order."""

    windows: list[Window] = field(default_factory=list)

    def cells(self, source: str) -> tuple[list[Cell], dict[str, int]]:
        """One cell for each concurrency with enough clean windows, and how many windows were set aside and why."""
        groups: dict[int, list[Window]] = defaultdict(list)
        aside: dict[str, int] = defaultdict(int)
        for index, window in enumerate(self.windows):
            before = self.windows[index - 1].running if index else 0
            after = self.windows[index + 1].running if index + 1 < len(self.windows) else 0
            if window.running == 0:
                aside["idle"] += 1
            elif window.step_s is None:
                aside["no rate"] += 1
            elif before != window.running or after != window.running:
                aside["the number of running requests changed (warm-up and drain)"] += 1
            elif window.disturbed:
                aside["a prompt was prefilled meanwhile"] += 1
            else:
                groups[window.running].append(window)
        cells = []
        for running, members in sorted(groups.items()):
            if len(members) < MIN_WINDOWS:
                aside[f"fewer than {MIN_WINDOWS} clean windows at {running} running"] += len(members)
                continue
            cells.append(_cell(running, members, source))
        return cells, dict(aside)


def _cell(running: int, members: list[Window], source: str) -> Cell:
    steps = np.array([w.step_s for w in members])
    middle = float(np.median(steps))
    cell = Cell(f"{running} running", concurrency_asked=float(running), step_s=middle, step_definition="step_interval")
    lengths = [w.tokens_per_step for w in members if w.tokens_per_step]
    if lengths:
        # Windows at one concurrency have about the same number of steps, so the plain mean weighs steps equally.
        cell.tokens_per_step, cell.acceptance_source = float(np.mean(lengths)), "run"
        cell.tok_s_per_stream, cell.per_stream_definition = cell.tokens_per_step / middle, "fixed_window"
    # 1.4826 makes the median absolute deviation a standard deviation for normal noise.
    cell.noise = max(0.005, 1.4826 * float(np.median(np.abs(steps - middle))) / middle)
    positions = max((len(w.accepted_per_position) for w in members), default=0)
    drafts = sum(w.drafts for w in members if len(w.accepted_per_position) == positions)
    if positions and drafts > 0:
        total = np.sum([w.accepted_per_position for w in members if len(w.accepted_per_position) == positions], axis=0)
        cell.survival, cell.drafts = tuple(float(min(1.0, t / drafts)) for t in total), round(drafts)
    contexts = [w.context_tokens for w in members if w.context_tokens is not None]
    if contexts:
        cell.context_tokens = float(np.median(contexts))
        cell.notes.append("context is the tokens held per request while decoding, not the prompt length")
    cell.notes.append(f"median of {len(members)} {source} windows")
    return cell
