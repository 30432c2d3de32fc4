"""Expert ids in NumPy files (NPY, NPZ), read a piece of tokens at a time.

The array of ids is the one called `experts`, `expert_ids`, `topk_ids`, `ids`, `trace` or `counts`, else the largest of
two or three axes. Three axes are tokens x layers x top-k (layers x tokens x top-k where the second is too long for
layers); two are tokens x top-k of one layer, or layers x experts where the second is too long for top-k.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from twin.errors import IngestError
from twin.ingest.model import Found
from twin.ingest.reader import nothing_inside
from twin.ingest.routing_counts import MAX_EXPERTS, MAX_LAYERS, Matrix
from twin.ingest.source import Source
from twin.ingest.unions import PIECE_TOKENS, UnionFold

MAX_TOP_K = 256
#: ids of one piece; a piece and its sorted copies are what memory holds
PIECE_IDS = 2**18
#: what an array that has to be whole may hold: counts, or ids stored column by column
MAX_WHOLE_BYTES = 64 * 2**20
_NAMES = ("experts", "expert_ids", "topk_ids", "ids", "trace", "counts")


@dataclass(frozen=True)
class _Header:
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    @property
    def values(self) -> int:
        return math.prod(self.shape)

    @property
    def item_bytes(self) -> int:
        return int(self.dtype.itemsize)

    @property
    def plain(self) -> bool:
        return self.dtype.kind in "iuf" and self.values > 0


def fold_arrays(source: Source, found: Found, title: str) -> UnionFold | Matrix:
    """Unions of the ids, or the counts where the array turns out to be counts. Raises IngestError."""
    try:
        with ExitStack() as stack:
            return _fold(_Arrays(source, stack), found, title)
    except IngestError:
        raise
    except Exception as error:  # numpy and zipfile raise many kinds on damaged files
        raise IngestError(f"{source.where}: not a readable NumPy file ({str(error)[:120]}).") from None


class _Arrays:
    """The arrays of one file by name, each opened as often as needed."""

    def __init__(self, source: Source, stack: ExitStack) -> None:
        self.source, self._stack = source, stack
        file: IO[bytes] = stack.enter_context(source.path.open("rb"))
        if source.gzipped:
            # A ZIP directory is at the end of its file, which gzip cannot seek to.
            file = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - closed by the stack
            with source.open() as packed:
                shutil.copyfileobj(packed, file)
        self._file = file
        self._zip = stack.enter_context(zipfile.ZipFile(file)) if source.head.startswith(b"PK") else None
        if self._zip and sum(entry.file_size for entry in self._zip.infolist()) > source.max_bytes:
            raise IngestError(
                f"{source.where}: unpacks to more than {source.max_bytes / 2**30:.3g} GiB; save fewer tokens, or raise "
                "--max-size."
            )
        self.headers = {name: self.open(name)[1] for name in self._names()}

    def _names(self) -> list[str]:
        if self._zip is None:
            return ["array"]
        return [n.removesuffix(".npy") for n in self._zip.namelist()[:1000] if n.endswith(".npy")]

    def open(self, name: str) -> tuple[IO[bytes], _Header]:
        """The data of an array, positioned after its header."""
        if self._zip is None:
            self._file.seek(0)
            stream = self._file
        else:
            stream = self._stack.enter_context(self._zip.open(f"{name}.npy"))
        version = np.lib.format.read_magic(stream)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = reader(stream)
        if dtype.hasobject:
            raise IngestError(f"{self.source.where}: the array {name!r} holds Python objects; save plain numbers.")
        return stream, _Header(shape, fortran, dtype)

    def whole(self, name: str) -> npt.NDArray[Any]:
        """One array at once, at most MAX_WHOLE_BYTES."""
        stream, header = self.open(name)
        if header.values * header.item_bytes > MAX_WHOLE_BYTES:
            raise IngestError(
                f"{self.source.where}: the array {name!r} must be read at once and has more than "
                f"{MAX_WHOLE_BYTES // 2**20} MiB; save it as np.ascontiguousarray(ids), or fewer tokens."
            )
        flat = self._take(stream, header, header.values)
        return flat.reshape(header.shape, order="F" if header.fortran else "C")

    def pieces(self, name: str, rows: int, row: int) -> Iterator[npt.NDArray[Any]]:
        """`rows` rows of `row` values each, in pieces of whole PIECE_TOKENS rows."""
        stream, header = self.open(name)
        size = max(1, PIECE_IDS // (row * PIECE_TOKENS)) * PIECE_TOKENS
        for start in range(0, rows, size):
            count = min(size, rows - start)
            yield self._take(stream, header, count * row).reshape(count, row)

    def _take(self, stream: IO[bytes], header: _Header, values: int) -> npt.NDArray[Any]:
        data = stream.read(values * header.item_bytes)
        if len(data) < values * header.item_bytes:
            raise IngestError(f"{self.source.where}: the array ends early; copy the file again.")
        return np.frombuffer(data, dtype=header.dtype)


def _fold(arrays: _Arrays, found: Found, title: str) -> UnionFold | Matrix:
    where = arrays.source.where
    usable = {n: h for n, h in arrays.headers.items() if h.plain and len(h.shape) in (2, 3)}
    if not usable:
        names = ", ".join(list(arrays.headers)[:10]) or "none"
        raise nothing_inside(
            arrays.source, title, f"no array of two or three axes of numbers and at least one entry (arrays: {names})"
        )
    chosen = next((n for n in _NAMES if n in usable), max(usable, key=lambda n: usable[n].values))
    header = usable[chosen]
    stream = _streams(arrays, header)
    for name, other in arrays.headers.items():
        if name != chosen and not (name == "stream" and stream is not None):
            found.keep(f"array {name}", f"shape {other.shape}")
    first, second = header.shape[:2]
    if len(header.shape) == 2 and first <= MAX_LAYERS and 32 < second <= MAX_EXPERTS:
        return np.asarray(arrays.whole(chosen), dtype=np.float64)
    shape = header.shape if len(header.shape) == 3 else (first, 1, second)
    swapped = shape[1] > shape[0] and shape[1] > MAX_LAYERS
    tokens, layers, top_k = (shape[1], shape[0], shape[2]) if swapped else shape
    if layers > MAX_LAYERS or top_k > MAX_TOP_K:
        raise IngestError(f"{where}: shape {shape}; expected tokens x layers x top-k.")
    fold = UnionFold(top_k)
    if header.fortran:
        ids = _checked(arrays.whole(chosen).reshape(shape), where)
        _add(fold, ids.swapaxes(0, 1) if swapped else ids, stream, 0, 0)
    elif swapped:
        found.notes.append("read as layers x tokens x top-k, because the second axis is too long for layers")
        # One layer after the other: pieces of the flat array must not span two of them.
        data, _ = arrays.open(chosen)
        size = max(1, PIECE_IDS // (top_k * PIECE_TOKENS)) * PIECE_TOKENS
        for layer in range(layers):
            for start in range(0, tokens, size):
                count = min(size, tokens - start)
                piece = arrays._take(data, header, count * top_k).reshape(count, 1, top_k)
                _add(fold, _checked(piece, where), stream, start, layer)
    else:
        start = 0
        for piece in arrays.pieces(chosen, tokens, layers * top_k):
            _add(fold, _checked(piece.reshape(len(piece), layers, top_k), where), stream, start, 0)
            start += len(piece)
    return fold


def _streams(arrays: _Arrays, ids: _Header) -> npt.NDArray[Any] | None:
    """The stream of each token, or None where there is no such array."""
    header = arrays.headers.get("stream")
    if header is None or header.dtype.kind not in "iu" or len(header.shape) != 1 or header.shape[0] not in ids.shape:
        return None
    return arrays.whole("stream")


def _checked(ids: npt.NDArray[Any], where: str) -> npt.NDArray[np.int32]:
    if ids.dtype.kind == "f" and (not np.all(np.isfinite(ids)) or np.any(ids != np.floor(ids))):
        raise IngestError(f"{where}: expert ids must be whole numbers.")
    if ids.min() < 0 or ids.max() >= MAX_EXPERTS:
        raise IngestError(f"{where}: expert ids from {ids.min()} to {ids.max()}; expected 0 to {MAX_EXPERTS - 1}.")
    return ids.astype(np.int32)


def _add(
    fold: UnionFold, ids: npt.NDArray[np.int32], stream: npt.NDArray[Any] | None, start: int, first_layer: int
) -> None:
    if stream is None:
        fold.add(ids, first_layer)
        return
    own = stream[start : start + len(ids)]
    cuts = np.concatenate([[0], np.flatnonzero(np.diff(own)) + 1, [len(ids)]])
    for low, high in pairwise(cuts.tolist()):
        fold.add(ids[low:high], first_layer)
