"""Conventions of all commands. Results go to standard output, messages to standard error.

Exit codes: 0 success; 1 failure, such as a cluster that does not answer (a job or script that fails returns its own
code); 2 wrong usage, such as a missing or invalid file or an invalid option. Errors that the user can fix are reported
in one line; all others are a normal Python traceback.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from distgrad import __version__

FAILED, MISUSED = 1, 2


class Commands(TyperGroup):
    """Commands that report usage errors in one line as well."""

    def main(self, *args: Any, **options: Any) -> Any:
        try:
            code = super().main(*args, **{**options, "standalone_mode": False})
        except Exception as e:
            told = getattr(e, "format_message", None)  # parser errors; classes vary with typer's version
            if told is None:
                raise
            text, context = told(), getattr(e, "ctx", None)
            if not text.startswith("Usage:"):  # the help, if no command is given
                hint = f" (see {context.command_path} --help)" if context is not None else ""
                text = f"error: {' '.join(text.split())}{hint}"
            typer.echo(text, err=True)
            sys.exit(getattr(e, "exit_code", MISUSED))
        sys.exit(code if isinstance(code, int) else 0)


app = typer.Typer(
    name="distgrad",
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

#: The option of commands with machine-readable results.
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


#: Whether this process runs only the command, so that it may fork.
in_own_process = False


def main() -> None:
    """The console script."""
    global in_own_process
    in_own_process = True
    app(prog_name="distgrad")


def say(text: str) -> None:
    """Print a message to standard error."""
    typer.echo(text, err=True)


def fail(text: str, code: int = FAILED) -> NoReturn:
    """Exit with a one-line error."""
    typer.echo(f"error: {' '.join(text.split())}", err=True)
    raise typer.Exit(code)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"distgrad {__version__}")
        raise typer.Exit


_Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")]


@app.callback()
def distgrad(version: _Version = False) -> None:
    """Gradients of NumPy models as dataflow graphs, on one machine or on a cluster."""
