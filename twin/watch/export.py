"""Predictions and residuals as a Prometheus page of their own, for the dashboard that shows the server."""

from __future__ import annotations

from typing import Any

from twin.errors import TwinError
from twin.watch.session import Observation, Watch


class Exporter:
    """Serves the latest observation at `http://127.0.0.1:port/metrics`; gauges without a value are nan."""

    def __init__(self, port: int, lane: str) -> None:
        from prometheus_client import CollectorRegistry, Gauge, start_http_server

        self._registry = CollectorRegistry()

        def gauge(name: str, text: str, *labels: str) -> Any:
            return Gauge(name, text, ["lane", *labels], registry=self._registry)

        self._lane = lane
        self._step = gauge("twin_step_seconds", "Step time: actual, predicted, low and high of the interval.", "kind")
        self._accepted = gauge("twin_acceptance", "Conditional acceptance, positions from 1.", "position", "kind")
        self._kept = gauge("twin_tokens_per_step", "Tokens kept by a verify step.", "kind")
        self._residual = gauge("twin_step_residual", "Actual over predicted step time, minus 1.")
        self._rate = gauge("twin_output_tokens_per_second", "Generated tokens a second.")
        self._level = gauge("twin_drift_level", "How near the nearest alarm is; 1 raises it.")
        self._alarms = gauge("twin_drift_alarms", "Alarms raised since the watch began.", "factor")
        self._failed = gauge("twin_polls_failed", "Readings that failed since the watch began.")
        self._restarts = gauge("twin_server_restarts", "Restarts of the server noticed.")
        try:
            self._server, _ = start_http_server(port, addr="127.0.0.1", registry=self._registry)
        except (OSError, OverflowError) as error:
            raise TwinError(f"--prometheus {port}: cannot listen there ({error}); try another port.") from None

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._server.server_port)

    def show(self, observation: Observation, watch: Watch) -> None:
        """Publish an observation."""
        lane, nan = self._lane, float("nan")
        step, window = observation.step, observation.window
        values = {
            "actual": window.step_s if window is not None else None, "predicted": step.step_s if step else None,
            "low": step.low_s if step else None, "high": step.high_s if step else None,
        }  # fmt: skip
        for kind, value in values.items():
            self._step.labels(lane, kind).set(nan if value is None else value)
        ratio = observation.step_ratio
        self._residual.labels(lane).set(nan if ratio is None else ratio - 1.0)
        for i, value in enumerate(observation.conditional):
            self._accepted.labels(lane, str(i + 1), "actual").set(nan if value is None else value)
        if observation.acceptance is not None:
            for i, expected in enumerate(observation.acceptance.conditional):
                self._accepted.labels(lane, str(i + 1), "predicted").set(float(expected))
            self._kept.labels(lane, "predicted").set(observation.acceptance.tokens_per_step)
        if window is not None:
            self._kept.labels(lane, "actual").set(nan if window.tokens_per_step is None else window.tokens_per_step)
            self._rate.labels(lane).set(nan if window.output_tok_s is None else window.output_tok_s)
        self._level.labels(lane).set(observation.level)
        for alarm in observation.alarms:
            self._alarms.labels(lane, alarm.factor).inc()
        self._failed.labels(lane).set(watch.polls_failed)
        self._restarts.labels(lane).set(watch.restarts)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
