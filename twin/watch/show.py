"""An observation as a line for people and as JSON for programs."""

from __future__ import annotations

from typing import Any

from twin.watch.session import Observation, describe

HEADER = (
    "   time streams  step ms: actual   twin (90 % interval)      off  tok/s queue kept/step  acceptance: actual (twin)"
)


def line(observation: Observation) -> str:
    """One line of the table under HEADER, with the alarms below it."""
    window, step = observation.window, observation.step
    clock = f"{observation.at_s:7.0f}"
    if window is None or observation.notice:
        return f"{clock}  {observation.notice}"
    ratio = observation.step_ratio
    cells = [
        clock,
        _number(window.streams, "7.1f"),
        _number(window.step_s and window.step_s * 1e3, "16.2f"),
        f"{step.step_s * 1e3:6.2f} ({step.low_s * 1e3:.2f} to {step.high_s * 1e3:.2f})" if step else f"{'-':>22}",
        f"{ratio - 1.0:+8.1%}" if ratio else f"{'-':>8}",
        _number(window.output_tok_s, "6.0f"),
        _number(window.waiting, "5.0f"),
        _number(window.tokens_per_step, "9.2f"),
    ]
    expected = observation.acceptance.conditional if observation.acceptance is not None else ()
    pairs = [f"{a:.2f} ({e:.2f})" for a, e in zip(observation.conditional, expected, strict=False) if a is not None]
    cells.append(" " + " ".join(pairs))
    return "\n".join([" ".join(cells), *(describe(a) for a in observation.alarms)])


def _number(value: float | None, form: str) -> str:
    return f"{value:{form}}" if value is not None else f"{'-':>{form.split('.')[0]}}"


def to_json(observation: Observation) -> dict[str, Any]:
    """The JSON of one observation, one a line with `--json`."""
    window, step, accepted = observation.window, observation.step, observation.acceptance
    found: dict[str, Any] = {"schema_version": 1, "command": "watch", "time_s": observation.at_s}
    found["notice"] = observation.notice
    if window is not None:
        found["window"] = {
            "seconds": window.seconds, "streams": window.streams, "running": window.running,
            "waiting": window.waiting, "kv_usage": window.kv_usage, "output_tok_s": window.output_tok_s,
            "ttft_s": window.ttft_s, "drafts": window.drafts,
        }  # fmt: skip
        found["step_s"] = {
            "actual": window.step_s, "predicted": step.step_s if step else None,
            "low": step.low_s if step else None, "high": step.high_s if step else None,
        }  # fmt: skip
        found["tokens_per_step"] = {
            "actual": window.tokens_per_step, "predicted": accepted.tokens_per_step if accepted else None,
        }  # fmt: skip
        found["conditional_acceptance"] = {
            "actual": list(observation.conditional),
            "predicted": [float(p) for p in accepted.conditional] if accepted else [],
        }
    found["drift_level"] = observation.level
    found["alarms"] = [
        {"factor": a.factor, "deviation": a.deviation, "since_s": a.since_s, "at_s": a.at_s} for a in observation.alarms
    ]
    return found
