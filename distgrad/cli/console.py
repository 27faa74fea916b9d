"""What all commands agree on. Results go to the standard output, everything said on the way to the error output.

Exit codes: 0 done; 1 failed (a cluster that does not answer, a job or script that failed: then its own code); 2 wrong
use (a file that is not there or not what it should be, an option that cannot be). Errors that a user can mend are told
in one line; any other is a plain traceback, as from every Python program.
"""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer

from distgrad import __version__

FAILED, MISUSED = 1, 2

app = typer.Typer(
    name="distgrad", add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
)

#: The option of commands whose result a script would read.
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def main() -> None:
    """The console script."""
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
