"""One watch: read a page, compare the window with the twin, feed the charts, say what moved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from twin.errors import IngestError
from twin.watch.drift import Alarm, Chart, threshold
from twin.watch.expect import AcceptanceExpectation, Expectations, StepExpectation
from twin.watch.page import Page, Window, difference, parse_page, restarted

STEP = "step time"
#: excess over the twin's interval that the charts are tuned to: 5 % of step time, 0.05 of acceptance at a position
STEP_BEYOND = 0.05
ACCEPTANCE_BEYOND = 0.05
#: the mean interval is predicted from mean streams and mean prompts, which is good to about this much in a window
STEP_SD = 0.02
#: scatter of single steps around their mean that a window averages out
STEP_JITTER = 0.15
#: windows with fewer stream-steps say nothing about the step; fewer drafts, nothing about acceptance
LEAST_INTERVALS = 20
LEAST_DRAFTS = 20


def position(index: int) -> str:
    """The name of a position's factor, counted from 1."""
    return f"acceptance at position {index + 1}"


@dataclass(frozen=True)
class Observation:
    """One interval: the window (None: see `notice`), what was expected, and the alarms it raised."""

    at_s: float
    window: Window | None
    step: StepExpectation | None = None
    acceptance: AcceptanceExpectation | None = None
    alarms: tuple[Alarm, ...] = ()
    notice: str = ""
    #: 0 is calm, 1 is an alarm
    level: float = 0.0

    @property
    def step_ratio(self) -> float | None:
        """Actual over expected step time."""
        if self.window is None or self.step is None or self.window.step_s is None:
            return None
        return self.window.step_s / self.step.step_s

    @property
    def conditional(self) -> tuple[float | None, ...]:
        """Measured conditional acceptance by position; None where nothing got that far."""
        if self.window is None or not self.window.drafts:
            return ()
        reached = (self.window.drafts, *self.window.accepted[:-1])
        return tuple(a / r if r else None for a, r in zip(self.window.accepted, reached, strict=False))


@dataclass
class Watch:
    """Follows one server. `fetch` returns the text of its page, `now_s` and `sleep` are the watch's clock.

    `interval_s` between readings; about one false alarm in `false_alarm_every_s` when the server sits at the very edge
    of the twin's intervals, fewer inside.
    """

    expectations: Expectations
    fetch: Callable[[], str]
    now_s: Callable[[], float]
    sleep: Callable[[float], None]
    interval_s: float = 5.0
    false_alarm_every_s: float = 28_800.0
    polls_failed: int = 0
    restarts: int = 0
    _charts: dict[str, Chart] = field(default_factory=dict)
    _before: Page | None = None
    _windows: int = 0
    _streams_seen: float = 0.0
    _uneven: float = 1.0  # a long answer weighs more in the counters: 1 + squared variation of lengths

    def __post_init__(self) -> None:
        positions = self.expectations.most_positions
        limit = threshold(2 * (positions + 1), self.false_alarm_every_s / self.interval_s)
        self._charts = {STEP: Chart(STEP, STEP_BEYOND, limit)}
        for i in range(positions):
            self._charts[position(i)] = Chart(position(i), ACCEPTANCE_BEYOND, limit)

    def run(self, for_s: float = math.inf) -> Iterator[Observation]:
        """Observations, one an interval, for ever or for `for_s` of the watch's clock. A failed reading is an
        observation with a notice; the window then spans it."""
        start_s = self.now_s()
        while True:
            observation = self.poll()
            if observation is not None:
                yield observation
            if self.now_s() - start_s >= for_s - 1e-9:
                return
            self.sleep(min(self.interval_s, max(start_s + for_s - self.now_s(), 0.0)))

    def poll(self) -> Observation | None:
        """Read once. None for the first reading: it only says where the counters stand."""
        at_s = self.now_s()
        try:
            page = parse_page(self.fetch(), at_s)
        except IngestError as error:
            self.polls_failed += 1
            return Observation(at_s, None, notice=str(error))
        before, self._before = self._before, page
        if before is None:
            return None
        why = restarted(before, page)
        if why:
            self.restarts += 1
            return Observation(at_s, None, notice=f"the server restarted ({why}); counting anew.")
        cv2 = page.answer_cv2()
        self._uneven = 1.0 + (cv2 if cv2 is not None else self.expectations.answer_cv2)
        return self._compare(difference(before, page), before.time_s, page.time_s)

    def _compare(self, window: Window, start_s: float, end_s: float) -> Observation:
        step, acceptance = self.expectations.step(window), self.expectations.acceptance(window)
        if not window.intervals and not window.drafts:
            return Observation(end_s, window, notice="idle: no stream decoded.")
        alarms: list[Alarm | None] = []
        if step is not None and window.step_s and window.intervals >= LEAST_INTERVALS:
            deviation = math.log(window.step_s / step.step_s)
            # How the prompts fell on the steps is not in the counters: half of their part is taken to be unsure.
            prompts = 0.5 * step.prompt_s / step.step_s
            steps = window.steps or window.intervals
            sd = math.sqrt(STEP_SD**2 + STEP_JITTER**2 / steps + prompts**2 / max(window.started, 1.0))
            alarms.append(self._charts[STEP].add(deviation, sd, step.edge, start_s=start_s, end_s=end_s))
        if acceptance is not None and window.drafts >= LEAST_DRAFTS:
            alarms += self._positions(window, acceptance, start_s, end_s)
        found = tuple(a for a in alarms if a is not None)
        level = max(chart.level for chart in self._charts.values())
        return Observation(end_s, window, step, acceptance, found, level=level)

    def _positions(
        self, window: Window, expected: AcceptanceExpectation, start_s: float, end_s: float
    ) -> Iterator[Alarm | None]:
        # Streams differ and each lives for several windows. Spread over all windows, the streams that have started so
        # far (and those that ran at the beginning) give the right variance to the sum that a chart builds up.
        self._windows += 1
        if self._windows == 1:
            self._streams_seen = window.running or 1.0
        self._streams_seen += window.started
        streams = max(self._streams_seen / self._windows, 0.1)
        reached = window.drafts
        for i, (accepted, p) in enumerate(zip(window.accepted, expected.conditional, strict=False)):
            if reached < LEAST_DRAFTS or position(i) not in self._charts:
                return
            noise = max(float(p * (1 - p)), 0.01) / reached
            sd = math.sqrt(noise + self._uneven * float(expected.stream_variance[i]) / streams)
            chart, edge = self._charts[position(i)], float(expected.edge[i])
            yield chart.add(accepted / reached - float(p), sd, edge, start_s=start_s, end_s=end_s)
            reached = accepted


def describe(alarm: Alarm) -> str:
    """An alarm in words."""
    lasted_s = alarm.at_s - alarm.since_s
    moved = f"{math.expm1(alarm.deviation):+.1%}" if alarm.factor == STEP else f"{alarm.deviation:+.3f}"
    return f"DRIFT: {alarm.factor} is {moved} off the twin, for {lasted_s:.0f} s."
