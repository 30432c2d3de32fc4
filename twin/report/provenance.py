"""What a printed result was made from: the version, the command with its settings, and the files it read.

Every JSON document of the command line carries these keys, so that `twin rerun` can repeat it. What cannot change an
answer is left out (`--workers` and `--cluster`, where a drawing went, `--force`, `--json` itself): the same question gives the same
bytes, however it was run.
"""

from __future__ import annotations

import hashlib
import shlex
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

#: parameters that do not change an answer, or that write: never recorded, so a result file cannot make a rerun write
UNRECORDED = frozenset({
    "as_json", "as_csv", "force", "workers", "cluster", "plot", "output", "out", "store", "requests_out", "trace_out", "log_file",
    "pdf", "link_output", "refit", "record", "catalogue_out",
})  # fmt: skip
#: files larger than this are named without a hash
MAX_HASHED_BYTES = 256 * 2**20


def provenance(context: click.Context | None) -> dict[str, Any]:
    """`version` (and NumPy's), `command_line`, `settings` and `inputs` of the running command; only the version outside of one."""
    versions = _versions()
    if context is None or context.parent is None:
        return versions
    settings = {
        p.name: _plain(context.params.get(p.name))
        for p in context.command.params
        if p.name is not None and p.name not in UNRECORDED and context.params.get(p.name) not in (None, ())
    }
    given = {
        name: value
        for name, value in settings.items()
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    words = ["twin", *_command_words(context), *arguments(context.command, given)]
    inputs = {text: digest for text in _paths(context.params) if (digest := _sha256(Path(text))) is not None}
    return versions | {"command_line": shlex.join(words), "settings": settings, "inputs": inputs}


def _versions() -> dict[str, Any]:
    from twin import __version__

    # NumPy's own sums and powers decide the last bits; a command that computes nothing has not loaded it.
    numpy = sys.modules.get("numpy")
    return {"version": __version__} | ({"numpy_version": numpy.__version__} if numpy is not None else {})


def arguments(command: click.Command, settings: dict[str, Any]) -> list[str]:
    """The words of a command line that give `settings`; names the command does not know, and unrecorded ones, are
    left out.
    """
    options: list[str] = []
    positional: list[str] = []
    for parameter in command.params:
        if parameter.name is None or parameter.name in UNRECORDED or parameter.name not in settings:
            continue
        value = settings[parameter.name]
        many = isinstance(value, list) and (parameter.multiple or parameter.nargs != 1)
        if isinstance(value, list) and not many:
            value = ",".join(str(v) for v in value)  # a list that one word gives, such as --tokens 1,2,4
        if isinstance(parameter, click.Argument):
            positional += [str(v) for v in value] if many else [str(value)]
        elif isinstance(parameter, click.Option):
            options += _option_words(parameter, value, many)
    # A value that starts with a dash must not be taken for an option.
    return options + (["--", *positional] if any(p.startswith("-") for p in positional) else positional)


def _option_words(option: click.Option, value: Any, many: bool) -> list[str]:
    flag = max(option.opts, key=len)
    if option.is_flag:
        off = option.secondary_opts
        return [flag] if value else [max(off, key=len)] if off else []
    return [f"{flag}={v}" for v in (value if many else [value])]


def _command_words(context: click.Context) -> list[str]:
    words: list[str] = []
    here: click.Context | None = context
    while here is not None and here.parent is not None:
        words.insert(0, here.info_name or "")
        here = here.parent
    return words


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value if isinstance(value, (bool, int, float, str)) else str(value)


def _paths(params: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for name, value in params.items():
        if name in UNRECORDED:
            continue
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, Path) or (isinstance(item, str) and item.endswith((".json", ".toml", ".csv"))):
                found.append(str(item))
    return found


def _sha256(path: Path) -> str | None:
    try:
        if not path.is_file() or path.stat().st_size > MAX_HASHED_BYTES:
            return None
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError):
        return None
