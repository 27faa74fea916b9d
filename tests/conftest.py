"""What holds for all tests: where they run, in which order, what is told at the end; and fixtures of several files."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any

import pytest

from . import isolation, order, skips

SESSION = isolation.redirect()  # before the next line imports anything that reads the environment
if isolation.RATES in os.environ:
    isolation.keep_rates(float(os.environ[isolation.RATES]))
CACHE = isolation.Cache(SESSION)

import distgrad as dg  # noqa: E402
from distgrad.scheduler.passes.pipeline import Pass  # noqa: E402
from distgrad.scheduler.program import Program, check_program  # noqa: E402


def pytest_addoption(parser: pytest.Parser) -> None:
    order.add_option(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.option.color == "auto" and SESSION.colour:
        config.option.color = SESSION.colour


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (seed := config.getoption("--shuffle")) is not None:
        items[:] = order.shuffled(items, seed)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    yield
    if kept := CACHE.restore():
        pytest.fail(f"kept rates in the cache folder of all tests, {kept}: give it a DISTGRAD_CACHE of its own", False)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """The session fails when something of the user's was touched. (Processes of pytest-xdist are over by now.)"""
    if SESSION.new_of_the_user() and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any) -> Iterator[None]:
    """The last lines before the counts."""
    yield
    skips.tell(terminalreporter)
    if found := SESSION.new_of_the_user():
        terminalreporter.section("files of the user", red=True, bold=True)
        terminalreporter.line("New or changed since the tests began. Tests must not write there:")
        for path in found:
            terminalreporter.line(f"  {path}", red=True)


#: Tests that share a cluster, of their process or started by it.
SHARING = {"tests/on_ray/": "ray", "tests/project/test_pages.py": "ray", "tests/faults/": "faults"}
#: Files whose tests share what takes seconds to make: a cluster of their own, an installed wheel, a site, a browser.
APART = (
    "tests/on_ray/jobs/test_jobs.py",
    "tests/on_ray/jobs/test_local_cluster.py",
    "tests/report/test_browser.py",
    "tests/cli/test_cli_demo.py",
    "tests/project/test_docs.py",
    "tests/project/test_examples.py",
    "tests/project/test_wheel.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """All that shares something large goes to one process; the rest goes wherever there is room."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(APART):
                return nodeid.partition("::")[0]
            return next((cluster for name, cluster in SHARING.items() if nodeid.startswith(name)), nodeid)

    return Scheduling(config, log)


@pytest.fixture(scope="session", autouse=True)
def _every_pass_makes_a_sound_program() -> Iterator[None]:
    """A session checks a program after all passes; tests check it after each, to know which one broke it."""
    run = Pass.__call__

    @functools.wraps(run)
    def checked(*args: Any) -> Program:
        return check_program(run(*args))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pass, "__call__", checked)
        yield


@pytest.fixture
def graph() -> Iterator[dg.Graph]:
    """A graph that is being built during the test, and checked after it."""
    with dg.Graph() as g:
        yield g
    dg.check_graph(g)


@pytest.fixture(scope="session")
def ray_session() -> Iterator[dg.Session]:
    """A session on a Ray of two workers on this machine, for all tests of the process."""
    session = dg.Session("ray", workers=2, object_store_memory="400 MB", timeout=120)
    yield session
    session.close()
