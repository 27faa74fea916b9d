"""The site of docs/: it builds without a warning, and has all that it promises. Its code runs in test_pages.py."""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import distgrad as dg

from .test_package import modules

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def _load(name: str) -> Any:
    """A script of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_pages = _load("make_pages")

# -- the site ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_builds_without_a_warning(site: Path) -> None:
    assert (site / "index.html").exists()


def test_no_page_loads_anything_from_the_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        loads = re.findall(r'<(?:script|img|iframe|source)\b[^>]*\bsrc="([^"]*)"', text)
        loads += re.findall(r'<link\b[^>]*\bhref="([^"]*)"', text)
        assert [url for url in loads if "//" in url] == [], page


def test_every_public_name_is_in_the_built_reference_with_its_example(site: Path) -> None:
    text = "".join(page.read_text() for page in site.glob("api/*.html"))
    assert [name for name in public() if f'id="dg.{name}"' not in text] == []


def test_the_help_of_every_command_is_in_the_built_page(site: Path) -> None:
    text = (site / "cli.html").read_text()
    assert text.count("Usage: distgrad") == len(make_pages.commands())
    assert "{help:" not in text


# -- the reference -----------------------------------------------------------------------------------------------


def public() -> list[str]:
    return [name for name in dg.__all__ if not isinstance(getattr(dg, name), ModuleType)]


def listed(page: Path) -> list[str]:
    """The names of distgrad that a page of the reference lists."""
    found = re.findall(r"members: \[(.*?)\]", page.read_text(), re.S)
    return [name.strip() for names in found for name in names.split(",")]


def test_every_public_name_is_listed_once() -> None:
    names = [name for page in sorted(DOCS.glob("api/*.md")) for name in listed(page)]
    assert sorted(names) == sorted(public())


def test_every_public_module_has_its_place_in_the_reference() -> None:
    text = "".join(page.read_text() for page in DOCS.glob("api/*.md"))
    modules = {name for name in dg.__all__ if isinstance(getattr(dg, name), ModuleType)} - {"math"}
    assert modules <= make_pages.MODULES.keys()
    assert [name for name in make_pages.MODULES if f"::: dg.{name}\n" not in text] == []


def test_the_page_about_commands_has_all_of_them_and_no_others() -> None:
    named = re.findall(r"^\{help: ?(.*)\}$", (DOCS / "cli.md").read_text(), re.M)
    assert sorted(named) == sorted(make_pages.commands())


def test_examples_are_shown_as_code() -> None:
    assert make_pages.fenced("It is.\n\n>>> f(1)\n2\n\nMore.") == "It is.\n\n\n```pycon\n>>> f(1)\n2\n```\n\nMore."


# -- docstrings --------------------------------------------------------------------------------------------------

FOLDERS = {"distgrad": "distgrad", "scheduler": "distgrad.scheduler", "workers": "distgrad.workers"}


def sources() -> Iterator[tuple[str, Path]]:
    """All modules of the three folders."""
    for folder, package in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            yield ".".join([package, *parts]).removesuffix(".__init__"), path


def texts(path: Path) -> Iterator[str]:
    """The texts of a file that have examples: docstrings, and those that builders make docstrings of."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and ">>> " in node.value:
            yield node.value


WITH_EXAMPLES = [name for name, path in sources() if any(texts(path))]


@pytest.mark.parametrize("name", sorted({*WITH_EXAMPLES} - {*modules()}))
def test_examples_run_in_modules_that_test_package_does_not_walk(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_no_example_is_left_out() -> None:
    """Each is found in a module, or is that of a public function that a builder made, which test_package.py runs."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = {t.docstring for name in WITH_EXAMPLES for t in finder.find(importlib.import_module(name))}
    spaces = [dg, dg.nn, dg.linalg, dg.random]
    found |= {getattr(space, name).__doc__ or "" for space in spaces for name in space.__all__}
    clean = [inspect.cleandoc(str(text)) for text in found]
    left = [
        (path.name, text)
        for _, path in sources()
        for text in texts(path)
        if not any(_examples(text) in each for each in clean)
    ]
    assert left == []


def _examples(text: str) -> str:
    """From the first prompt on; a builder may put words before it."""
    return inspect.cleandoc(text[text.index(">>> ") :])
