"""What was found, for people and for programs."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from twin.fitting.receipts import Receipt
from twin.ingest.meaning import derived_step_s, live_streams
from twin.ingest.model import Cell, Found, clean


def lines(found: Found) -> list[str]:
    """A few lines about one file: its format, its cells, flags, notes and unknown keys."""
    out = [f"{found.where}: {found.format}, {len(found.cells)} cell{'s' if len(found.cells) != 1 else ''}"]
    for cell in found.cells[:40]:
        out.append("  " + _cell_line(cell))
        out += [f"    ! {flag.code}: {flag.text}" for flag in cell.flags]
    if len(found.cells) > 40:
        out.append(f"  ... and {len(found.cells) - 40} more")
    out += [f"  ! {flag.code}: {flag.text}" for flag in found.flags]
    out += [f"  - {note}" for note in found.notes[:20]]
    trace = found.extras.get("trace")
    if trace:
        out += _trace_lines(trace)
    if found.unknown:
        shown = ", ".join(list(found.unknown)[:12])
        out.append(
            f"  kept without a meaning ({len(found.unknown)}): {shown}{', ...' if len(found.unknown) > 12 else ''}"
        )
    return [clean(line) for line in out]


def _cell_line(cell: Cell) -> str:
    parts = [cell.label]
    if cell.k is not None:
        parts.append(f"k={cell.k}")
    streams = live_streams(cell)
    if streams:
        parts.append(f"C={streams}" + (f" (had {cell.concurrency_achieved:.1f})" if cell.concurrency_achieved else ""))
    if cell.context_tokens is not None:
        parts.append(f"context {cell.context_tokens:.0f}")
    if cell.step_s:
        parts.append(f"step {cell.step_s * 1e3:.3f} ms")
    elif derived := derived_step_s(cell):
        parts.append(f"step {derived * 1e3:.3f} ms (TPOT x tokens per step)")
    if cell.tokens_per_step:
        parts.append(f"{cell.tokens_per_step:.3f} tokens/step")
    if cell.tok_s_per_stream:
        parts.append(f"{cell.tok_s_per_stream:.1f} tok/s a stream")
    if cell.tok_s_aggregate:
        parts.append(f"{cell.tok_s_aggregate:.1f} tok/s in all")
    if cell.ttft_s:
        parts.append(f"TTFT {cell.ttft_s * 1e3:.0f} ms")
    if cell.prefill_tok_s:
        parts.append(f"prefill {cell.prefill_tok_s:.0f} tok/s")
    return ", ".join(parts)


def _trace_lines(trace: dict[str, Any]) -> list[str]:
    evidence = trace["evidence"]
    classes = ", ".join(f"{name} {ms:.3f}" for name, ms in trace["ms_by_class"].items())
    launches = ", ".join(f"{count:g} {api}" for api, count in trace["launches_per_step"].items()) or "none recorded"
    return [
        f"  step: {trace['step_ms']:.3f} ms, {trace['kernels_per_step']} kernels, idle {trace['idle_ms']:.3f} ms, "
        f"launches: {launches}",
        f"  ms by class: {classes}",
        f"  evidence: {trace['steps']} steps repeat every {evidence['period_kernels']} kernels "
        f"({evidence['match']:.1%} of kernels match one period "
        f"later; next best {evidence['next_best_period']} at {evidence['next_best_match']:.1%}); a step starts at "
        f"{evidence['first_kernel_of_step']!r}",
    ]


def document(found: list[Found], receipts: list[Receipt]) -> dict[str, Any]:
    """The finding as JSON: files with cells, flags and unknown keys, and the receipts."""
    return {
        "schema_version": 1,
        "command": "import",
        "files": [
            {
                "file": f.where,
                "format": f.format,
                "sha256": f.sha256,
                "cells": [_cell(c) for c in f.cells],
                "flags": [{"code": x.code, "text": x.text} for x in f.flags],
                "notes": f.notes,
                "unknown": f.unknown,
                "extras": f.extras,
            }
            for f in found
        ],
        "receipts": [r.model_dump() for r in receipts],
    }


def _cell(cell: Cell) -> dict[str, Any]:
    every = {field.name: getattr(cell, field.name) for field in fields(cell) if field.name != "flags"}
    values = {name: value for name, value in every.items() if value not in (None, "", (), [], {})}
    return values | {"flags": [{"code": x.code, "text": x.text} for x in cell.flags]}
