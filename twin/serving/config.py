"""What a simulated deployment is: limits of one engine, replicas, router, failures. Frozen models, as a file would
say them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from twin.lane.sourced import Strict


class Limits(Strict):
    """Scheduler limits of one replica.

    `prefill`: "chunked" shares a step between decode and prompt chunks under `max_batched_tokens`, "separate" gives
    prompts steps of their own. `long_prefill_tokens` caps one prompt's chunk (0: no cap). KV is counted in tokens, in
    pages of `page_tokens`; `prefix_block_tokens` = 0 switches the prefix cache off, `host_tier_tokens` is what a host
    tier behind it holds, `prefix_replay_tokens` of a hit are computed again (a window whose state is not kept).
    `kv_watermark` of the KV stays free on admission while others run. `plans_ahead` (asynchronous scheduling) plans a
    step when the one before it starts, so a request that comes in between waits one step more. `role` is for
    disaggregated deployments.
    """

    max_batched_tokens: int = Field(default=8192, ge=1, le=10_000_000)
    max_seqs: int = Field(default=256, ge=1, le=65_536)
    kv_capacity_tokens: int = Field(default=4_400_000, ge=1)
    max_context_tokens: int = Field(default=1_048_576, ge=1)
    page_tokens: int = Field(default=16, ge=1, le=65_536)
    prefill: Literal["chunked", "separate"] = "chunked"
    long_prefill_tokens: int = Field(default=0, ge=0)
    preemption: Literal["recompute", "swap"] = "recompute"
    kv_watermark: float = Field(default=0.01, ge=0, lt=1)
    prefix_block_tokens: int = Field(default=0, ge=0, le=65_536)
    prefix_replay_tokens: int = Field(default=0, ge=0)
    host_tier_tokens: int = Field(default=0, ge=0)
    plans_ahead: bool = False
    role: Literal["both", "prefill", "decode"] = "both"

    @model_validator(mode="after")
    def _consistent(self) -> Limits:
        if self.prefix_block_tokens % self.page_tokens:
            raise ValueError(
                f"prefix_block_tokens = {self.prefix_block_tokens} must be a multiple of page_tokens "
                f"= {self.page_tokens}"
            )
        if self.host_tier_tokens and not self.prefix_block_tokens:
            raise ValueError("a host tier needs a prefix cache; set prefix_block_tokens, for example to 512")
        return self


class Outage(Strict):
    """Replica number `replica` (or the router) is down from `at_s` for `for_s` seconds; what it held is lost."""

    replica: int | Literal["router"]
    at_s: float = Field(ge=0)
    for_s: float = Field(gt=0)


class Link(Strict):
    """What carries KV from a prefill replica to a decode replica: one transfer at a time, first come first served."""

    latency_s: float = Field(default=0.0, ge=0)
    bytes_per_s: float = Field(gt=0)


class Deployment(Strict):
    """Replicas of a lane behind a router.

    `prefill_replicas` > 0 disaggregates: prompts run there and their KV travels over `link` to the `replicas`, which
    only decode. `in_flight` caps the requests a replica is given (0: no cap); the router holds the rest, first come
    first served. `host_bytes_per_s` moves swapped and host-tier KV of `kv_bytes_per_token`; `host_transfer` says
    whether that time hides under the step. `on_outage` says what becomes of the requests of a dead replica: resumed
    elsewhere, or failed. Before a request reaches a scheduler pass `frontend_s` (connection), `frontend_s_per_token` of
    its prompt (tokenisation), and `frontend_s_per_stream` for everybody else at its replica, whose output the front
    end handles in turn.
    """

    limits: Limits = Limits()
    replicas: int = Field(default=1, ge=1, le=4096)
    router: Literal["round-robin", "least-loaded", "prefix-affinity"] = "least-loaded"
    in_flight: int = Field(default=0, ge=0)
    prefill_replicas: int = Field(default=0, ge=0, le=4096)
    prefill_limits: Limits | None = None
    link: Link | None = None
    kv_bytes_per_token: float = Field(default=0.0, ge=0)
    host_bytes_per_s: float = Field(default=50e9, gt=0)
    host_transfer: Literal["overlapped", "blocking"] = "overlapped"
    outages: tuple[Outage, ...] = Field(default=(), strict=False, max_length=10_000)
    on_outage: Literal["resume", "fail"] = "resume"
    frontend_s: float = Field(default=0.0, ge=0)
    frontend_s_per_token: float = Field(default=0.0, ge=0)
    frontend_s_per_stream: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _consistent(self) -> Deployment:
        if self.prefill_replicas and self.link is None:
            raise ValueError("prefill_replicas needs a link for the KV, for example link = { bytes_per_s = 50e9 }")
        for outage in self.outages:
            if isinstance(outage.replica, int) and not 0 <= outage.replica < self.replicas + self.prefill_replicas:
                raise ValueError(
                    f"an outage names replica {outage.replica}; there are {self.replicas + self.prefill_replicas}"
                )
        return self
