"""The examples on Ray: they come to what they come to in this process, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

import distgrad as dg

from ..examples import SMALL, run

pytestmark = pytest.mark.ray


@pytest.mark.parametrize("name", SMALL)
def test_an_example_has_the_same_bits_on_ray(session: dg.Session, name: str) -> None:
    found, _ = run(name)
    with dg.Session(cpus_per_task=1):
        expected, _ = run(name)
    np.testing.assert_array_equal(found, expected)
