"""Command-line options that are session options: types, help and checks come from the fields of `SessionOptions`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import typer

from distgrad.run.options import OPTIONS, described

F = TypeVar("F", bound=Callable[..., None])

#: Session options of `distgrad run`, and those that `distgrad submit` passes to it; a job always joins its own cluster.
OF_RUN = [name for name, each in OPTIONS.items() if each.metadata["cli"]]
OF_SUBMIT = [name for name in OF_RUN if OPTIONS[name].metadata["engine"] != "local" and name != "address"]


def takes(*names: str) -> Callable[[F], F]:
    """Decorator: add these options to a command, which gets them as `**options`."""

    def decorate(command: F) -> F:
        *own, _ = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [*own, *map(_parameter, names)]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return decorate


def _parameter(name: str) -> inspect.Parameter:
    kind, default = OPTIONS[name].metadata["kind"], OPTIONS[name].default
    least = 1 if kind.type is int else None
    option = typer.Option(_flag(name), metavar=kind.metavar, min=least, help=help_of(name))
    annotation: Any = Annotated[kind.type | type(default), option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def help_of(name: str) -> str:
    """The first sentence of an option's text.

    >>> help_of("gpus"), help_of("timeout")
    ('(Ray) number of GPUs to start Ray with.', 'Seconds after which a run is stopped with TimeoutError.')
    """
    sentence = described(name).partition(". ")[0].removesuffix(".")
    return f"{sentence[:1].upper()}{sentence[1:]}."


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def are_of_ray(options: Mapping[str, Any]) -> bool:
    """Whether any of the options given is for Ray only."""
    return any(OPTIONS[name].metadata["engine"] == "ray" for name in _given(options))


def words(options: Mapping[str, Any]) -> list[str]:
    """The options as command-line arguments.

    >>> words({"check_numerics": True, "bits": "any", "workers": None})
    ['--check-numerics', '--bits=any']
    """
    return [_flag(name) if value is True else f"{_flag(name)}={value}" for name, value in _given(options).items()]


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value != OPTIONS[name].default}
