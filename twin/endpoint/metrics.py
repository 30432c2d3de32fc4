"""`/metrics` in vLLM's names, so that dashboards, autoscalers and `twin watch` read the twin like the real server.

Times are simulated seconds whatever the speed. Two series are the twin's own: `twin:clock_seconds_total`, the simulated
clock, and `twin:clock_speed`; rates of a server that runs at another speed are counted against the former.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from twin.endpoint.histogram import (
    LENGTH_EDGES,
    REQUEST_EDGES,
    STEP_TOKEN_EDGES,
    TPOT_EDGES,
    TTFT_EDGES,
    WeightedHistogram,
)
from twin.serving.plan import StepOutcome, StepPlan
from twin.serving.request import Request

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_HISTOGRAMS = {
    "time_to_first_token_seconds": ("Time to first token.", TTFT_EDGES),
    "inter_token_latency_seconds": ("Time between the outputs of a request, one observation a step.", TPOT_EDGES),
    "request_time_per_output_token_seconds": ("Mean time per output token of a request.", TPOT_EDGES),
    "e2e_request_latency_seconds": ("Request latency from arrival to end.", REQUEST_EDGES),
    "request_queue_time_seconds": ("Time in the waiting queue.", REQUEST_EDGES),
    "request_prefill_time_seconds": ("From being scheduled to the first token.", REQUEST_EDGES),
    "request_decode_time_seconds": ("From the first to the last token.", REQUEST_EDGES),
    "request_inference_time_seconds": ("From being scheduled to the end.", REQUEST_EDGES),
    "request_prompt_tokens": ("Prompt tokens of a request.", LENGTH_EDGES),
    "request_generation_tokens": ("Generated tokens of a request.", LENGTH_EDGES),
    "iteration_tokens_total": ("Tokens of an engine step, prompt chunks included.", STEP_TOKEN_EDGES),
}


class ServerMetrics:
    """What the engine counted. `accepted_steps[k][n]` counts verify steps of one stream at draft length k that kept n
    tokens (bonus included), before the last step of an answer is cut to its length."""

    def __init__(self, model: str, engines: int = 1) -> None:
        self.model = model
        self.histograms = {name: WeightedHistogram(edges) for name, (_, edges) in _HISTOGRAMS.items()}
        self.finished: Counter[str] = Counter({"stop": 0, "length": 0, "abort": 0, "error": 0})
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.accepted_steps: dict[int, list[int]] = {}
        self.started_s = time.time()

    def tally(self, k: int) -> list[int]:
        """The counts at draft length k, to be written to."""
        return self.accepted_steps.setdefault(k, [0] * (k + 2))

    def step(self, plan: StepPlan, outcome: StepOutcome) -> None:
        """Book one engine step."""
        histograms = self.histograms
        gap = histograms["inter_token_latency_seconds"]
        for gap_s, members in outcome.gaps:
            if members:
                gap.add(gap_s, members)
        self.generation_tokens += outcome.tokens
        histograms["iteration_tokens_total"].add(plan.prefill_tokens + outcome.tokens)
        for request in outcome.started:
            if request.last_token_s == request.first_token_s:
                histograms["time_to_first_token_seconds"].add(request.first_token_s - request.arrival_s)
                self.prompt_tokens += request.prompt_tokens

    def end(self, request: Request, reason: str) -> None:
        """Book the end of a request; vLLM's latency histograms hold requests that were not aborted."""
        self.finished[reason] += 1
        if reason not in ("stop", "length"):
            return
        h = self.histograms
        decode_s = request.last_token_s - request.first_token_s
        h["e2e_request_latency_seconds"].add(request.finish_s - request.arrival_s)
        h["request_queue_time_seconds"].add(request.first_scheduled_s - request.arrival_s)
        h["request_prefill_time_seconds"].add(request.first_token_s - request.first_scheduled_s)
        h["request_decode_time_seconds"].add(decode_s)
        h["request_inference_time_seconds"].add(request.finish_s - request.first_scheduled_s)
        h["request_prompt_tokens"].add(request.prompt_tokens)
        h["request_generation_tokens"].add(request.emitted)
        if request.emitted > 1:
            h["request_time_per_output_token_seconds"].add(decode_s / (request.emitted - 1))

    def speculation(self) -> tuple[int, int, int, list[int]]:
        """(drafts, draft tokens, accepted tokens, accepted by position)."""
        longest = max(self.accepted_steps, default=0)
        drafts = drafted = accepted = 0
        positions = [0] * longest
        for k, counts in self.accepted_steps.items():
            for kept, n in enumerate(counts):
                drafts += n
                drafted += n * k
                accepted += n * max(kept - 1, 0)
                for p in range(kept - 1):
                    positions[p] += n
        return drafts, drafted, accepted, positions


class Levels:
    """Gauges at the moment of a scrape, and the counters the schedulers keep."""

    def __init__(
        self, *, running: int, waiting: int, kv_usage: float, clock_s: float, speed: float, preemptions: int,
        queried_tokens: int, hit_tokens: int,
    ) -> None:  # fmt: skip
        self.running, self.waiting, self.kv_usage = running, waiting, kv_usage
        self.clock_s, self.speed = clock_s, speed
        self.preemptions, self.queried_tokens, self.hit_tokens = preemptions, queried_tokens, hit_tokens


def families(metrics: ServerMetrics, levels: Levels) -> Iterator[Metric]:
    """Everything as Prometheus families."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    names, values = ["model_name", "engine"], [metrics.model, "0"]

    def one(kind: type, name: str, text: str, value: float) -> Metric:
        family = kind(name, text, labels=names)
        family.add_metric(values, value)
        return family  # type: ignore[no-any-return]

    gauge, counter = GaugeMetricFamily, CounterMetricFamily
    yield one(gauge, "vllm:num_requests_running", "Requests in the batch.", levels.running)
    yield one(gauge, "vllm:num_requests_waiting", "Requests in the queue.", levels.waiting)
    yield one(gauge, "vllm:kv_cache_usage_perc", "Share of the KV memory in use; 1 is all of it.", levels.kv_usage)
    yield one(counter, "vllm:prefix_cache_queries", "Prompt tokens looked up for a prefix.", levels.queried_tokens)
    yield one(counter, "vllm:prefix_cache_hits", "Prompt tokens a prefix was found for.", levels.hit_tokens)
    yield one(counter, "vllm:num_preemptions", "Preemptions.", levels.preemptions)
    yield one(counter, "vllm:prompt_tokens", "Prompt tokens of requests that began to answer.", metrics.prompt_tokens)
    yield one(counter, "vllm:generation_tokens", "Tokens generated.", metrics.generation_tokens)
    success = counter("vllm:request_success", "Requests that ended, by reason.", labels=[*names, "finished_reason"])
    for reason, n in metrics.finished.items():
        success.add_metric([*values, reason], n)
    yield success
    drafts, drafted, accepted, positions = metrics.speculation()
    if positions:
        yield one(counter, "vllm:spec_decode_num_drafts", "Draft blocks verified.", drafts)
        yield one(counter, "vllm:spec_decode_num_draft_tokens", "Tokens drafted.", drafted)
        yield one(counter, "vllm:spec_decode_num_accepted_tokens", "Drafted tokens accepted.", accepted)
        by_position = counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Drafted tokens accepted, by position.",
            labels=[*names, "position"],
        )  # fmt: skip
        for position, n in enumerate(positions):
            by_position.add_metric([*values, str(position)], n)
        yield by_position
    for name, (text, _) in _HISTOGRAMS.items():
        histogram = metrics.histograms[name]
        family = HistogramMetricFamily(f"vllm:{name}", text, labels=names)
        family.add_metric(values, buckets=histogram.buckets(), sum_value=histogram.total)
        yield family
    yield counter("twin:clock_seconds", "Simulated seconds since the start.", value=levels.clock_s)
    speed = levels.speed if math.isfinite(levels.speed) else 0.0
    yield gauge("twin:clock_speed", "Simulated seconds in a second; 0: as fast as it goes.", value=speed)
    yield gauge("process_start_time_seconds", "Start of the process, unix time.", value=metrics.started_s)


class _Once:
    """A collector that yields what it was given."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = list(found)

    def collect(self) -> Iterable[Metric]:
        """The families."""
        return self._found


def exposition(metrics: ServerMetrics, levels: Levels) -> str:
    """The text of `/metrics`."""
    from prometheus_client import generate_latest

    return generate_latest(_Once(families(metrics, levels))).decode()
