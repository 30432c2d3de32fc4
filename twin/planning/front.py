"""Choosing among many cells as they come by: constraints from text, the best, and the Pareto front."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twin.errors import PolicyError, nearest

Row = Mapping[str, Any]
#: Metrics of which less is better; of all others more is.
LESS_IS_BETTER = ("step_ms", "ttft_ms", "cold_experts_per_layer", "unique_experts_per_layer")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq, "=": operator.eq, "!=": operator.ne,
}  # fmt: skip
_CONSTRAINT = re.compile(r"^\s*([A-Za-z0-9_.]+)\s*(>=|<=|==|!=|>|<|=)\s*([^\s<>=!][^<>=!]*?)\s*$")


@dataclass(frozen=True, slots=True)
class Constraint:
    """`column` compared with `bound`."""

    column: str
    sign: str
    bound: float | str

    def kept_by(self, row: Row) -> bool:
        """Whether the row is inside."""
        value = row.get(self.column)
        if isinstance(self.bound, float) and not isinstance(value, (int, float)):
            return False
        return value is not None and _OPERATORS[self.sign](value, self.bound)


def parse_constraints(texts: Sequence[str], columns: Sequence[str]) -> list[Constraint]:
    """Constraints such as "tok_s_per_stream>40, k<=5". Raises PolicyError naming the part that is wrong."""
    found = []
    for part in (p for text in texts for p in text.split(",")):
        match = _CONSTRAINT.match(part)
        if match is None:
            raise PolicyError(
                f"--subject-to {part.strip()!r}: expected COLUMN>NUMBER with >, >=, <, <=, = or !=, for example tok_s_per_stream>40."
            )
        require_column(match[1], columns, "--subject-to")
        try:
            bound: float | str = float(match[3])
        except ValueError:
            bound = match[3]
            if match[2] not in ("=", "==", "!="):
                raise PolicyError(
                    f"--subject-to {part.strip()!r}: {bound!r} is not a number; a text can only be compared with = or !=."
                ) from None
        found.append(Constraint(match[1], match[2], bound))
    return found


def require_column(name: str, columns: Sequence[str], where: str) -> None:
    """Raises PolicyError with the nearest column."""
    if name not in columns:
        raise PolicyError(f"{where}: no column {name!r}; {nearest(name, columns)}")


def towards(column: str) -> float:
    """1 where more is better, -1 where less is."""
    return -1.0 if column.removesuffix("_p05").removesuffix("_p95") in LESS_IS_BETTER else 1.0


@dataclass
class Best:
    """The row with the best value of one column; of equals the first."""

    column: str
    row: Row | None = None

    def add(self, row: Row) -> None:
        """Look at one more row."""
        if self.row is None or towards(self.column) * (row[self.column] - self.row[self.column]) > 0:
            self.row = row


@dataclass
class Front:
    """The rows that no other row beats: at least as good in every column and better in one."""

    columns: Sequence[str]
    _rows: list[tuple[tuple[float, ...], Row]] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Look at one more row; of equal ones the first stays."""
        new = tuple(towards(c) * row[c] for c in self.columns)
        if any(all(o >= n for o, n in zip(old, new, strict=True)) for old, _ in self._rows):
            return
        self._rows = [(old, kept) for old, kept in self._rows if not all(n >= o for o, n in zip(old, new, strict=True))]
        self._rows.append((new, row))

    @property
    def rows(self) -> list[Row]:
        """The front, ordered by its first column."""
        return [row for _, row in sorted(self._rows, key=lambda item: item[0])]
