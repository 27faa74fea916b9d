"""A full object store with a full disk: a call that needs more fails as a whole, and says what to do."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .. import full

pytestmark = pytest.mark.ray


def filled(folder: str | None) -> Any:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(full.fill, folder).result()


@pytest.fixture(scope="module", params=["no disk", "small disk"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if request.param == "no disk":
        yield filled(None)
        return
    folder: Path = tmp_path_factory.mktemp("spill")
    if not full.mounted(str(folder)):
        pytest.skip("a disk of 20 MB has to be mounted, which this user may not do")
    try:
        yield filled(str(folder))
    finally:
        full.unmount(str(folder))


def test_nothing_is_committed_that_cannot_be_read(found: Any) -> None:
    assert found.intact == [True] * 5


def test_what_a_task_makes_and_cannot_store_is_named_with_task_op_line_and_store(found: Any) -> None:
    assert found.written.kind == "StoreFull"
    assert re.search(r"task \d+ of \d+, .*'Mul_\d+' \(at full.py:\d+\)", found.written.text)
    assert re.search(r"OutOfDiskError|ObjectStoreFullError", found.written.text)
    assert "object store (80.0 MiB on each node) and the disk that it spills to have no room" in found.written.text
    assert "object_store_memory=" in found.written.text
    assert "Variables are unchanged" in found.written.text


def test_what_is_only_passed_on_is_named_by_who_made_it(found: Any) -> None:
    assert found.passed.kind == "StoreFull"
    assert re.search(r"task \d+ of \d+, .*'Mul_\d+' \(at full.py:\d+\)", found.passed.text)


def test_what_is_fetched_and_cannot_be_stored_is_named(found: Any) -> None:
    assert found.fetched.kind == "StoreFull"
    assert re.search(r"'Stack\w*' \(at full.py:\d+\)", found.fetched.text)


def test_what_a_call_is_given_and_cannot_be_stored_is_named(found: Any) -> None:
    assert found.given.kind == "StoreFull"
    assert "the feed 'y' (112.0 MiB) cannot be put into Ray's object store on this node" in found.given.text


def test_variables_that_cannot_be_stored_are_named(found: Any) -> None:
    assert found.held.kind == "StoreFull"
    assert "the variables 'small', 'v0', 'v1' and 22 more (192.0 MiB) cannot be put" in found.held.text


def test_the_session_goes_on(found: Any) -> None:
    assert found.after == 1.0


def test_it_is_told_in_time(found: Any) -> None:
    assert max(each.seconds for each in found[:5]) < 60 + 5
