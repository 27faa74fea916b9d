"""The wheel works outside of the checkout, in an environment with what it says it depends on and nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement  # pytest brings it
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "distgrad", "scheduler", "workers")


def call(command: Sequence[str | Path], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command with nothing of this checkout in its environment."""
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "RAY_ADDRESS", "VIRTUAL_ENV")}
    env |= {"RAY_TMPDIR": str(cwd), "DISTGRAD_CACHE": str(cwd / "cache"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, check=False, timeout=400)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: building leaves files beside the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "copy").mkdir()
    for name in SOURCES:
        source, target = ROOT / name, folder / "copy" / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done = call([*pip, "--wheel-dir", folder, folder / "copy"], folder)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made


def needed(requirements: Sequence[str]) -> dict[str, Distribution]:
    """The distributions of this environment that requirements ask for, and those that they ask for, by name."""
    found: dict[str, Distribution] = {}
    asked, seen = [Requirement(text) for text in requirements], set[tuple[str, str]]()
    for requirement in asked:
        for extra in ("", *requirement.extras):
            if (key := (canonicalize_name(requirement.name), extra)) not in seen:
                seen.add(key)
                found[key[0]] = distribution(requirement.name)
                more = [Requirement(text) for text in found[key[0]].requires or ()]
                asked += [each for each in more if each.marker is None or each.marker.evaluate({"extra": extra})]
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with the wheel and what it depends on, and nothing else.

    What it depends on is linked from this environment: to install half a gigabyte again takes a minute, and an index.
    """
    folder = tmp_path_factory.mktemp("environment")
    python = folder / "venv" / "bin" / "python"
    done = call([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], folder)
    assert done.returncode == 0, done.stderr
    pip = [sys.executable, "-m", "pip", "--python", python]
    done = call([*pip, "install", "--quiet", "--no-compile", "--no-deps", wheel], folder)
    assert done.returncode == 0, done.stderr
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (own,) = distributions(name="distgrad", path=[str(packages)])
    core = [text for text in own.requires or () if "extra ==" not in text]
    for each in needed(core).values():
        for top in {file.parts[0] for file in each.files or ()} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(each.locate_file(top))))
    done = call([*pip, "check"], folder)  # versions, too
    assert done.returncode == 0, done.stdout
    return python.parent


def test_the_wheel_has_all_that_is_in_the_three_folders(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    wanted = set()
    for folder in ("distgrad", "scheduler", "workers"):
        prefix = folder if folder == "distgrad" else f"distgrad/{folder}"
        files = [file for file in (ROOT / folder).rglob("*") if file.is_file() and "__pycache__" not in file.parts]
        wanted |= {f"{prefix}/{file.relative_to(ROOT / folder)}" for file in files}
    assert wanted - packed == set()


def test_the_demo_runs_where_the_wheel_is_installed(installed: Path, tmp_path: Path) -> None:
    done = call([installed / "distgrad", "demo", "--local", "--steps", "3"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout
    page = (tmp_path / "distgrad-demo" / "report.html").read_text(encoding="utf-8")
    assert len(page) > 100_000  # with what draws it
    assert not re.search(r"""(src|href)=["'](https?:)?//""", page)  # all of it
    trace = json.loads((tmp_path / "distgrad-demo" / "trace.json").read_text(encoding="utf-8"))
    assert trace["distgrad"]["plans"][0]["measured"] is not None


def test_the_doctor_finds_no_problem_where_the_wheel_is_installed(installed: Path, tmp_path: Path) -> None:
    done = call([installed / "distgrad", "doctor", "--json"], tmp_path)
    found = {finding["what"]: finding for finding in json.loads(done.stdout)}
    assert (done.returncode, [each for each in found.values() if each["state"] == "problem"]) == (0, [])
    assert {"numpy", "scipy", "ray", "rich", "typer"} <= found.keys()
    assert str(installed) in found["python"]["found"]
