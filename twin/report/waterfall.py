"""An explanation in words, and as a waterfall on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from twin.planning.explain import Explanation, Factor, Part, Side
from twin.report.prediction import _LABELS as LABELS
from twin.report.terminal import console, number, print_table

#: What a sentence calls a mechanism.
_WORDS = {
    "attention": "attention",
    "dense": "dense weights",
    "experts": "reading experts",
    "sidecar_exposed": "the sidecar hop",
    "all_reduce_exposed": "all-reduce",
    "launch": "the small kernels (launches)",
    "draft": "the draft",
    "sampling": "head and sampling",
    "other": "host gap and Engram",
}
#: A factor on tok/s this near to 1 is not worth a word.
_SMALL_LOG = 0.005
#: Columns of a terminal from which the waterfall has room for intervals.
_WIDE = 112
_Z90 = 1.645


def label(mechanism: str) -> str:
    """What people call a mechanism of `twin.step.graph.MECHANISMS`."""
    return LABELS[mechanism]


def sentences(found: Explanation) -> list[str]:
    """The explanation in plain sentences, most important first."""
    a, b = found.a, found.b
    lines = [
        f"{b.title} makes {_times(found.tok_s)} the tok/s of {a.title}: {_sources(found)}.",
        *_step_sentences(found),
        f"Noise of boots and runs moves a measured ratio by another {100 * _Z90 * found.run_noise:.0f} % either way.",
    ]
    return [line for line in lines if line]


def _times(factor: Factor) -> str:
    return f"{number(factor.factor)} times ({number(factor.p05)} to {number(factor.p95)})"


def _sources(found: Explanation) -> str:
    a, b = found.a, found.b
    kept = f"({number(b.tokens_per_step)} against {number(a.tokens_per_step)})"
    step = f"({number(b.step_ms)} against {number(a.step_ms)} ms a step)"
    parts = [f"{number(found.streams.factor)} from live streams ({b.concurrency} against {a.concurrency})"]
    if not found.streams.log:
        parts = []
    parts += [
        f"{number(found.tokens_per_step.factor)} from tokens per step {kept}",
        f"{number(found.steps_per_s.factor)} from steps per second {step}",
    ]
    return " and ".join([", ".join(parts[:-1]), parts[-1]])


def _step_sentences(found: Explanation) -> list[str]:
    difference = found.b.step_ms - found.a.step_ms
    if abs(found.steps_per_s.log) < _SMALL_LOG and all(abs(p.factor.log) < _SMALL_LOG for p in found.parts):
        return ["The step takes the same time in both."]
    helping, opposing = main_parts(found)
    word = "shorter" if difference < 0 else "longer"
    lines = [f"The step is {number(abs(difference))} ms {word}."]
    if helping:
        lines.append(f"Most of that is {_listed(helping[:2])}.")
    if opposing:
        back = 1.0
        for part in opposing[:2]:
            back *= part.factor.factor
        lines.append(f"Working against it: {_listed(opposing[:2])}, together x {number(back)}.")
    return lines


def main_parts(found: Explanation) -> tuple[list[Part], list[Part]]:
    """Mechanisms that push the step the way it went, and those that push back; strongest first."""
    way = 1.0 if found.steps_per_s.log >= 0 else -1.0
    telling = [part for part in found.parts if abs(part.factor.log) >= _SMALL_LOG]
    return [p for p in telling if p.factor.log * way > 0], [p for p in telling if p.factor.log * way < 0]


def _listed(parts: Sequence[Part]) -> str:
    return " and ".join(
        f"{_WORDS[p.mechanism]} ({number(abs(p.difference_ms))} ms {'less' if p.difference_ms < 0 else 'more'}, "
        f"x {number(p.factor.factor)})"
        for p in parts
    )


def span_bar(start: float, end: float, low: float, high: float, width: int = 34) -> str:
    """A bar from `start` to `end` on a scale from `low` to `high`, to half a cell; at least a mark."""
    if high <= low:
        return ""
    first, last = sorted((start, end))
    a, b = (round((x - low) / (high - low) * width * 2) for x in (first, last))
    b = max(b, a + 1)
    cells = []
    for cell in range(width):
        left, right = a <= 2 * cell < b, a <= 2 * cell + 1 < b
        cells.append("█" if left and right else "▌" if left else "▐" if right else " ")
    return "".join(cells).rstrip()


def waterfall_steps(found: Explanation) -> list[tuple[str, float, float]]:
    """Bars of a waterfall in ms: (mechanism, from, to), from the step of A to the step of B, ordered as the parts."""
    at, bars = found.a.step_ms, []
    for part in found.parts:
        bars.append((part.mechanism, at, at + part.difference_ms))
        at += part.difference_ms
    return bars


def print_explanation(found: Explanation) -> None:
    """The ratio, the waterfall and the sentences."""
    from rich.markup import escape

    out = console()
    a, b = found.a, found.b
    out.print(f"[bold]{escape(a.title)}  against  {escape(b.title)}[/bold]")
    out.print(f"[dim]{_setting(a)}; {_setting(b)}[/dim]")
    rows = [
        ["tok/s of all streams", number(a.tok_s_aggregate), number(b.tok_s_aggregate), *_shown(found.tok_s)],
        ["  live streams", str(a.concurrency), str(b.concurrency), *_shown(found.streams)],
        ["  tokens per step", number(a.tokens_per_step), number(b.tokens_per_step), *_shown(found.tokens_per_step)],
        ["  steps per second", number(1e3 / a.step_ms), number(1e3 / b.step_ms), *_shown(found.steps_per_s)],
    ]
    if not found.streams.log:
        del rows[1]
    print_table("", ["", "A", "B", "B over A", "90 %"], rows, out=out)
    bars = waterfall_steps(found)
    ends = [x for _, *pair in bars for x in pair] + [a.step_ms, b.step_ms]
    low, high = max(0.0, min(ends) - 0.6 * (max(ends) - min(ends)) - 1e-9), max(ends)
    wide = out.width >= _WIDE
    width = 34 if wide else max(8, min(34, out.width - 64))

    def row(
        name: str, one: str, other: str, change: str, spread: str, factor: str, start: float, end: float
    ) -> list[str]:
        drawn = span_bar(start, end, low, high, width)
        return [name, one, other, change, *([f"[dim]{spread}[/dim]"] if wide else []), factor, drawn]

    table = [row("step of A", number(a.step_ms), "", "", "", "", low, a.step_ms)]
    for part, (_, start, end) in zip(found.parts, bars, strict=True):
        spread = f"{part.difference_ms_p05:+.2f} to {part.difference_ms_p95:+.2f}"
        one, other, change = number(part.a_ms), number(part.b_ms), f"{part.difference_ms:+.2f}"
        name, factor = label(part.mechanism), f"{part.factor.factor:.3f}"
        table.append(row(name, one, other, change, spread, factor, start, end))
    table.append(row("step of B", "", number(b.step_ms), "", "", "", low, b.step_ms))
    spread_header = ["90 %"] if wide else []
    header = ["ms", "A", "B", "change", *spread_header, "x steps/s", f"{number(low)}-{number(high)} ms"]
    print_table("Step time by mechanism", header, table, left=(0, len(header) - 1), out=out)
    for line in sentences(found):
        out.print(escape(line))
    how = "switching the durations of their ops" if found.basis == "durations" else "time on the primary device"
    out.print(
        f"[dim]Parts are Shapley values over mechanisms ({how}): they multiply to the whole. Seed {found.seed}.[/dim]"
    )
    for warning in found.warnings:
        out.print(f"[yellow]warning:[/yellow] {escape(warning)}")


def _shown(factor: Factor) -> list[str]:
    return [f"{factor.factor:.3f}", f"[dim]{factor.p05:.3f} to {factor.p95:.3f}[/dim]"]


def _setting(side: Side) -> str:
    streams = f"{side.concurrency} stream{'s' if side.concurrency > 1 else ''}"
    return (
        f"{side.lane}: k = {side.k}, {side.verification} verification, {side.traffic} traffic, "
        f"{side.context_tokens:,} tokens of context, {streams}"
    )
