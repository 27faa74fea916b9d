"""The site of docs/ builds without warnings, and its generated pages are up to date. Its code runs in test_pages.py."""

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

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def _load(name: str) -> Any:
    """Import a script of docs/, which is not a package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_api, make_cli = _load("make_api"), _load("make_cli")

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


# -- the reference -----------------------------------------------------------------------------------------------


def public() -> list[str]:
    return [name for name in dg.__all__ if not isinstance(getattr(dg, name), ModuleType)]


def sections(module: str) -> Iterator[str]:
    """The public names of a module that the reference lists."""
    for page in make_api.PAGES.values():
        for section in page.sections:
            if section.module == module:
                yield from section.names


def test_every_public_name_is_in_the_reference_once() -> None:
    assert sorted(sections("")) == sorted(public())


def test_every_public_module_is_in_the_reference() -> None:
    modules = {name for name in dg.__all__ if isinstance(getattr(dg, name), ModuleType)} - {"math"}
    assert modules <= {section.module for page in make_api.PAGES.values() for section in page.sections}


@pytest.mark.parametrize("page", ["index.md", *(f"{name}.md" for name in make_api.PAGES)])
def test_a_page_of_the_reference_is_up_to_date(page: str) -> None:
    assert (DOCS / "api" / page).read_text() == make_api.pages()[page], "run `make docs-api`, and commit docs/api/"


def test_the_page_about_commands_is_up_to_date() -> None:
    assert (DOCS / "cli.md").read_text() == make_cli.page(), "run `make docs-cli`, and commit docs/cli.md"


def test_the_page_about_commands_has_every_option() -> None:
    text = make_cli.page()
    for name, command in make_cli.commands().items():
        assert f"# distgrad {name}\n" in text
        assert [option for p in command.params for option in p.opts if option[:2] == "--" and option not in text] == []


def test_examples_are_shown_as_code() -> None:
    assert make_api.markdown("It is.\n\n>>> f(1)\n2\n\nMore.") == "It is.\n\n```pycon\n>>> f(1)\n2\n```\n\nMore."


def test_sections_of_docstrings_are_shown_as_lists() -> None:
    text = "It is.\n\nArgs:\n    x, y: numbers\n        to add.\n    z: another.\n\nMore."
    shown = "It is.\n\n**Parameters**\n\n- `x`, `y`: numbers to add.\n- `z`: another.\n\nMore."
    assert make_api.markdown(text) == shown


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
