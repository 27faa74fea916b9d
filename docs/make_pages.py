"""A hook of mkdocs: writes what the API reference is read from, and puts the help of commands into docs/cli.md.

mkdocstrings reads source code. But many of distgrad's functions are made by builders, so that their source has neither
their name nor their docstring; some have the name of their module; and users call them by `dg`. So the public names are
written to build/api/dg as plain definitions with the signatures and docstrings that they have in Python.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from typer.testing import CliRunner

import distgrad as dg
from distgrad.cli import app

API = Path(__file__).resolve().parent.parent / "build" / "api" / "dg"

#: The modules of public names that have a page of their own, and what is public in them.
MODULES: dict[str, tuple[ModuleType, Iterable[str]]] = {
    "nn": (dg.nn, dg.nn.__all__),
    "linalg": (dg.linalg, dg.linalg.__all__),
    "random": (dg.random, dg.random.__all__),
    "raw_ops": (dg.raw_ops, dg.raw_ops.__all__),
    "testing": (dg.testing, ["check_grads"]),
    "scheduler": (dg.scheduler, ["Cluster", "Worker", "Machine", "load_cluster", "local_cluster", "Plan", "Task"]),
    "progress": (dg.progress, ["track"]),
}


def on_startup(**_: Any) -> None:
    """Called by mkdocs before anything else: mkdocstrings looks once for what there is to read."""
    names = [name for name in dg.__all__ if not isinstance(getattr(dg, name), ModuleType)]
    write(API / "__init__.py", dg, names)
    for name, (module, public) in MODULES.items():
        write(API / f"{name}.py", module, public)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for each page: `{help: run}` becomes what `distgrad run --help` prints."""
    return re.sub(r"^\{help: ?(.*)\}$", lambda found: f"```text\n{help_of(found[1])}```", markdown, flags=re.M)


# -- the command line --------------------------------------------------------------------------------------------


def commands() -> dict[str, Any]:
    """All commands by what is typed after `distgrad`."""

    def below(command: Any, path: str) -> Iterator[tuple[str, Any]]:
        yield path, command
        for name, each in getattr(command, "commands", {}).items():
            yield from below(each, f"{path} {name}".strip())

    return dict(below(typer.main.get_command(app), ""))


def help_of(command: str) -> str:
    return CliRunner().invoke(app, [*command.split(), "--help"], prog_name="distgrad", terminal_width=80).output


# -- the API -----------------------------------------------------------------------------------------------------


class Plain(str):
    """An annotation or default that is shown as it is written."""

    def __repr__(self) -> str:
        return str(self)


def write(path: Path, module: ModuleType, names: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n\n\n".join(definition(name, getattr(module, name)) for name in names) + "\n"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def definition(name: str, it: Any) -> str:
    return class_of(name, it) if inspect.isclass(it) else function_of(name, it)


def function_of(name: str, it: Any, decorator: str = "") -> str:
    return f"{decorator}def {name}{signature(it)}:\n{indented(quoted(it.__doc__))}"


def class_of(name: str, it: type) -> str:
    bases = ", ".join(base.__name__ for base in it.__bases__ if base is not object)
    body = [
        quoted(inspect.getdoc(it)),
        *(member(key, value) for key, value in vars(it).items() if is_shown(key, value)),
    ]
    return f"class {name}({bases}):\n" + indented("\n\n".join(body))


def is_shown(key: str, value: Any) -> bool:
    if key == "__init__":
        return inspect.isfunction(value)
    kinds = (property, classmethod, staticmethod)
    return not key.startswith("_") and (inspect.isfunction(value) or isinstance(value, kinds)) and bool(value.__doc__)


def member(key: str, value: Any) -> str:
    if isinstance(value, property):
        return function_of(key, value.fget, "@property\n")
    if isinstance(value, classmethod | staticmethod):
        return function_of(key, value.__func__, f"@{type(value).__name__}\n")
    return function_of(key, value)


def signature(it: Any) -> str:
    """Parameters and result as they are written in the source, as far as that is Python again."""
    try:
        found = inspect.signature(it)
    except ValueError:
        return "(*args, **kwargs)"
    parameters = [
        p.replace(annotation=plain(p.annotation), default=plain_default(p.default)) for p in found.parameters.values()
    ]
    return str(found.replace(parameters=parameters, return_annotation=plain(found.return_annotation)))


def plain(annotation: Any) -> Any:
    return Plain(annotation) if isinstance(annotation, str) else annotation


def plain_default(default: Any) -> Any:
    """A default whose text is no Python, as that of an object, is shown by the name of its type."""
    if default is inspect.Parameter.empty:
        return default
    return Plain(repr(default) if "<" not in repr(default) else type(default).__name__)


def quoted(text: str | None) -> str:
    return f"r'''{fenced(inspect.cleandoc(text or ''))}\n'''"


def fenced(text: str) -> str:
    """Examples as blocks of code: a Markdown reader would take their prompts for quotations."""
    return re.sub(r"(?m)^( *)>>> (?:.+\n?)+", _fence, text)


def _fence(found: re.Match[str]) -> str:
    space, lines = found[1], found[0].rstrip("\n")
    return f"\n{space}```pycon\n{lines}\n{space}```\n"


def indented(text: str) -> str:
    return textwrap.indent(text, "    ")
