"""What notebooks show of graphs, plans and explanations: `_repr_html_`."""

from __future__ import annotations

import numpy as np

import distgrad as dg
from distgrad.html import MAX_ROWS
from distgrad.scheduler.partition.partition import partition

from ..step_graphs import ray_cluster, towers


def chain(length: int) -> dg.Graph:
    with dg.Graph() as graph:
        x = dg.placeholder((2, 3), "float32", name="x")
        for _ in range(length):
            x = dg.exp(x)
    return graph


def test_a_graph_shows_its_ops_with_types_and_lines() -> None:
    shown = chain(1)._repr_html_()
    assert "<strong>Graph of 2 ops</strong>" in shown
    for text in ("Placeholder", "Exp", "f32[2,3]", "test_notebooks.py:"):
        assert text in shown


def test_a_large_graph_shows_its_first_ops_and_how_many_more() -> None:
    shown = chain(20_000)._repr_html_()
    assert shown.count("<tr>") == 1 + MAX_ROWS
    assert "<p>and 19,951 more ops</p>" in shown
    assert len(shown) < 30_000


def test_a_long_attribute_and_many_inputs_are_cut() -> None:
    with dg.Graph() as graph:
        terms = [dg.placeholder((1,), "float32") for _ in range(40)]
        dg.add_n(terms)
    assert ", and 34 more" in graph._repr_html_()


def test_the_body_of_a_function_shows_its_name() -> None:
    @dg.function
    def double(x: dg.Tensor) -> dg.Tensor:
        return x + x

    body = double.prepared(np.ones(2))[0].body
    assert f"<strong>{body.name}: {len(body.ops)} ops</strong>" in body._repr_html_()


def test_text_is_escaped() -> None:
    with dg.Graph() as graph:
        dg.placeholder((1,), "float32", name="a>b")
    assert "a&gt;b" in graph._repr_html_()
    assert "a>b" not in graph._repr_html_()


def test_a_plan_shows_what_it_should_cost_and_its_tasks() -> None:
    shown = partition(towers(8, 4), ray_cluster(4))._repr_html_()
    assert "<strong>Plan of 9 tasks, 35 steps, on cluster &#x27;test&#x27;: 4 workers, 4 cpus</strong>" in shown
    for text in ("peak memory on one worker", "critical path", "MatMul ×4", "train.py:"):
        assert text in shown


def test_a_large_plan_shows_its_longest_tasks_and_how_many_more() -> None:
    plan = partition(towers(64, 3), ray_cluster(64))
    shown = plan._repr_html_()
    assert f"<p>and {len(plan.tasks) - 15} more tasks, none of them longer</p>" in shown
    assert len(shown) < 20_000


def test_an_explanation_shows_what_cuts_a_gradient() -> None:
    with dg.Graph():
        x = dg.constant(2.0, name="x")
        y = dg.stop_gradient(x * x, name="frozen")
        shown = dg.explain_gradient(y, x)._repr_html_()
    assert "<strong>the gradient of &#x27;frozen&#x27; with respect to &#x27;x&#x27; is None:</strong>" in shown
    for text in ("stop_gradient", "StopGradient", "test_notebooks.py:", "lets no gradient through"):
        assert text in shown


def test_an_explanation_of_a_gradient_that_flows_shows_what_carries_it() -> None:
    with dg.Graph():
        x = dg.constant(2.0, name="x")
        shown = dg.explain_gradient(dg.exp(x, name="e"), x)._repr_html_()
    assert "flows through 1 ops (1 Exp)." in shown
    assert "<p>carried by e</p>" in shown
    assert "<table>" not in shown


def test_an_explanation_with_many_cuts_shows_the_first() -> None:
    with dg.Graph():
        x = dg.constant(2.0, name="x")
        y = dg.add_n([dg.stop_gradient(x) for _ in range(200)])
        shown = dg.explain_gradient(y, x)._repr_html_()
    assert f"<p>and {200 - MAX_ROWS} more cuts</p>" in shown
    assert len(shown) < 60_000
