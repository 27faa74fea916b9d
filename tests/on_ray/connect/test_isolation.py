"""Ray's files are in the folder of the tests, not in that of the user's own clusters."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import ray

import distgrad as dg

from ... import isolation

pytestmark = pytest.mark.ray


def test_rays_files_lie_in_the_folder_of_the_tests_with_room_for_the_names_of_sockets(ray_session: dg.Session) -> None:
    folder = Path(os.environ[isolation.FOLDER])
    node = ray._private.worker._global_node
    assert Path(node.get_session_dir_path()).is_relative_to(folder)
    assert Path.home().is_relative_to(folder)
    assert len(node.plasma_store_socket_name) + len("/ray-12345678") + len(".1") < 107
