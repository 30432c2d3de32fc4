"""Expert kernels against the union law: time = floor + per-expert cost x experts touched + per-token cost x tokens.

The floor is launch and routing, the per-expert cost is its weights read once (bytes / achieved bandwidth), the
per-token cost is arithmetic and the padding that grows with the batch. Under expert parallelism the experts are those
of the busiest rank and the tokens those of the batch: engines choose their tiles by the batch. Where reading weights
does not bind, or the tiles change, the straight line ends and `kernel_law` goes on.

Published tables time two routing laws. *Balanced* spreads tokens evenly over experts; *power law* draws an expert's
load from a power law, rounds loads to whole tokens and puts the busiest rank first (`power_law_loads` restates the
collector's law). A law fitted on balanced rows predicts power-law rows when the union law is right.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twin.errors import IngestError
from twin.routing.batch import Array

#: Tokens an expert of one rank, shape (experts,).
Loads = NDArray[np.int64]
_FIXED = ("system", "engine", "version", "kernel", "dtype", "tensor_parallel", "expert_parallel", "routing")


@dataclass(frozen=True)
class KernelLaw:
    """Coefficients in seconds: of a call, of an expert touched, of a token of the batch."""

    floor_s: float
    per_expert_s: float
    per_token_s: float

    def time_s(self, experts: Array, tokens: Array) -> Array:
        """Kernel time for experts touched (on the busiest rank) and tokens in the batch."""
        return self.floor_s + self.per_expert_s * experts + self.per_token_s * tokens


@dataclass(frozen=True)
class KernelTable:
    """One kernel under one routing law: seconds by tokens, shape (points,)."""

    system: str
    engine: str
    version: str
    kernel: str
    dtype: str
    tensor_parallel: int
    expert_parallel: int
    routing: str
    tokens: Array
    time_s: Array

    @property
    def configuration(self) -> tuple[str | int, ...]:
        """What the kernel is, without the routing law."""
        return (
            self.system, self.engine, self.version, self.kernel, self.dtype, self.tensor_parallel, self.expert_parallel
        )  # fmt: skip


def fit_kernel(experts: Array, tokens: Array, time_s: Array) -> KernelLaw:
    """Least squares of the relative error, no coefficient below zero."""
    from scipy.optimize import nnls

    design = np.column_stack([np.ones_like(time_s), experts, tokens]) / time_s[:, None]
    floor, per_expert, per_token = nnls(design, np.ones_like(time_s))[0]
    return KernelLaw(float(floor), float(per_expert), float(per_token))


def balanced_loads(experts: int, top_k: int, tokens: int, ranks: int = 1) -> Loads:
    """Tokens an expert of the first rank when picks are dealt out evenly: pick i of token t is i E/K + t (E/K)/m on."""
    stride = -(-experts // top_k)
    t, i = np.arange(tokens)[:, None], np.arange(top_k)[None, :]
    step = t if tokens >= stride else t * stride / tokens
    chosen = np.floor(step + i * stride).astype(np.int64) % experts
    return np.bincount(chosen[chosen < experts // ranks], minlength=experts // ranks).astype(np.int64)


def balanced_workload(experts: int, top_k: int, tokens: int, ranks: int = 1) -> float:
    """Experts touched on the first rank when picks are dealt out evenly."""
    return float(np.count_nonzero(balanced_loads(experts, top_k, tokens, ranks)))


def power_law_loads(
    experts: int, top_k: int, tokens: int, ranks: int, exponent: float, *, draws: int = 16, seed: int = 0
) -> list[Loads]:
    """Tokens an expert of the busiest rank (by tokens) when loads follow a power law with this exponent, a draw each.

    Loads are drawn between 1 and 0.8 m (0.01 and 2 for batches with fewer picks than experts), scaled to m K picks,
    rounded, capped at m, and the rounding error is spread over ranks one pick at a time: to the least loaded expert of
    a rank when picks are missing, from the most loaded when there are too many.
    """
    rng = np.random.default_rng(seed)
    low, high = (1.0, 0.8 * tokens) if tokens * top_k > experts else (0.01, 2.0)
    power = 1.0 - exponent
    found = []
    for _ in range(draws):
        u = rng.random(experts)
        load = ((high**power - low**power) * u + low**power) ** (1.0 / power)
        picks = np.minimum(np.round(load / load.sum() * tokens * top_k), tokens).astype(np.int64).reshape(ranks, -1)
        _settle(picks, tokens * top_k - int(picks.sum()), tokens)
        found.append(picks[int(np.argmax(picks.sum(axis=1)))])
    return found


def power_law_workload(
    experts: int, top_k: int, tokens: int, ranks: int, exponent: float, *, draws: int = 16, seed: int = 0
) -> float:
    """Expected experts touched on the busiest rank under a power law of loads."""
    loads = power_law_loads(experts, top_k, tokens, ranks, exponent, draws=draws, seed=seed)
    return float(np.mean([np.count_nonzero(load) for load in loads]))


def read_kernel_tables(path: Path) -> list[KernelTable]:
    """Read a wide table (CSV, gzipped or not): the columns that say what it is, then us_<tokens>.

    Raises IngestError naming file and line.
    """
    tables: list[KernelTable] = []
    for number, cells in _rows(path):
        try:
            points = [(int(name[3:]), float(cell)) for name, cell in cells.items() if name.startswith("us_") and cell]
            tables.append(
                KernelTable(
                    cells["system"], cells["engine"], cells["version"], cells["kernel"], cells["dtype"],
                    int(cells["tensor_parallel"]), int(cells["expert_parallel"]), cells["routing"],
                    np.asarray([float(m) for m, _ in points]), np.asarray([us * 1e-6 for _, us in points]),
                )
            )  # fmt: skip
        except (KeyError, ValueError) as error:
            names = ", ".join(_FIXED)
            raise IngestError(
                f"{path}, line {number}: not a kernel row ({error}); expected {names} and us_<tokens>."
            ) from None
    return tables


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        yield from enumerate(csv.DictReader(io.StringIO(data.decode("utf-8-sig"))), start=2)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise IngestError(f"{path}: cannot be read as a CSV table ({error}).") from None


def _settle(picks: np.ndarray[tuple[int, ...], np.dtype[np.int64]], missing: int, most: int) -> None:
    """Spread a rounding error over ranks in turn, one pick at a time."""
    rank, idle = 0, 0
    while missing != 0 and idle < picks.shape[0]:
        row = picks[rank % picks.shape[0]]
        rank += 1
        expert = int(np.argmin(row)) if missing > 0 else int(np.argmax(row))
        room = row[expert] < most if missing > 0 else row[expert] > 0
        if room:
            row[expert] += 1 if missing > 0 else -1
            missing += -1 if missing > 0 else 1
        idle = 0 if room else idle + 1
