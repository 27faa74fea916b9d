"""One field is all that an option needs: whatever else knows of options reads the fields."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import numpy as np
import pytest
import typer

import distgrad as dg
from distgrad.cli import app
from distgrad.cli.session_options import OF_RUN, OF_SUBMIT, help_of
from distgrad.run.options import OPTIONS, Kind, SessionOptions, option, takes

JUNK = [object(), -1, [3], np.ones(2), b"bytes", {}]


def test_the_fields_are_the_signature_of_a_session() -> None:
    parameters = inspect.signature(dg.Session).parameters
    assert [(p.name, p.default, p.annotation) for p in parameters.values()] == [
        (each.name, each.default, each.type) for each in OPTIONS.values()
    ]
    assert [p.name for p in parameters.values() if p.kind is not p.KEYWORD_ONLY] == ["engine"]


@pytest.mark.parametrize("name", OPTIONS)
def test_the_documentation_of_a_session_has_the_text_of(name: str) -> None:
    text = " ".join((dg.Session.__doc__ or "").split())
    of = {None: "", "local": "(local) ", "ray": "(Ray) "}[OPTIONS[name].metadata["engine"]]
    assert f" {name}: {of}{OPTIONS[name].metadata['text']}" in text


@pytest.mark.parametrize("name", OPTIONS)
def test_junk_is_refused_by_an_error_that_names(name: str) -> None:
    engine = {} if name == "engine" else {"engine": OPTIONS[name].metadata["engine"] or "local"}
    for junk in JUNK:
        with pytest.raises((TypeError, ValueError), match=f"^Session: .*{name}"):
            SessionOptions(**engine, **{name: junk})


@pytest.mark.parametrize("name", OPTIONS)
def test_the_default_is_allowed_in_both_engines(name: str) -> None:
    for engine in ("local", "ray"):
        options = {"engine": engine, name: OPTIONS[name].default} if name != "engine" else {name: engine}
        assert getattr(SessionOptions(**options), name) == options[name]


def test_options_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        SessionOptions().threads = 3  # type: ignore[misc]


def even(name: str, value: Any) -> int:
    if value % 2:
        raise ValueError(f"{name} is an even number, got {value}")
    return int(value)


@dataclass(frozen=True, kw_only=True)
class OneMore(SessionOptions):
    tokens: int | None = option(None, Kind(even, int), "how many there are.", engine="ray")


def test_one_field_more_is_one_checked_option_more() -> None:
    class Told:
        @takes(OneMore)
        def __init__(self, options: OneMore):
            self.options = options

    assert list(inspect.signature(Told).parameters) == [*OPTIONS, "tokens"]
    assert Told("ray", tokens=4).options.tokens == 4
    for options, text in (
        ({"engine": "ray", "tokens": 3}, "Session: tokens is an even number, got 3"),
        ({"tokens": 4}, r"Session: tokens is an option of Session\('ray'\), not of 'local'"),
    ):
        with pytest.raises(ValueError, match=text):
            Told(**options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="there is no option 'token'; did you mean 'tokens'"):
        Told(token=3)  # type: ignore[call-arg]


# -- the command line --------------------------------------------------------------------------------------------

#: What commands have of a session's options; of others with such a name, the address of a dashboard is the only one.
COMMANDS = {"run": OF_RUN, "submit": OF_SUBMIT, "plan": ["cluster", "workers", "cpus_per_task", "memory"]}


@pytest.mark.parametrize("command", COMMANDS)
def test_options_of_commands_have_name_default_type_and_help_of_the_field(command: str) -> None:
    group: Any = typer.main.get_command(app)
    found = {each.name: each for each in group.commands[command].params if each.name in OPTIONS}
    if command == "submit":
        assert found.pop("address").metavar == "URL"
    assert sorted(found) == sorted(COMMANDS[command])
    kinds = {name: OPTIONS[name].metadata["kind"] for name in found}
    for name, each in found.items():
        assert each.opts == ["--" + name.replace("_", "-")]
        assert (each.help, each.metavar, each.default) == (help_of(name), kinds[name].metavar, OPTIONS[name].default)
    words = [each.opts[0] if kinds[name].type is bool else f"{each.opts[0]}=2" for name, each in found.items()]
    read = group.commands[command].make_context(command, [*words, "target"]).params
    assert all(isinstance(read[name], kind.type) for name, kind in kinds.items())
