"""Running a case in this process, as the entry point does, and judging it."""

from __future__ import annotations

import contextlib
import io
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

from twin.cli.main import main

from .cases import Case, make_case
from .servers import clients, hostile, small_world

LIMIT_S = 120
#: what drives a terminal, C0 and C1 without tab and line ends
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


class TooLong(BaseException):
    """Not an Exception, so that no handler of the program swallows it."""


@contextlib.contextmanager
def _limit(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TooLong

    # Processor time, which a busy machine does not stretch; and ten times that by the clock, for what waits for ever.
    timers = {signal.SIGPROF: (signal.ITIMER_PROF, seconds), signal.SIGALRM: (signal.ITIMER_REAL, 10 * seconds)}
    before = {sign: signal.signal(sign, stop) for sign in timers}
    for timer, most in timers.values():
        signal.setitimer(timer, most)
    try:
        yield
    finally:
        for timer, _ in timers.values():
            signal.setitimer(timer, 0)
        for sign, handler in before.items():
            signal.signal(sign, handler)


def _filled(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word


def run_case(case: Case) -> str | None:
    """What is wrong with the program's behaviour, or None."""
    folder = Path(tempfile.mkdtemp(prefix="twin-fuzz-"))
    before, argv = Path.cwd(), sys.argv
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    code: object = None
    wrong: list[str] = []
    try:
        for name, data in case.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        os.chdir(folder)
        with contextlib.ExitStack() as world:
            world.enter_context(small_world())
            filled = {"{dir}": str(folder), "\x00": ""}  # a NUL cannot be in an argument: the system ends it there
            if any("{url}" in word for word in case.words):
                filled["{url}"] = world.enter_context(hostile(case.replies))
            world.enter_context(clients(case.requests, wrong))
            sys.argv = ["twin", *(_filled(word, filled) for word in case.words)]
            for stream in (contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _limit(LIMIT_S)):
                world.enter_context(stream)
            main()
    except SystemExit as stop:
        code = stop.code if stop.code is not None else 0
    except TooLong:
        return f"more than {LIMIT_S} s of processor time, or ten times that by the clock"
    except BaseException:
        return traceback.format_exc(limit=-6)
    finally:
        sys.argv = argv
        os.chdir(before)
        shutil.rmtree(folder, ignore_errors=True)
    said, printed = (stream.buffer.getvalue().decode("utf-8", "replace") for stream in (err, out))
    if wrong:
        return "\n".join([*wrong, said[-3000:]])
    if code not in (0, 1, 2, 3):
        return f"exit code {code!r}"
    if "Traceback" in said or "Traceback" in printed:
        return f"a traceback was printed: {(said + printed)[-3000:]}"
    if _CONTROL.search(said + printed):
        return f"what a file or server says reaches the terminal unescaped: {(said + printed)[-500:]!r}"
    if code != 0 and not said.strip():
        return f"exit code {code} without a reason"
    if code == 1 and case.names and case.names not in said:
        return f"the refusal does not name the file {case.names!r}: {said.strip()[:300]}"
    return None


def start_worker() -> None:
    """Input must not exhaust memory: with a ceiling of 4 GiB a greedy case fails here and not on the machine."""
    resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))
    warnings.simplefilter("ignore")


def report(seed: int, number: int) -> str | None:
    """Run one case; what failed with the words to repeat it."""
    case = make_case(seed, number)
    wrong = run_case(case)
    return None if wrong is None else f"case {seed}:{number} ({case.kind}) twin {case.words}\n{wrong}"
