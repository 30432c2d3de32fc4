"""Writes the reference pages from the program: `python docs/generate.py [cli|formats|python-api] [--check]`."""

from __future__ import annotations

import importlib
import inspect
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

HERE = Path(__file__).resolve().parent
NOTE = "<!-- Written by `python docs/generate.py`; change the program, not this page. -->\n"
#: file format -> (what it is, dotted names of its models, outermost first)
FORMATS = {
    "Devices (`hardware/devices/*.toml`)": ("A GPU, or a CPU with its memory.", ["twin.lane.device.Device"]),
    "Links (`hardware/links/*.toml`)": ("PCIe, NVLink, C2C, RoCE.", ["twin.lane.device.Link"]),
    "Checkpoints (`hardware/checkpoints/*.toml`)": ("The model as stored.", ["twin.lane.checkpoint.Checkpoint"]),
    "Engines (`hardware/engines/*.toml`)": ("The software stack.", ["twin.lane.engine.Engine", "twin.lane.engine.CollectiveLaw"]),
    "Lanes (`hardware/lanes/*.toml`)": (
        "One concrete box that serves one model.", ["twin.lane.lane.LaneFile", "twin.lane.lane.Placement", "twin.lane.lane.Policy"],
    ),
    "Traffic classes (`scenarios/traffic/*.toml`)": ("What people ask.", ["twin.acceptance.traffic.TrafficClass"]),
    "Receipts (`calibration/receipts/**/*.csv`)": ("One measured quantity a row.", ["twin.fitting.receipts.Receipt"]),
    "Calibrations (`calibration/fits/*.json`)": (
        "What a fit learnt.", ["twin.fitting.calibration.Calibration", "twin.fitting.calibration.FittedParameter", "twin.fitting.calibration.CalibratedRange"],
    ),
}  # fmt: skip


def cli_page() -> str:
    """Every command's help, from click."""
    from twin.cli.main import cli

    text = f"{NOTE}\n# Command line\n\nstdout is the result, stderr the rest. Exit codes: 0 done, 1 refused with a reason, 2 usage, 3 a gate failed.\n"
    context = click.Context(cli, info_name="twin")
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        text += f"\n## twin {name}\n" + "".join(_help(command, f"twin {name}"))
    return text


def _help(command: click.Command, path: str) -> Iterator[str]:
    # From the parameters and not from click's own page, whose layout differs from version to version.
    words = [p.make_metavar(click.Context(command)) for p in command.params if isinstance(p, click.Argument)]
    group = isinstance(command, click.Group)
    yield f"\n`{' '.join([path, *(['COMMAND'] if group else ['[OPTIONS]', *words])])}`\n\n{inspect.cleandoc(command.help or '')}\n"
    options = [p for p in command.params if isinstance(p, click.Option)]
    if options:
        yield "\n| option | meaning | default |\n|---|---|---|\n"
    for option in options:
        yield f"| {_flags(option)} | {_cell(option.help or '')} | {_default_of(option)} |\n"
    if group:
        for name, child in sorted(command.commands.items()):
            yield f"\n### {path} {name}\n"
            yield from _help(child, f"{path} {name}")


def _flags(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    if option.is_flag:
        return names
    choices = getattr(option.type, "choices", None)
    kind = "\\|".join(str(c) for c in choices) if choices else option.metavar or option.type.name.upper()
    return f"{names} {_cell(kind)}" + (", repeatable" if option.multiple else "")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("\\|", "|").replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


def _default_of(option: click.Option) -> str:
    if option.required:
        return "required"
    value = option.default
    shown = option.show_default and not option.is_flag and isinstance(value, (str, int, float)) and value != ""
    return f"`{value}`" if shown else ""


def formats_page() -> str:
    """A table a model, from pydantic."""
    text = (
        f"{NOTE}\n# File formats\n\n"
        'Unknown keys are refused, and so are inf and nan. A *quantity* is a text with its unit (`"8 us"`, `"1600 GB/s"`), alone or as\n'
        '`{ value = "8 us", source = "...", kind = "measured" }` with kind spec, measured, derived or assumed; a catalogue value without a source does\n'
        "not pass `twin check`.\n"
    )
    for title, (meaning, names) in FORMATS.items():
        text += f"\n## {title}\n\n{meaning}\n"
        for dotted in names:
            module, _, attribute = dotted.rpartition(".")
            text += _model(getattr(importlib.import_module(module), attribute))
    return text


def _model(model: Any) -> str:
    doc = inspect.cleandoc(model.__doc__ or "")
    rows = "".join(f"| `{name}` | {_type(field)} | {_default(field)} |\n" for name, field in model.model_fields.items())
    return f"\n**{model.__name__}.** {doc}\n\n| key | type | default |\n|---|---|---|\n{rows}"


def _type(field: Any) -> str:
    text = _type_text(field.annotation)
    for item in field.metadata:
        dimension = getattr(getattr(item, "func", None), "args", None)
        if dimension and isinstance(dimension[0], str):
            text = f"quantity: {dimension[0]}"
    limits = [
        f"{sign} {getattr(m, name):g}"
        for m in field.metadata
        for name, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
        if isinstance(getattr(m, name, None), (int, float))
    ]
    return (text + (f", {', '.join(limits)}" if limits else "")).replace("|", "\\|")


def _type_text(annotation: Any) -> str:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        for item in annotation.__metadata__:
            dimension = getattr(getattr(item, "func", None), "args", None)
            if dimension and isinstance(dimension[0], str):
                return f"quantity: {dimension[0]}"
        return _type_text(typing.get_args(annotation)[0])
    if origin is typing.Literal:
        return ", ".join(f"`{a}`" if a != "" else "empty" for a in typing.get_args(annotation))
    if origin is not None:
        inner = [_type_text(a) for a in typing.get_args(annotation) if a is not type(None)]
        name = getattr(origin, "__name__", "")
        return " or ".join(inner) if name in ("UnionType", "Union") else f"{name} of {', '.join(inner)}"
    name = getattr(annotation, "__name__", str(annotation))
    return {
        "Sourced": "quantity",
        "str": "text",
        "int": "whole number",
        "float": "number",
        "bool": "true or false",
    }.get(name, name)


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return "none" if value in (None, "", [], {}) else f"`{value}`"


def python_api_page() -> str:
    """Public names, from `twin.__all__`, after the hand-written examples."""
    import twin

    page = HERE / "python-api.md"
    head = page.read_text(encoding="utf-8").split("<!-- names -->")[0]
    text = f"{head}<!-- names -->\n<!-- From here on written by `python docs/generate.py`. -->\n\n## Names\n"
    for name in twin.__all__:
        value = getattr(twin, name)
        if callable(value):
            doc = inspect.cleandoc(value.__doc__ or "")
            text += f"\n### `twin.{name}`\n\n```text\n{name}{_signature(value)}\n```\n\n{doc}\n"
    return text


def _signature(value: Any) -> str:
    import dataclasses

    if dataclasses.is_dataclass(value):
        return "(" + "".join(f"\n    {f.name}: {f.type}," for f in dataclasses.fields(value)) + "\n)"
    if isinstance(value, type):
        return ""
    parameters = "".join(f"\n    {p}," for p in inspect.signature(value).parameters.values())
    return f"({parameters}\n) -> {inspect.signature(value).return_annotation}"


PAGES: dict[str, Callable[[], str]] = {"cli": cli_page, "formats": formats_page, "python-api": python_api_page}


def main(words: list[str]) -> int:
    """Write the pages named, or all; with --check say which is out of date and exit 1."""
    check = "--check" in words
    chosen = [w for w in words if w in PAGES] or list(PAGES)
    stale = 0
    for name in chosen:
        path, text = HERE / f"{name}.md", PAGES[name]()
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if check and old != text:
            print(f"docs/{name}.md is out of date: run `python docs/generate.py`")
            stale += 1
        elif not check:
            path.write_text(text, encoding="utf-8")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
