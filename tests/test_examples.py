"""Each example, at a small size: what it claims to find, it finds."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import distgrad as dg

from .examples import EXAMPLES, SMALL, run

LINES = 150


def test_every_example_takes_part() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_an_example_is_short_and_says_how_to_run_it(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()
    about = text.split('"""')[1]
    assert len(text.splitlines()) < LINES
    assert f"    python examples/{name}.py" in about
    assert f"    distgrad run examples/{name}.py --workers 2\n" in about


def test_the_table_of_examples_has_all_of_them() -> None:
    table = (EXAMPLES / "README.md").read_text()
    assert [name for name in SMALL if f"[{name}.py]({name}.py)" not in table] == []


def test_every_greek_is_within_four_standard_errors_of_the_formula() -> None:
    (mean, error, exact, *_), _ = run("monte_carlo_greeks", paths=256, shards=16)
    assert mean.shape == (27,)
    assert (np.abs(mean - exact) < 4 * error).all()
    assert (error[:11] < 0.2 * np.abs(exact[:11])).all()


def test_adjoint_greeks_are_those_of_bumping_and_revaluing() -> None:
    (*_, adjoint, _, bumped), _ = run("monte_carlo_greeks")
    np.testing.assert_allclose(adjoint, bumped, rtol=1e-4)


def test_the_formula_of_the_price_is_that_of_black_and_scholes() -> None:
    """With one asset in four copies and one date there is no average: the formula must give the textbook's number."""
    (_, _, exact, *_), _ = run("monte_carlo_greeks", paths=2)
    assert exact[0] == pytest.approx(6.3157, abs=1e-4)


def test_the_gpt_learns_text_that_it_has_not_read() -> None:
    losses, printed = run("char_gpt", steps=40, rows=8)
    assert losses[0] > 4
    assert losses[-1] < 3.3
    assert "what it writes" in printed


def test_the_recommender_learns_tastes_and_changes_the_rows_it_touched_alone() -> None:
    (before, after, changed), printed = run("recommender", steps=150, rows=2000, clicks=512)
    assert abs(before - 0.5) < 0.05
    assert after > 0.75
    assert 0 < changed < 1
    assert "the others are as before: True" in printed


def test_a_step_of_the_recommender_allocates_one_table_and_little_more() -> None:
    _, printed = run("recommender", steps=1, rows=100_000, clicks=256)
    allocated = float(printed.split("a step allocates ")[1].split()[0])
    assert 6.4 < allocated < 7.2


def test_the_inverse_problem_finds_the_plate() -> None:
    error, printed = run("inverse_problem", iterations=40, size=12, sections=5)
    assert error < 0.3
    assert "iteration  40" in printed


def test_recomputing_needs_less_memory_in_the_inverse_problem() -> None:
    _, printed = run("inverse_problem", iterations=1, size=24, sections=8)
    kept, recomputed = (float(line.split()[-2]) for line in printed.splitlines()[:2])
    assert recomputed < 0.8 * kept


def test_the_custom_gradient_has_no_nan_where_the_chain_rule_has_one() -> None:
    found, printed = run("custom_op", readings=2000, steps=8)
    assert "chain rule:" in printed
    assert "nan" in printed.split("chain rule:")[1].splitlines()[0]
    assert "op 'BesselI' (type BesselI, at custom_op.py:" in printed
    np.testing.assert_allclose(found, [40, 3000], rtol=0.1)


def test_the_quickstart_says_why_a_gradient_is_none() -> None:
    loss, printed = run("quickstart", steps=120)
    assert loss < 0.5
    assert "[None] because the gradient" in printed
    assert "predicted" in printed


@pytest.mark.parametrize("name", ["inverse_problem", "monte_carlo_greeks"])
def test_a_plot_is_written_to_the_file_that_is_named(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    _, printed = run(name, plot=str(tmp_path / "plot.png"))
    assert f"plot written to {tmp_path / 'plot.png'}" in printed
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
