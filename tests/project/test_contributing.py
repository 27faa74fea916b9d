"""CONTRIBUTING.md is true of the tree: its files, make targets, layers, dependencies and names exist."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from distgrad.run import planner
from distgrad.scheduler.cluster import ENGINES

from ..run.test_options import OneMore

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LAYERS, SCHEDULER = [each["layers"] for each in PROJECT["tool"]["importlinter"]["contracts"] if "layers" in each]


def coded(pattern: str) -> list[str]:
    """What is between backticks, or typed in a command, and matches."""
    return sorted({found for text in re.findall(r"`([^`]+)`", TEXT) for found in re.findall(pattern, text)})


@pytest.mark.parametrize("path", coded(r"^[\w.-]+(?:/[\w.<>-]+)+/?$|^[\w-]+\.(?:md|toml|py)$"))
def test_a_path_exists(path: str) -> None:
    if path.startswith(("build/", "distgrad/workers/")) or path.endswith("/x.py"):
        return  # what `make` builds
    pattern = re.sub(r"<\w+>", "*", path.strip("/"))
    assert [*ROOT.glob(pattern)] or ("/" not in path and [*(ROOT / "distgrad").rglob(pattern)]), path


def test_every_make_target_is_described_and_no_other() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M)) - {"help"}
    named = set(coded(r"^make ([a-z-]+)")) | {"demo"}
    assert named <= targets
    assert targets - named == {"docs-api", "docs-cli", "docs-numpy"}  # parts of docs-pages


def layer_of(name: str, layers: list[str]) -> int:
    for i, layer in enumerate(layers):
        if name in re.split(r"[\s:\\]+", layer):
            return i
    raise AssertionError(f"no contract has {name}")


def test_the_layers_are_in_the_order_of_the_contracts() -> None:
    picture = TEXT.partition("not even inside a function:\n")[2].partition("\n`pyproject.toml` has")[0]
    tops = re.findall(r"^    (?:distgrad/)?(\w+)/ ", picture, re.M)
    assert tops == ["cli", "run", "workers", "scheduler", "store", "autodiff", "tracing", "ops"]
    assert [layer_of(name, LAYERS) for name in tops] == sorted(layer_of(name, LAYERS) for name in tops)
    inner = re.findall(r"^        (\w+)(?:/|\.py) ", picture.partition("scheduler/ ")[2], re.M)
    assert inner == ["partition", "show", "plan", "passes", "program"]
    assert [layer_of(name, SCHEDULER) for name in inner] == sorted(layer_of(name, SCHEDULER) for name in inner)
    for folder in re.findall(r"(\w+)/(?= )", picture.partition("workers/ ")[2].partition("scheduler/ ")[0]):
        assert (ROOT / "workers" / folder).is_dir()


def names(requirements: list[str]) -> set[str]:
    return {re.match(r"[\w-]+", each)[0] for each in requirements}  # type: ignore[index]


def test_the_table_of_dependencies_is_that_of_the_project() -> None:
    table = TEXT.partition("| dependency | where | why |\n|---|---|---|\n")[2].partition("\n\n")[0]
    described: dict[str, set[str]] = {}
    for line in table.splitlines():
        which, where, _ = [cell.strip() for cell in line.strip("|").split("|", 2)]
        for extra in re.findall(r"`([\w-]+)`", where) or ["core"]:
            described.setdefault(extra, set()).update(names(which.split(", ")))
    extras = PROJECT["project"]["optional-dependencies"]
    assert described.pop("core") == names(PROJECT["project"]["dependencies"])
    assert described.keys() == extras.keys()
    for extra, found in described.items():
        expected = names(extras[extra]) - ({"scipy"} if extra == "test" else set())  # which the core has
        assert expected <= found, extra
        assert found <= expected or extra.startswith("step-"), extra


def test_names_that_the_steps_mention_are_where_they_say() -> None:
    for name, file in {
        "OpDef": "distgrad/registry.py", "PASSES": "scheduler/passes/pipeline.py",
        "SessionOptions": "distgrad/run/options.py", "Options": "scheduler/plan.py",
        "Settings": "workers/local/engine.py", "RaySettings": "workers/on_ray/settings.py",
        "Compiled": "workers/body.py", "bodies": "scheduler/bodies.py", "ENGINES": "scheduler/cluster.py",
        "Planner": "distgrad/run/planner.py", "short_names": "tests/scheduler/test_pipeline.py",
        "this_process": "tests/step_graphs.py", "ray_cluster": "tests/step_graphs.py",
    }.items():  # fmt: skip
        assert name in TEXT
        assert file in TEXT
        assert re.search(rf"^(?:class|def)? ?{name}\b", (ROOT / file).read_text(), re.M), name
    assert set(ENGINES) == planner._PLANNERS.keys()


@dataclass(frozen=True)
class MoreSettings:
    tokens: int = 0


def test_settings_get_the_option_of_the_same_name() -> None:
    assert planner._made(MoreSettings, OneMore("ray", tokens=4)) == MoreSettings(4)  # type: ignore[type-var]
    assert planner._made(MoreSettings, OneMore("ray")) == MoreSettings()  # type: ignore[type-var]
