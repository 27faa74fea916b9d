"""What all commands agree on. Results go to the standard output, everything said on the way to the error output.

Exit codes: 0 done; 1 failed (a cluster that does not answer, a job or script that failed: then its own code); 2 wrong
use (a file that is not there or not what it should be, an option that cannot be). Errors that a user can mend are told
in one line; any other is a plain traceback, as from every Python program.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from distgrad import __version__

FAILED, MISUSED = 1, 2


class Commands(TyperGroup):
    """Commands whose wrong use is told in one line, too."""

    def main(self, *args: Any, **options: Any) -> Any:
        try:
            code = super().main(*args, **{**options, "standalone_mode": False})
        except Exception as e:
            told = getattr(e, "format_message", None)  # of the parser, whose classes depend on typer's version
            if told is None:
                raise
            text, context = told(), getattr(e, "ctx", None)
            if not text.startswith("Usage:"):  # the help, where a command is missing
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

#: The option of commands whose result a script would read.
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


#: Whether this process is the command: then it may have children of its own.
in_own_process = False


def main() -> None:
    """The console script."""
    global in_own_process
    in_own_process = True
    app(prog_name="distgrad")


def say(text: str) -> None:
    """Something said on the way."""
    typer.echo(text, err=True)


def fail(text: str, code: int = FAILED) -> NoReturn:
    """End with an error of one line."""
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
