"""The `twin` command. Subcommands are imported when they are called, so that `twin --help` stays quick."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from typing import Any, TextIO, cast

import click

from twin import __version__
from twin.cli.printable import Printable
from twin.errors import TwinError, nearest

#: command -> (module with an object `command`, one line for the help page)
COMMANDS: dict[str, tuple[str, str]] = {
    "predict": ("predict", "Step time, tokens per step and tok/s of a lane, with intervals."),
    "lanes": ("lanes", "List the lanes of the catalogue."),
    "show": ("show", "Show one lane, device, link, engine, checkpoint or traffic class with its sources."),
    "check": ("check", "Check the catalogue: sources, assumptions, capacity."),
    "fit": ("fit", "Fit a lane's coefficients to receipts."),
    "validate": ("validate", "Held-out errors: by cell, by source, three-cell kits, transfer."),
    "receipts": ("receipts", "Clean public tables of runs into receipts, with a log."),
    "suggest": ("suggest", "Name the measurements that would narrow an answer most."),
    "union": ("union", "Unique experts a batch touches, with intervals."),
    "placement": ("placement", "Make a hot map from routing counts and say what it would save."),
    "acceptance": ("acceptance", "Tokens per step and per-position acceptance of a traffic class."),
    "traffic": ("traffic", "List, show and import traffic classes."),
    "schedule": ("schedule", "The best k for every number of live streams."),
    "import": ("import_", "Make receipts from bench results, metrics pages, logs and traces."),
    "import-checkpoint": ("import_checkpoint", "Make a checkpoint file from a config.json."),
    "import-device": ("import_device", "Make a device file from nvidia-smi output."),
    "init": ("init", "Write a commented lane file to start from."),
    "simulate": ("simulate", "Run traffic through a lane: TTFT, TPOT, ITL, queueing."),
    "plan": ("plan", "What a lane can promise under an SLO, and what to change."),
    "explain": ("explain", "Why two settings differ: the ratio taken apart by mechanism."),
    "levers": ("levers", "What changing each part of a lane would gain, ranked."),
    "trace": ("trace", "One step's timeline as a trace that Perfetto opens."),
    "report": ("report", "A scenario as one self-contained HTML page."),
    "board": ("board", "A local page to play with a lane."),
    "sweep": ("sweep", "Predict a grid of settings, resumable, to a table or file."),
    "rerun": ("rerun", "Repeat the command that printed a JSON result and compare."),
    "serve": ("serve", "The lane as an OpenAI-compatible endpoint with the twin's timing."),
    "watch": ("watch", "Follow a live server's metrics beside the twin's prediction."),
}


def _available(name: str) -> bool:
    return importlib.util.find_spec(f"twin.cli.{COMMANDS[name][0]}") is not None


class Commands(click.Group):
    """Lists commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Commands in the order a newcomer needs them."""
        return [name for name in COMMANDS if _available(name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one command."""
        if cmd_name not in COMMANDS or not _available(cmd_name):
            return None
        module: Any = importlib.import_module(f"twin.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = module.command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """An unknown command is answered with the nearest one."""
        name = args[0] if args else ""
        if name and self.get_command(ctx, name) is None:
            raise click.UsageError(f"no command {name!r}; {nearest(name, self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One line a command, from the table above."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="twin")
def cli() -> None:
    """A digital twin of an LLM serving lane: what will a step cost, how many tok/s, and how sure is that?"""


def main() -> None:
    """Entry point: a refusal prints its reason and exits with its code, never with a traceback."""
    out, err = Printable(sys.stdout), Printable(sys.stderr)
    with contextlib.redirect_stdout(cast(TextIO, out)), contextlib.redirect_stderr(cast(TextIO, err)):
        _main()


def _main() -> None:
    try:
        sys.exit(cli.main(prog_name="twin", standalone_mode=False) or 0)
    except TwinError as error:
        click.echo(f"twin: {error}", err=True)
        sys.exit(error.exit_code)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.Abort:
        click.echo("twin: interrupted.", err=True)
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        # What the system refuses about a file (a name too long, a disk that fails) and no reader has said better.
        click.echo(f"twin: {error.filename or 'a file'}: {error.strerror or error}.", err=True)
        sys.exit(1)
    except MemoryError:
        click.echo("twin: this needs more memory than there is; ask for fewer cells or samples.", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
