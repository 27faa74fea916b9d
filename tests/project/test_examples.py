"""Each example, at a small size: what it claims to find, it finds."""

from __future__ import annotations

import inspect
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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


@pytest.mark.parametrize("name", SMALL)
def test_the_options_of_an_example_are_the_parameters_of_its_main(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(EXAMPLES / f"{name}.py")
    monkeypatch.setattr(sys, "argv", [path, "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(path, run_name="__main__")
    options = set(re.findall(r"^  --([a-z]+)", capsys.readouterr().out, re.M))
    assert options == set(inspect.signature(runpy.run_path(path)["main"]).parameters)


def test_the_table_of_examples_has_all_of_them() -> None:
    table = (EXAMPLES / "README.md").read_text()
    assert [name for name in SMALL if f"[{name}.py]({name}.py)" not in table] == []


@pytest.fixture(scope="module")
def greeks() -> Any:
    return run("monte_carlo_greeks", paths=256, shards=8, bumping=True)[0]


def test_every_greek_is_within_four_standard_errors_of_the_formula(greeks: Any) -> None:
    mean, error, exact, *_ = greeks
    assert mean.shape == (27,)
    assert (np.abs(mean - exact) < 4 * error).all()
    assert (error[:11] < 0.2 * np.abs(exact[:11])).all()


def test_adjoint_greeks_are_those_of_bumping_and_revaluing(greeks: Any) -> None:
    *_, adjoint, _, bumped = greeks
    np.testing.assert_allclose(adjoint, bumped, rtol=1e-4)


def test_the_formula_is_the_integral_of_the_payoff(greeks: Any) -> None:
    """All 48 logarithms are normal together; their mean is normal, with the mean of all covariances as its variance."""
    spot, vol, dates = np.array([95.0, 100.0, 105.0, 110.0]), np.array([0.35, 0.25, 0.2, 0.3]), np.arange(1, 13) / 12
    correlation = 0.4 + 0.6 * np.eye(4)
    covariance = np.einsum("i,j,ij,st->isjt", vol, vol, correlation, np.minimum.outer(dates, dates))
    mean = np.mean(np.log(spot)[:, None] + (0.03 - vol[:, None] ** 2 / 2) * dates)
    z = np.linspace(-10, 10, 200_001)
    payoff = np.maximum(np.exp(mean + np.sqrt(covariance.mean()) * z) - 100, 0)
    price = np.exp(-0.03) * np.trapezoid(payoff * np.exp(-z * z / 2), z) / np.sqrt(2 * np.pi)
    assert greeks[2][0] == pytest.approx(price, abs=1e-6)


def test_the_gpt_learns_text_that_it_has_not_read() -> None:
    losses, printed = run("char_gpt", steps=40, rows=8)
    assert losses[0] > 4
    assert losses[-1] < 3.3
    assert "a sample:" in printed


def test_the_recommender_learns_tastes_and_changes_the_rows_it_touched_alone() -> None:
    (before, after, changed), printed = run("recommender", steps=150, rows=2000, clicks=512)
    assert abs(before - 0.5) < 0.1
    assert after > 0.75
    assert 0 < changed < 1
    assert "the others are unchanged: True" in printed


def test_a_step_of_the_recommender_allocates_one_table_and_little_more() -> None:
    _, printed = run("recommender", steps=1, rows=100_000, clicks=256)
    allocated = float(printed.split("a step allocates ")[1].split()[0])
    assert 6.4 < allocated < 7.2


def test_the_inverse_problem_finds_the_plate() -> None:
    error, printed = run("inverse_problem", iterations=30, size=12, sections=4)
    assert error < 0.3
    assert "iteration  30" in printed


def test_recomputing_needs_less_memory_in_the_inverse_problem() -> None:
    _, printed = run("inverse_problem", iterations=1, size=24, sections=8)
    kept, recomputed = (float(line.split()[-2]) for line in printed.splitlines()[:2])
    assert recomputed < 0.8 * kept


def test_the_wave_inversion_finds_the_speed() -> None:
    left, printed = run("wave_inversion", iterations=10, size=16, shots=4, steps=50)
    assert left < 0.8
    assert "misfit" in printed


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


@pytest.mark.parametrize("name", ["inverse_problem", "monte_carlo_greeks", "wave_inversion"])
def test_a_plot_is_written_to_the_file_that_is_named(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    _, printed = run(name, plot=str(tmp_path / "plot.png"))
    assert f"plot written to {tmp_path / 'plot.png'}" in printed
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["inverse_problem", "monte_carlo_greeks", "wave_inversion"])
def test_without_matplotlib_an_example_says_how_to_get_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # an import of None is an ImportError
    _, printed = run(name, plot="unwritten.png")
    assert "pip install matplotlib" in printed
    assert not Path("unwritten.png").exists()
