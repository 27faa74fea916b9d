"""The list of passes: complete, in a valid order, equal to the docs, and run once per program."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.run import planner
from distgrad.scheduler import passes
from distgrad.scheduler.cost.memory import given_bytes
from distgrad.scheduler.digest import is_plain, program_digest
from distgrad.scheduler.outlined_calls import all_steps
from distgrad.scheduler.partition.simulate import loads_of
from distgrad.scheduler.passes.pipeline import PASSES, Context, Pass, improve
from distgrad.scheduler.program import CALL, LONG_BODY, MANY_CALLS, Program, check_program, lower

from ..counting import calls
from ..step_graphs import ray_cluster, this_process

DESIGN = Path(__file__).parent.parent.parent / "docs" / "design.md"
CONTEXT = Context(planner.evaluate)
#: Public functions from programs to programs that are not passes.
HELPERS = {improve}


def from_programs_to_programs() -> Iterator[Callable[..., Program]]:
    for found in pkgutil.iter_modules(passes.__path__, f"{passes.__name__}."):
        module = importlib.import_module(found.name)
        for name, f in inspect.getmembers(module, inspect.isfunction):
            if f.__module__ == found.name and not name.startswith("_"):
                first, *_ = [*inspect.signature(f).parameters.values(), None]
                if first is not None and (first.annotation, f.__annotations__["return"]) == ("Program", "Program"):
                    yield f


def test_every_function_from_programs_to_programs_is_in_the_list() -> None:
    assert {each.function for each in PASSES} | HELPERS == set(from_programs_to_programs())


def test_every_pass_comes_after_what_it_needs() -> None:
    names = [each.name for each in PASSES]
    assert len(set(names)) == len(names)
    for i, each in enumerate(PASSES):
        assert set(each.needs) <= set(names[:i]), each.name


def test_every_pass_takes_what_the_context_has() -> None:
    assert {name for each in PASSES for name in each.takes} <= {field.name for field in fields(Context)}


def row(each: Pass) -> str:
    where = f"when {each.when}" if each.when else "always"
    needs = ", ".join([f"`{name}`" for name in each.needs])
    return f"| `{each.name}` | {each.does} | {needs} | {each.keeps} | {where} |"


def test_the_docs_have_the_list() -> None:
    lines = DESIGN.read_text().partition("| pass | what it does |")[2].partition("\n\n")[0].splitlines()
    rows = [row(each) for each in PASSES]
    assert lines[2:] == rows, "\n".join(["the rows of docs/design.md should be:", *rows])


# -- a pass more, as CONTRIBUTING.md says ------------------------------------------------------------------------------


def short_names(program: Program, fan_in: int) -> Program:
    """Call each step by its number."""
    return replace(program, steps=tuple([replace(step, name=f"{i}/{fan_in}") for i, step in enumerate(program.steps)]))


SHORT_NAMES = Pass(short_names, "Calls each step by its number.", "every bit", needs=("fuse",), takes=("fan_in",))


def lowered() -> Program:
    with dg.Graph():
        x = dg.placeholder((3, 3))
        return lower([dg.sin(x @ x)], [x])


def test_a_pass_that_is_added_to_the_list_runs() -> None:
    made = improve(lowered(), CONTEXT, [*PASSES, SHORT_NAMES])
    assert [step.name for step in made.steps] == ["0/4", "1/4"]
    assert improve(lowered(), CONTEXT) == replace(
        made, steps=tuple([replace(a, name=b.name) for a, b in zip(made.steps, lowered().steps, strict=True)])
    )


def test_partitioning_calls_its_own_passes() -> None:
    other = replace(SHORT_NAMES, when="there are many")
    assert improve(lowered(), CONTEXT, [*PASSES, other]) == improve(lowered(), CONTEXT)


def test_a_pass_that_breaks_a_program_is_caught() -> None:
    def without_steps(program: Program) -> Program:
        return replace(program, steps=())

    with pytest.raises(ValueError, match="is fetched or written but nothing makes it"):
        improve(lowered(), CONTEXT, [Pass(without_steps, "Drops all steps.", "nothing")])


# -- each thing once ---------------------------------------------------------------------------------------------------


def block(w: Any, x: Any) -> Any:
    return dg.mean(dg.nn.layer_norm(dg.nn.gelu(dg.nn.softmax(x @ w) @ w) + x) ** 2)


def deep(w: Any, x: Any) -> Any:
    for _ in range(LONG_BODY):
        x = dg.tanh(x @ w)
    return dg.mean(x * x)


W, X = np.ones((64, 64), np.float32), np.ones((64 * MANY_CALLS, 64), np.float32)
MODELS = {
    "block": lambda: dg.value_and_grad(block),
    "calls": lambda: dg.data_parallel(dg.value_and_grad(deep), shards=MANY_CALLS),
}


@pytest.mark.parametrize("cluster", [this_process(), ray_cluster(2)], ids=["local", "ray"])
@pytest.mark.parametrize("model", MODELS)
def test_planning_computes_each_thing_once(model: str, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for the program, and once for each body that it calls, however often."""
    monkeypatch.setattr(Pass, "__call__", Pass.__call__.__wrapped__)  # type: ignore[attr-defined]
    monkeypatch.setattr(planner, "_plans", OrderedDict())
    f, plans = MODELS[model](), []
    run = [each.function for each in PASSES if not each.when]
    counted = [*run, check_program, loads_of, given_bytes, program_digest, is_plain]
    with dg.Session(cluster=cluster, cpus_per_task=1):
        found = calls(lambda: plans.append(f.plan(W, X)), counted)
    steps = list(all_steps(plans[0].program.steps))
    programs = 1 + len({step.attrs["inner"] for step in steps if step.type == CALL})
    assert programs == 1 + (model == "calls")
    assert found == {
        **dict.fromkeys(run, programs),
        check_program: 2 * programs,  # after lowering, and after the passes
        loads_of: 1,
        given_bytes: 1,
        program_digest: programs,
        is_plain: programs,
    }
