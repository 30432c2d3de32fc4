"""Windows as receipts, and a new calibration proposed from them."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from twin.errors import ReceiptError
from twin.fitting.receipts import COLUMNS, Receipt, receipts_csv
from twin.planning.server import Server
from twin.watch.session import LEAST_DRAFTS, LEAST_INTERVALS, Observation

#: a window whose interval holds more than this share of prompt chunks is kept but not fitted
MOST_PROMPT_SHARE = 0.05
#: a mean draft length further from a whole number is a mix of two of the schedule's lengths
WHOLE_K = 0.05


def receipts_of(observation: Observation, server: Server, traffic: str, url: str) -> list[Receipt]:
    """The step time and the tokens per step of a window; none when it holds too little or mixes draft lengths."""
    window = observation.window
    if window is None or window.step_s is None or not window.streams or window.intervals < LEAST_INTERVALS:
        return []
    length = window.draft_tokens or 0.0
    k = round(length)
    if abs(length - k) > WHOLE_K or (k and window.drafts < LEAST_DRAFTS):
        return []
    reason = ""
    if not window.steady:
        reason = "the number of streams changed within the window"
    elif observation.step is None or observation.step.prompt_s > MOST_PROMPT_SHARE * observation.step.step_s:
        reason = "prompt chunks share these steps"
    now = datetime.now(UTC)
    stem = f"watch-{server.lane.name}-{now:%Y%m%dT%H%M%S.%f}"
    prompt = round(window.prompt_tokens or 0.0)
    common: dict[str, object] = {
        "source": f"twin watch {url}"[:500], "date": f"{now:%Y-%m-%d}", "lane": server.lane.name,
        "checkpoint": server.lane.checkpoint.name, "engine": server.lane.engine.name, "traffic": traffic, "k": k,
        "verification": server.verification, "context_tokens": prompt, "concurrency": max(round(window.streams), 1),
        "tokens_per_step": window.tokens_per_step if k else 1.0, "use": "exclude" if reason else "fit",
        "reason": reason,
    }  # fmt: skip
    step = {"id": f"{stem}-step", "quantity": "step_time", "definition": "chunk_interval", "unit": "ms"}
    found = [Receipt(**common, **step, value=window.step_s * 1e3)]  # type: ignore[arg-type]
    if k and window.tokens_per_step:
        kept = {"id": f"{stem}-kept", "quantity": "tokens_per_step", "unit": "tokens"}
        found.append(Receipt(**common, **kept, value=window.tokens_per_step))  # type: ignore[arg-type]
    return found


def append_receipts(path: Path, receipts: Sequence[Receipt]) -> None:
    """Append rows; a new file gets the header. Raises ReceiptError when the file is another kind of table."""
    if not receipts:
        return
    header, _, rows = receipts_csv(receipts).partition("\n")
    try:
        # One write in append mode: what is there stays, whoever else writes.
        with path.open("a+", encoding="utf-8", newline="") as stream:
            stream.seek(0)
            first = stream.readline()
            if first.strip() and first.strip() != header:
                columns = next(csv.reader(io.StringIO(first)), [])
                raise ReceiptError(
                    f"{path}: begins with {', '.join(columns)[:80]!r}; expected a receipt table with the columns "
                    f"{', '.join(COLUMNS[:4])}, ... Name another file for --record."
                )
            stream.write(rows if first.strip() else f"{header}\n{rows}")
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise ReceiptError(f"{path}: cannot be written ({error.strerror}).") from None


def propose(
    receipts: Iterable[Receipt], server: Server, roots: Sequence[Path], out: Path, *, seed: int = 0
) -> list[str]:
    """Fit the lane to its known receipts and these, write the calibration to `out` (which must not exist), and return
    lines that compare it with the one in use. Raises ReceiptError or TwinError."""
    from twin.files import write_text
    from twin.fitting.fit import fit_lanes
    from twin.fitting.load import read_all, receipt_files, resolve_receipts

    if out.exists():
        raise ReceiptError(f"--refit {out}: exists already and is never overwritten; name another file.")
    lane = server.lane.name
    new = [r for r in receipts if r.use == "fit" and r.quantity == "step_time"]
    if not new:
        raise ReceiptError(
            f"--refit {out}: no window of this watch is good for a fit (steady streams, whole draft length, few prompt "
            "chunks); watch for longer, or under steadier load."
        )
    known = [r for r in read_all(receipt_files(roots)) if r.lane == lane and r.use == "fit"]
    result = fit_lanes(resolve_receipts([*known, *new], roots), name=out.stem, seed=seed)
    proposed = result.calibrations[lane]
    write_text(out, proposed.model_dump_json(indent=1) + "\n", force=False)
    current = server.predictors[0].calibration
    before = {p.key: p.posterior_value for p in current.parameters}
    lines = [
        f"proposed calibration {out}: {len(new)} windows beside {len(known)} receipts; in use: {current.name!r}, "
        "unchanged. Try it with --calibration."
    ]
    for p in proposed.parameters:
        old = before.get(p.key, p.catalogue_value)
        change = p.posterior_value / old - 1.0 if old else 0.0
        if abs(change) >= 0.001:
            lines.append(f"  {p.key:40} {old:.6g} -> {p.posterior_value:.6g} {p.unit} ({change:+.1%})")
    if len(lines) == 1:
        lines.append("  no coefficient moved by 0.1 % or more.")
    return lines
