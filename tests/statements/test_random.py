"""Random programs, as `random_programs` writes them: hypothesis looks for a small one that differs."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.statements.random_programs import check, write_program


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_a_random_program_is_numpys_or_an_error(rng: random.Random) -> None:
    check(write_program(rng))
