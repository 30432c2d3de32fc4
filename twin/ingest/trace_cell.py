"""A kernel trace as one cell: step time, time by class, idle time and launches, with the evidence for its steps."""

from __future__ import annotations

from twin.ingest.model import Cell, Found
from twin.ingest.trace_steps import Kernels, Steps, find_steps

#: an idle share above this means the host, not the GPU, sets the pace
IDLE_SHARE = 0.10


def add_cell(found: Found, kernels: Kernels) -> None:
    """Find the steps of `kernels`, add the cell and put the whole finding into `found.extras["trace"]`."""
    steps = find_steps(kernels, found.where)
    cell = Cell(
        f"{steps.count} steps", step_s=steps.step_s, step_definition="step_interval", noise=max(0.005, steps.spread)
    )
    # A copy on the main stream is neither compute nor idle; the report's classes have no place for it but "other".
    stages = dict(steps.stages_s)
    stages["other"] = stages.pop("other", 0.0) + stages.pop("copy", 0.0)
    cell.stages_s = {name: seconds for name, seconds in stages.items() if seconds > 0}
    if steps.idle_s > IDLE_SHARE * steps.step_s:
        cell.flag(
            "gpu-idle",
            f"the GPU is idle {steps.idle_s * 1e3:.2f} ms of a {steps.step_s * 1e3:.2f} ms step: launches or the host "
            "set the pace",
        )
    if steps.evidence["match"] < 0.9:
        cell.flag(
            "steps-irregular",
            f"only {steps.evidence['match']:.0%} of the kernels repeat with the period; the load was not steady",
        )
    cell.flag(
        "profiled",
        "a profiler slows launches down; step time and idle time are upper bounds, kernel times are not affected",
    )
    found.cells.append(cell)
    found.extras["trace"] = summary(steps)


def summary(steps: Steps) -> dict[str, object]:
    """The finding for JSON."""
    return {
        "steps": steps.count,
        "steps_set_aside": steps.irregular,
        "kernels_per_step": steps.kernels,
        "step_ms": round(steps.step_s * 1e3, 6),
        "ms_by_class": {
            name: round(seconds * 1e3, 6) for name, seconds in sorted(steps.stages_s.items(), key=lambda s: -s[1])
        },
        "idle_ms": round(steps.idle_s * 1e3, 6),
        "median_gap_us": round(steps.gap_s * 1e6, 3),
        "overlapped_ms": round(steps.off_stream_s * 1e3, 6),
        "launches_per_step": steps.launches,
        "largest_kernels": steps.largest,
        "evidence": steps.evidence,
    }
