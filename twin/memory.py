"""Keep freed memory in the process.

Arrays of a step are some hundred kilobytes and live for microseconds. The GNU C library gives such pieces back to the
system when they are freed and asks for them again for the next array; every page is then mapped and cleared anew, which
costs as much as the arithmetic. Other C libraries are left alone.
"""

from __future__ import annotations

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_KEEP_BYTES = 64 * 2**20
_LARGEST_BYTES = 32 * 2**20


def keep_freed_memory() -> None:
    """Let the allocator keep up to 64 MiB that were freed. Results are the same; only the time changes."""
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_BYTES)
