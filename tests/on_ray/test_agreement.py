"""What nodes and driver agree on, given their fingerprints. Nothing here runs on a cluster."""

from __future__ import annotations

import numpy as np
import pytest
from ray import exceptions

import distgrad as dg
from distgrad.scheduler.bodies import bodies
from distgrad.workers.fingerprint import NATIVE_CODE, Fingerprint, fingerprint
from distgrad.workers.on_ray import task
from distgrad.workers.on_ray.agreement import Agreement, admitted, extras_of, has_native_code, refused, settled
from distgrad.workers.on_ray.failures import Collateral, Differs, Refused, classify

ENV = {"OPENBLAS_CORETYPE": "Haswell"}
NAMES = {"a": "node a", "b": "node b", "c": "node c"}


def made(numpy: str = "2.4.6", kernels: str = "Haswell", libc: str = "2.36") -> Fingerprint:
    return Fingerprint((("numpy", numpy), ("blas kernels", kernels), ("libc", libc)))


def test_all_alike_agree_and_the_driver_folds() -> None:
    found = settled(ENV, NAMES, {"a": made(), "b": made()}, made())
    assert found == Agreement(ENV, made(), True, {})


def test_a_driver_with_other_kernels_agrees_and_does_not_fold() -> None:
    found = settled(ENV, NAMES, {"a": made(), "b": made()}, made(kernels="SkylakeX"))
    assert found == Agreement(ENV, made(), False, {})


def test_a_node_of_another_version_is_excluded_with_the_reason() -> None:
    found = settled(ENV, NAMES, {"a": made("2.3.0"), "b": made()}, made())
    assert found.excluded == {"a": "numpy '2.3.0', not '2.4.6'"}
    assert found.expected == made()


def test_of_nodes_that_differ_in_what_is_not_installed_those_like_the_driver_decide_and_else_the_first() -> None:
    nodes = {"a": made(libc="2.31"), "b": made()}
    assert settled(ENV, NAMES, nodes, made()).excluded.keys() == {"a"}
    assert settled(ENV, NAMES, nodes, made(libc="2.40")).excluded.keys() == {"b"}


def test_where_no_node_is_left_both_fingerprints_and_the_remedy_are_named() -> None:
    text = r"node a has numpy '2\.3\.0', not '2\.4\.6'; node b .*Install the same versions .*bits=\"any\""
    with pytest.raises(dg.FingerprintError, match=text):
        settled(ENV, NAMES, {"a": made("2.3.0"), "b": made("2.3.1")}, made())


def test_a_node_that_differs_later_is_excluded_then_and_named_where_none_is_left() -> None:
    agreement = settled(ENV, NAMES, {"a": made()}, made())
    later = agreement.without("d" * 56, agreement.differences(made("2.3.0")))
    assert later.excluded == {"d" * 56: "numpy '2.3.0', not '2.4.6'"}
    assert later.without("d" * 56, "another reason") is later
    assert "node dddddddd: numpy '2.3.0', not '2.4.6'" in str(refused(later))


def test_where_any_bits_will_do_nothing_is_asked_and_nobody_excluded() -> None:
    anything = Agreement(ENV, None, True, {})
    assert anything.head() == b""
    assert anything.differences(made()) == ""
    admitted(anything.head(), lambda _: made("0.1"))


def test_a_process_is_admitted_by_the_digest_that_a_body_carries() -> None:
    ours = settled(ENV, NAMES, {"a": fingerprint()}, fingerprint())
    for extras in ((), ("ml_dtypes",)):
        admitted(ours.head(extras), fingerprint)
    asked: list[tuple[str, ...]] = []
    admitted(ours.head(("ml_dtypes",)), lambda extras: asked.append(extras) or fingerprint(extras))  # type: ignore[func-returns-value]
    assert asked == [("ml_dtypes",)]


def test_bodies_carry_it_in_front() -> None:
    with dg.Session(native=False):
        (body,), _ = bodies(dg.function(lambda x: dg.exp(x)).plan(np.ones(3)))
    agreement = Agreement(ENV, made(), True, {})
    head, _, rest = task.serialized_body(body, "numpy", False, agreement).partition(b"\n")
    assert head == made().digest.encode()
    import cloudpickle

    assert cloudpickle.loads(rest).body.steps == body.steps


def test_packages_that_a_body_uses_beyond_the_others() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with dg.Session(native=False):
        (body,), _ = bodies(dg.function(lambda x: x + x).plan(np.ones(3, ml_dtypes.bfloat16)))
    assert extras_of(body, "numpy") == ("ml_dtypes",)
    assert extras_of(body, "torch") == ("ml_dtypes", "torch")
    for native, extras in ((False, ()), (True, (NATIVE_CODE,))):
        with dg.Session(native=native):
            (plain,), _ = bodies(dg.function(lambda x: x + x).plan(np.ones(3)))
        assert extras_of(plain, "numpy") == extras


def compiled(version: str) -> Fingerprint:
    return Fingerprint((*made().fields, (NATIVE_CODE, version)))


def test_where_one_node_lacks_the_driver_s_native_code_no_node_uses_it(caplog: pytest.LogCaptureFixture) -> None:
    assert has_native_code(NAMES, {"a": compiled("1"), "b": compiled("1")}, compiled("1"))
    assert not caplog.records
    assert not has_native_code(NAMES, {"a": compiled("1"), "b": compiled("none: llvmlite is missing")}, compiled("1"))
    (said,) = caplog.messages
    assert "runs without native code" in said
    assert "node b has 'none: llvmlite is missing', this process has '1'" in said
    assert "--install" in said


def test_native_code_that_no_session_asks_for_is_not_missed(caplog: pytest.LogCaptureFixture) -> None:
    assert has_native_code(NAMES, {"a": made()}, made())
    assert not caplog.records


def test_a_refusal_is_of_its_own_task_and_collateral_for_what_would_have_read_of_it() -> None:
    error = exceptions.RayTaskError("run_task", "traceback", Differs("node", "task1", made().fields))
    assert classify(error, "task1") == Refused("node", made())
    assert isinstance(classify(error, "task2"), Collateral)
