"""The long run: python -m tests.fuzz --cases 100000 --seed 1 --workers 2"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.fuzz.run import report, start_worker


def main() -> int:
    """Exit 1 when any case failed; each failure is printed with the command that repeats it."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case; with --cases 1 it repeats one")
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    numbers = range(given.first, given.first + given.cases)
    failed = 0
    # Not multiprocessing.Pool: its workers may not start the processes that `--workers` starts.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.workers, mp_context=spawn, initializer=start_worker) as pool:
        for done, wrong in enumerate(pool.map(partial(report, given.seed), numbers, chunksize=8), start=1):
            if wrong is not None:
                failed += 1
                print(wrong, flush=True)
            if done % 1000 == 0:
                print(f"{done} cases, {failed} failed", file=sys.stderr, flush=True)
    print(f"{given.cases} cases, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
