"""What a sweep keeps of rows that come by: how many, the first, the best, and the Pareto front. Memory does not grow with rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from twin.errors import PolicyError
from twin.planning.front import Best, Front, parse_constraints, require_column

SHOWN_ROWS = 40
_TEXT = ("lane", "traffic", "verification", "refused")


class Choice:
    """`best` is a column, `pareto` several; only rows that keep `subject_to` and fit the memory there is can be chosen."""

    def __init__(
        self,
        columns: Sequence[str],
        *,
        best: str | None = None,
        pareto: Sequence[str] = (),
        subject_to: Sequence[str] = (),
        keep: int = SHOWN_ROWS,
    ) -> None:
        numbers = [n for n in columns if n not in _TEXT and "." not in n]
        for option, wanted in (("--best", [best] if best else []), ("--pareto", pareto)):
            for column in wanted:
                require_column(column, numbers, option)
        self._subject_to = subject_to
        self._constraints = parse_constraints(subject_to, columns)
        self._keep = keep
        self._best = Best(best) if best else None
        self._front = Front(pareto) if pareto else None
        self.first: list[dict[str, Any]] = []
        self.count = self.refused = self.kept = 0

    def add(self, body: bytes) -> None:
        """Look at the rows of one chunk (JSON Lines)."""
        for line in body.splitlines():
            row = json.loads(line)
            self.count += 1
            self.refused += bool(row["refused"])
            inside = all(c.kept_by(row) for c in self._constraints)
            if len(self.first) < self._keep and inside:
                self.first.append(row)
            if row["refused"] or not inside:
                continue
            self.kept += 1
            for collector in (self._best, self._front):
                if collector is not None and row["fits_memory"]:
                    collector.add(row)

    def answer(self) -> dict[str, Any]:
        """Counts with `best` and `pareto`, or else the first `rows`. Raises PolicyError when no row could be the best."""
        found: dict[str, Any] = {"cells": self.count, "refused": self.refused, "kept": self.kept}
        if self._best is not None:
            if self._best.row is None:
                asked = " and ".join(self._subject_to) or "to the memory there is"
                raise PolicyError(f"no cell of {self.count:,} keeps {asked}; loosen --subject-to or widen --grid.")
            found["best"] = dict(self._best.row)
        if self._front is not None:
            found["pareto"] = [dict(row) for row in self._front.rows]
        if self._best is None and self._front is None:
            found["rows"] = self.first[:SHOWN_ROWS]
        return found
