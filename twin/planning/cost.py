"""What a lane costs: purchase, power, and both per million output tokens."""

from __future__ import annotations

from dataclasses import dataclass

from twin.lane.device import Device
from twin.lane.lane import Lane

HOURS_A_YEAR = 8766.0


@dataclass(frozen=True, slots=True)
class Prices:
    """`years` the box is written off over, and what a kilowatt-hour costs (USD)."""

    years: float = 3.0
    usd_per_kwh: float = 0.20


@dataclass(frozen=True, slots=True)
class Cost:
    """Of all boxes, USD and watts; None where the catalogue has no figure. `notes` name figures that are assumed."""

    purchase_usd: float | None
    power_w: float | None
    usd_per_million_tokens: float | None
    notes: tuple[str, ...]


def lane_cost(lane: Lane, prices: Prices, output_tok_s: float | None, *, boxes: int = 1) -> Cost:
    """Cost of `boxes` copies of a lane that give `output_tok_s` together, all the time.

    Power is the limit of every GPU, an upper bound: (purchase / (years x 8766 h) + kW x price) / tokens an hour.
    """
    counts = {"primary": lane.ranks, "sidecar": _sidecars(lane), "host": 1}
    parts = [(counts[role], device) for role, device in lane.devices.items() if counts.get(role)]
    notes: list[str] = []
    purchase = _sum(parts, "price", boxes, notes)
    power = _sum(parts, "power", boxes, notes)
    rate = None
    if output_tok_s and purchase is not None and power is not None:
        hourly = purchase / (prices.years * HOURS_A_YEAR) + power / 1000.0 * prices.usd_per_kwh
        rate = hourly / (output_tok_s * 3600.0) * 1e6
    return Cost(purchase, power, rate, tuple(dict.fromkeys(notes)))


def _sidecars(lane: Lane) -> int:
    if lane.placement.cold_on != "sidecar":
        return 0
    return int(lane.placement.sidecars.value) if lane.placement.sidecars else lane.ranks


def _sum(parts: list[tuple[int, Device]], what: str, boxes: int, notes: list[str]) -> float | None:
    total = 0.0
    for count, device in parts:
        figure = getattr(device, what)
        if figure is None:
            # A host is often part of the box and priced with it; a GPU without a figure leaves the sum unknown.
            if device.kind == "gpu":
                notes.append(f"no {what} of {device.name} in the catalogue")
                return None
            continue
        if figure.kind == "assumed":
            notes.append(f"the {what} of {device.name} is assumed ({figure.text})")
        total += boxes * count * figure.value
    return total
