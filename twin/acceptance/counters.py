"""Traffic classes from what a server counted: counters in JSON, a metrics page, a log line, or plain values.

Read here: a JSON object with `num_drafts_total` and `accepted_per_position` (alone, or as `before` and `after`, or as
`delta`), the text of a vLLM /metrics page (one page, or two to subtract), and vLLM's log line with its per-position
acceptance rates (no counts in it, so no interval from counts either).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from twin.acceptance.profile import Counts, check_survival
from twin.acceptance.traffic import MAX_K, Length, Profile, Routing, TrafficClass
from twin.errors import IngestError, TrafficError
from twin.lane.sourced import Sourced

MAX_CHARS = 64 * 2**20
_DRAFTS = re.compile(r"^vllm:spec_decode_num_drafts(?:_total)?(?:\{[^}]*\})?\s+([0-9.eE+]+)\s*$", re.MULTILINE)
_POSITION = re.compile(
    r"^vllm:spec_decode_num_accepted_tokens_per_pos(?:_total)?\{[^}]*position=\"(\d+)\"[^}]*\}\s+([0-9.eE+]+)\s*$",
    re.MULTILINE,
)
_LOG = re.compile(r"Per-position acceptance rate:\s*([0-9.,\s]+?)(?:,\s*Avg|$)", re.MULTILINE)


@dataclass(frozen=True)
class Observed:
    """Survival by position and the draft blocks behind it (None when the source counts nothing)."""

    survival: tuple[float, ...]
    drafts: int | None


def read_counters(text: str, *, before: str | None = None, where: str = "counters") -> Observed:
    """Read one of the formats above; `before` is an earlier metrics page or counter file to subtract.

    Raises IngestError saying what was looked for.
    """
    if len(text) > MAX_CHARS:
        raise IngestError(f"{where}: larger than {MAX_CHARS // 2**20} MiB; cut out the counters.")
    if before is not None:
        return _difference(_counts(before, f"{where} (before)"), _counts(text, where), where)
    if text.lstrip().startswith("{"):
        raw = _json(text, where)
        if isinstance(raw.get("before"), dict) and isinstance(raw.get("after"), dict):
            pair = [_counts_of(raw[side], f"{where}, {side}") for side in ("before", "after")]
            return _difference(pair[0], pair[1], where)
        return _observed(_counts_of(raw.get("delta", raw), where), where)
    lines = _LOG.findall(text)
    if lines and not _DRAFTS.search(text):
        rates = tuple(float(cell) for cell in re.findall(r"\d*\.?\d+", lines[-1]))
        _check(rates, where)
        return Observed(rates, None)
    return _observed(_counts(text, where), where)


def _json(text: str, where: str) -> dict[str, Any]:
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise IngestError(f"{where}: not valid JSON ({error}).") from None
    if not isinstance(raw, dict):
        raise IngestError(f"{where}: expected a JSON object with num_drafts_total and accepted_per_position.")
    return raw


def _counts(text: str, where: str) -> tuple[float, list[float]]:
    if text.lstrip().startswith("{"):
        raw = _json(text, where)
        return _counts_of(raw.get("after", raw), where)
    drafts = [float(m) for m in _DRAFTS.findall(text)]
    position: dict[int, float] = {}
    for index, value in _POSITION.findall(text):
        position[int(index)] = position.get(int(index), 0.0) + float(value)
    if not drafts or not position:
        raise IngestError(
            f"{where}: found no draft counters; expected vLLM's spec_decode_num_drafts and "
            f"spec_decode_num_accepted_tokens_per_pos, a JSON object with num_drafts_total and accepted_per_position, "
            f"or a log line with 'Per-position acceptance rate:'."
        )
    return sum(drafts), [position.get(i, 0.0) for i in range(max(position) + 1)]


def _counts_of(raw: Any, where: str) -> tuple[float, list[float]]:
    drafts = raw.get("num_drafts_total", raw.get("num_drafts")) if isinstance(raw, dict) else None
    accepted = raw.get("accepted_per_position") if isinstance(raw, dict) else None
    given = [drafts, *accepted] if isinstance(accepted, list) else []
    numbers = [float(n) for n in given if isinstance(n, (int, float)) and not isinstance(n, bool) and 0 <= n < 1e15]
    if not numbers or len(numbers) != len(given):
        raise IngestError(f"{where}: expected num_drafts_total and the list accepted_per_position, numbers from 0 on.")
    return numbers[0], numbers[1:]


def _difference(first: tuple[float, list[float]], last: tuple[float, list[float]], where: str) -> Observed:
    if len(first[1]) > len(last[1]):
        raise IngestError(f"{where}: the earlier counters have {len(first[1])} positions, the later {len(last[1])}.")
    earlier = [*first[1], *[0.0] * (len(last[1]) - len(first[1]))]
    accepted = [b - a for a, b in zip(earlier, last[1], strict=True)]
    drafts = last[0] - first[0]
    if drafts < 1 or min(accepted, default=0.0) < 0:
        raise IngestError(
            f"{where}: counters fell or stood still between the two ({drafts:g} drafts): the server was restarted, "
            f"or the files are in the wrong order."
        )
    return _observed((drafts, accepted), where)


def _observed(counts: tuple[float, list[float]], where: str) -> Observed:
    drafts, accepted = counts
    if drafts < 1 or not accepted:
        raise IngestError(f"{where}: {drafts:g} drafts and {len(accepted)} positions; nothing was drafted.")
    survival = tuple(a / drafts for a in accepted)
    _check(survival, where)
    return Observed(survival, round(drafts))


def _check(survival: Sequence[float], where: str) -> None:
    if not 1 <= len(survival) <= MAX_K:
        raise IngestError(f"{where}: {len(survival)} positions; expected 1 to {MAX_K}.")
    try:
        check_survival(survival, where)
    except TrafficError as error:
        raise IngestError(str(error)) from None


def class_from(
    observed: Observed, *, name: str, source: str, verification: str, temperature: float = 1.0, streams: int = 1,
    like: TrafficClass | None = None, description: str = "", stream_sd: float | None = None, derived: bool = False,
) -> TrafficClass:  # fmt: skip
    """A traffic class with one profile; routing, lengths and spread are taken from `like` or assumed.

    `derived`: only the mean was observed, the shape by position was not.
    """
    if observed.drafts is not None:
        Counts(observed.drafts, tuple(round(s * observed.drafts) for s in observed.survival))
    profile = Profile.model_validate(
        {
            "k": len(observed.survival), "kind": "survival", "values": [round(s, 10) for s in observed.survival],
            "verification": verification, "temperature": float(temperature), "drafts": observed.drafts,
            "streams": streams, "source": source,
            "evidence": "derived" if derived else "measured",
        }
    )  # fmt: skip
    note = f"as {like.name}" if like else "assumed, the server's counters do not say"
    return TrafficClass(
        schema_version=1,
        name=name,
        description=description or f"Imported from {source}.",
        stream_sd=like.stream_sd if like and stream_sd is None else _assumed(stream_sd or 0.15, note),
        profile=(profile,),
        routing=like.routing if like else Routing(beta=_assumed(0.747, note), diversity=_assumed(1.0, note)),
        length=like.length if like else _default_length(note),
    )


def _assumed(value: float, source: str) -> Sourced:
    return Sourced(value=value, text=f"{value:g}", source=source, kind="assumed")


def _default_length(note: str) -> Length:
    tokens = {"prompt": 2048, "output": 400}
    return Length.model_validate(
        {
            name: {"median": {"value": median, "source": note}, "sigma": {"value": 0.9, "source": note}}
            for name, median in tokens.items()
        }
    )


def traffic_toml(traffic: TrafficClass) -> str:
    """The class as the text of its TOML file; reading it back gives the same class."""
    head = f"schema_version = 1\nname = {_text(traffic.name)}\ndescription = {_text(traffic.description)}\n"
    parts = [head + f"stream_sd = {_sourced(traffic.stream_sd)}\n"]
    parts += [_profile(profile) for profile in traffic.profiles]
    routing = traffic.routing
    lines = [f"beta = {_sourced(routing.beta)}", f"diversity = {_sourced(routing.diversity)}"]
    lines += [f"hot_fraction = {_sourced(routing.hot_fraction)}"] if routing.hot_fraction else []
    parts.append("[routing]\n" + "\n".join(lines) + "\n")
    if routing.cold_share:
        shares = "\n".join(f"{_key(name)} = {_sourced(share)}" for name, share in routing.cold_share.items())
        parts.append(f"[routing.cold_share]\n{shares}\n")
    for name in ("prompt", "output"):
        tokens = getattr(traffic.length, name)
        lines = [f"{key} = {_sourced(getattr(tokens, key))}" for key in ("median", "sigma") if getattr(tokens, key)]
        lines += [f"histogram = {json.dumps([list(pair) for pair in tokens.histogram])}"] if tokens.histogram else []
        lines += [f"source = {_text(tokens.source)}"] if tokens.source else []
        parts.append(f"[length.{name}]\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _profile(profile: Profile) -> str:
    lines = ["[[profile]]"]
    for name in type(profile).model_fields:
        value = getattr(profile, name)
        if value is None or value == "":
            continue
        if isinstance(value, Sourced):
            shown = _sourced(value)
        elif isinstance(value, str):
            shown = _text(value)
        elif isinstance(value, tuple):
            shown = "[" + ", ".join(repr(float(v)) for v in value) + "]"
        else:
            shown = repr(value)
        lines.append(f"{name} = {shown}")
    return "\n".join(lines) + "\n"


def _sourced(value: Sourced) -> str:
    number = value.text if re.fullmatch(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", value.text) else _text(value.text)
    return f"{{ value = {number}, source = {_text(value.source)}, kind = {_text(value.kind)} }}"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _text(text: str) -> str:
    # A JSON string is a TOML basic string but for DEL, which TOML wants escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
