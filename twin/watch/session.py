"""One watch: read a page, compare the window with the twin, feed the charts, say what moved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from twin.errors import IngestError
from twin.watch.drift import Alarm, Chart, Family, gaussian, threshold
from twin.watch.expect import AcceptanceExpectation, Expectations, StepExpectation
from twin.watch.page import Page, Window, difference, drafts_together, parse_page, restarted

STEP = "step time"
LEVEL = "acceptance at every position"
#: excess over the twin's interval that the chart is tuned to: 5 % of step time
STEP_BEYOND = 0.05
#: the mean interval is predicted from mean streams and mean prompts, which is good to about this much in a window
STEP_SD = 0.02
#: scatter of single steps around their mean that a window averages out
STEP_JITTER = 0.15
#: windows with fewer stream-steps say nothing about the step; fewer drafts, nothing about acceptance
LEAST_INTERVALS = 20
LEAST_DRAFTS = 20
#: an answer that goes on for longer is judged in pieces
LONGEST_ANSWER_S = 60.0


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
    _step: Family = field(init=False)
    _acceptance: Family = field(init=False)
    _before: Page | None = None
    _pending: list[Window] = field(default_factory=list)
    _pending_since_s: float = 0.0
    _lengths: tuple[float, float] | None = None  # of the answers: mean tokens, squared variation

    def __post_init__(self) -> None:
        positions = self.expectations.most_positions
        names = [*(position(i) for i in range(positions)), *([LEVEL] if positions > 1 else [])]
        limit = threshold(2, self.false_alarm_every_s / self.interval_s)
        self._step = Family([Chart(STEP, limit)])
        self._acceptance = Family([Chart(name, limit) for name in names])

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
            self._pending.clear()
            return Observation(at_s, None, notice=f"the server restarted ({why}); counting anew.")
        self._lengths = page.answer_lengths()
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
            if math.isfinite(deviation) and math.isfinite(sd):
                evidence = gaussian(deviation, sd, step.edge, STEP_BEYOND)
                alarms.append(self._step.add({STEP: evidence}, start_s=start_s, end_s=end_s))
        if acceptance is not None and window.accepted:
            alarms.append(self._drafted(window, start_s, end_s))
        found = tuple(a for a in alarms if a is not None)
        level = max(self._step.level, self._acceptance.level)
        return Observation(end_s, window, step, acceptance, found, level=level)

    def _drafted(self, window: Window, start_s: float, end_s: float) -> Alarm | None:
        # While nobody new has come, the next window shows the same answers again: they are judged together.
        if not self._pending:
            self._pending_since_s = start_s
        self._pending.append(window)
        together = drafts_together(self._pending)
        if together.drafts < LEAST_DRAFTS or (together.started < 1 and together.seconds < LONGEST_ANSWER_S):
            return None
        self._pending.clear()
        expected = self.expectations.acceptance(together)
        if expected is None:
            return None
        *positions, level = self.expectations.moved(together, expected, self._lengths)
        evidence = {position(i): one for i, one in enumerate(positions)} | {LEVEL: level}
        return self._acceptance.add(evidence, start_s=self._pending_since_s, end_s=end_s)


def describe(alarm: Alarm) -> str:
    """An alarm in words."""
    lasted_s = alarm.at_s - alarm.since_s
    if alarm.factor == STEP:
        moved = f"{math.expm1(alarm.deviation):+.1%}"
    elif alarm.factor == LEVEL:
        moved = f"{math.expm1(alarm.deviation):+.1%} (tokens per step)"
    else:
        moved = f"{alarm.deviation:+.3f}"
    return f"DRIFT: {alarm.factor} is {moved} off the twin, for {lasted_s:.0f} s."
