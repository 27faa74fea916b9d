"""Writes docs/cli.md, the reference of the commands, from their help texts: `make docs-cli`."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import typer  # noqa: E402

from distgrad.cli import app  # noqa: E402

HEAD = """\
<!-- Written by docs/make_cli.py from the help texts of the commands: change those, then run `make docs-cli`. -->

# Commands

`distgrad` and `python -m distgrad` are the same program; `distgrad COMMAND --help` prints what this page says. Results
go to standard output, messages to standard error. Commands with `--json` print their result as JSON, for scripts.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | failure: a cluster does not answer, a plan does not fit. For a script or a job: its own exit code |
| 2 | wrong usage: a missing file, an invalid option. One line says what is wrong |

| environment variable | meaning |
|---|---|
| `NO_COLOR` | turns colour off. It is also off when output is not a terminal |
| `DISTGRAD_PROGRESS` | progress: `auto`, `live`, `log` or `off`; see [Progress](howto/report.md#progress) |
| `DISTGRAD_CACHE` | the folder in which `distgrad calibrate` stores its results |

```console
$ distgrad --version
```
"""

#: Commands in the order of the page; others follow.
ORDER = ["demo", "run", "submit", "jobs", "plan", "report", "doctor", "calibrate"]


def commands() -> dict[str, Any]:
    """All commands by what is typed after `distgrad`, in the order of the page."""

    def below(command: Any, path: str) -> Iterator[tuple[str, Any]]:
        for name, each in getattr(command, "commands", {}).items():
            yield (full := f"{path} {name}".strip()), each
            yield from below(each, full)

    found = dict(below(typer.main.get_command(app), ""))
    place = {name: i for i, name in enumerate(ORDER)}
    return dict(sorted(found.items(), key=lambda item: place.get(item[0].split()[0], len(ORDER))))


def section(path: str, command: Any) -> Iterable[str]:
    yield f"\n{'#' * (1 + len(path.split()))} distgrad {path}\n"
    yield f"```\n{usage(path, command)}\n```\n"
    yield described(command.help or "")
    rows = [row(p) for p in command.params if not getattr(p, "hidden", False)]
    if rows:
        yield "\n| argument or option | meaning |"
        yield "|---|---|"
        yield from rows


def usage(path: str, command: Any) -> str:
    words = [f"distgrad {path}"]
    if hasattr(command, "commands"):
        return f"distgrad {path} COMMAND ..."
    if any(p.param_type_name == "option" for p in command.params):
        words.append("[OPTIONS]")
    for p in command.params:
        if p.param_type_name == "argument":
            name = p.metavar or p.opts[0].upper()
            words.append((name if p.required else f"[{name}]") + ("..." if p.nargs == -1 else ""))
    return " ".join(words)


def described(text: str) -> str:
    """A help text as Markdown: options and commands as code, examples as blocks."""
    paragraphs = inspect.cleandoc(text).replace("\b\n", "").split("\n\n")
    return "\n\n".join(p if p.startswith("    ") else coded(p) for p in paragraphs)


def coded(text: str) -> str:
    """Options that are not between backticks become code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"(?<![\w-])(--[a-z][a-z-]*)", r"`\1`", p) for p in parts)


def row(p: Any) -> str:
    if p.param_type_name == "argument":
        return f"| `{p.metavar or p.opts[0].upper()}` | {cell(p.help)} |"
    value = "" if p.is_flag else f" {p.metavar or 'VALUE'}".replace("|", "\\|")
    names = ", ".join(f"`{name}{value}`" for name in (*p.opts, *p.secondary_opts))
    return f"| {names} | {cell(p.help)}{default(p)} |"


def cell(text: str | None) -> str:
    return coded(text or "").replace("|", "\\|").replace("\n", " ")


def default(p: Any) -> str:
    if p.is_flag:
        return f" The default is `{(p.opts if p.default else p.secondary_opts)[0]}`." if p.secondary_opts else ""
    return f" The default is `{p.default}`." if p.default not in (None, (), []) else ""


def page() -> str:
    return "\n".join([HEAD.rstrip("\n"), *(line for name, c in commands().items() for line in section(name, c))]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", help="print the page instead of writing docs/cli.md")
    if parser.parse_args().print:
        sys.stdout.write(page())
    else:
        (ROOT / "docs" / "cli.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
