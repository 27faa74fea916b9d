"""Fingerprints: what they tell apart, and that equal processes have equal ones."""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import subprocess
import sys
import sysconfig
from functools import cache
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.workers import node_report, probes
from distgrad.workers.cpus import X86, can_run
from distgrad.workers.fingerprint import NATIVE_CODE, Fingerprint, fingerprint, flushes

FLAGS = frozenset(node_report.flags())
PROGRAM = """
import json
from distgrad.workers.fingerprint import fingerprint
print(json.dumps(dict(fingerprint().fields)))
"""


@cache
def elsewhere(**variables: str) -> dict[str, str]:
    """The fingerprint of another process, with these variables."""
    env = {name: value for name, value in os.environ.items() if name not in node_report.VARIABLES} | variables
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def changed(**variables: str) -> set[str]:
    plain, found = elsewhere(), elsewhere(**variables)
    return {name for name in {**plain, **found} if plain.get(name) != found.get(name)}


def test_equal_processes_have_equal_fingerprints() -> None:
    assert elsewhere(PYTHONHASHSEED="1") == elsewhere(PYTHONHASHSEED="2", OPENBLAS_NUM_THREADS="2")


def test_the_blas_of_scipy_has_the_threads_of_a_run_also_where_it_is_imported_inside_of_it() -> None:
    program = """
from distgrad.workers import blas
with blas.threads(1):
    import scipy.linalg
    from threadpoolctl import threadpool_info
    print([lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"])
"""
    env = os.environ | {"OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout)) == {1}


def test_it_has_all_that_bits_depend_on_beside_the_plan() -> None:
    names = dict(fingerprint().fields)
    assert names["distgrad"] == dg.__version__
    assert names["numpy"] == np.__version__
    assert names["denormals"] == "kept"
    assert {"python", "scipy", "numpy blas", "scipy blas", "machine", "libc", "blas kernels", "scipy blas kernels",
            "numpy loops", "probe of libm", "probe of loops", "probe of products"} <= names.keys()  # fmt: skip
    assert all(isinstance(value, str) for value in names.values())


@pytest.mark.skipif(not FLAGS, reason="flags are known on Linux alone")
@pytest.mark.parametrize("coretype", X86)
def test_kernels_of_blas_are_read_back_and_change_the_probe(coretype: str) -> None:
    if not can_run(coretype, FLAGS) or elsewhere()["blas kernels"] in (coretype, "unknown"):
        pytest.skip("this CPU has no other kernels than these, or cannot run them")
    found = elsewhere(OPENBLAS_CORETYPE=coretype)
    assert found["blas kernels"] == found["scipy blas kernels"] == coretype
    assert changed(OPENBLAS_CORETYPE=coretype) == {"blas kernels", "scipy blas kernels", "probe of products"}


@pytest.mark.parametrize(("name", "stands_for"), [("Zen", "Haswell"), ("Cooperlake", "SkylakeX")])
def test_names_that_stand_for_the_same_kernels_have_one_fingerprint(name: str, stands_for: str) -> None:
    if not FLAGS or not can_run(stands_for, FLAGS):
        pytest.skip("this CPU cannot run them")
    told, other = elsewhere(OPENBLAS_CORETYPE=name), elsewhere(OPENBLAS_CORETYPE=stands_for)
    if told["blas kernels"] != stands_for:
        pytest.skip("this OpenBLAS has kernels of that name")
    assert told == other


def test_features_that_numpy_does_without_are_told() -> None:
    on = elsewhere()["numpy loops"].split()
    if on == ["baseline"]:
        pytest.skip("this CPU has no more than NumPy's least")
    assert "numpy loops" in changed(NPY_DISABLE_CPU_FEATURES=" ".join(on))
    assert elsewhere(NPY_DISABLE_CPU_FEATURES=" ".join(on))["numpy loops"] == "baseline"


@pytest.mark.skipif(not {"fma", "avx2"} <= FLAGS, reason="the C library has no other functions for this CPU")
def test_other_functions_of_the_c_library_are_told() -> None:
    found = changed(GLIBC_TUNABLES="glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4")
    if "libc" not in elsewhere() or "glibc" not in elsewhere()["libc"]:
        pytest.skip("not the GNU library")
    assert "probe of libm" in found


def test_probes_do_not_depend_on_where_arrays_lie() -> None:
    rng, kept, found = np.random.default_rng(0), [], set()
    with np.errstate(all="ignore"):
        for _ in range(12):
            found.add(tuple([probe() for name, probe in probes.PROBES.items()]))
            kept.append(bytearray(int(rng.integers(1, 5000))))
    assert len(found) == 1


def test_probes_look_at_no_nan_payload() -> None:
    quiet, other = np.array([0x7FF8000000000000, 0x7FF8000000000001], np.uint64).view(np.float64)
    assert probes.digest([np.array([1.0, quiet])]) == probes.digest([np.array([1.0, other])])
    assert probes.digest([np.array([1.0])]) != probes.digest([np.array([-1.0])])


def test_kernels_that_this_cpu_cannot_run_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_report, "flags", lambda: ["sse2"])
    monkeypatch.setenv("OPENBLAS_CORETYPE", "SkylakeX")
    found = dict(fingerprint.__wrapped__().fields)
    assert found["blas kernels"] == "SkylakeX, which this CPU cannot run"
    assert "probe of products" not in found


@pytest.mark.skipif(
    not sysconfig.get_platform().endswith("x86_64"), reason="the register and the C library's name for it are x86's"
)
def test_denormals_that_are_flushed_are_seen() -> None:
    """A library built with -ffast-math sets this when it is loaded."""
    libm = ctypes.CDLL("libm.so.6")
    env = (ctypes.c_uint32 * 8)()  # glibc's fenv_t: the last word is MXCSR
    libm.fegetenv(env)
    kept = env[7]
    assert not flushes()
    try:
        env[7] = kept | 0x8040
        libm.fesetenv(env)
        assert flushes()
    finally:
        env[7] = kept
        libm.fesetenv(env)
    assert not flushes()


def test_differences_name_both_values() -> None:
    a = Fingerprint((("numpy", "2.4.6"), ("libc", "x"), ("new", "1")))
    b = Fingerprint((("numpy", "2.4.5"), ("libc", "x")))
    assert a.differences(b) == "numpy '2.4.6', not '2.4.5', new '1', not None"
    assert a.differences(a) == ""
    assert a.versions == (("numpy", "2.4.6"),)
    assert a.digest != b.digest


def test_extras_are_in_it_where_they_are_used() -> None:
    base, more = dict(fingerprint().fields), dict(fingerprint(("ml_dtypes",)).fields)
    assert "ml_dtypes" not in base
    assert more == base | {"ml_dtypes": importlib.metadata.version("ml_dtypes")}


# -- plans -------------------------------------------------------------------------------------------------------


def _plan(**options: Any) -> dg.Plan:
    with dg.Session(**options):
        return dg.function(lambda x: dg.exp(x) @ x).plan(np.ones((8, 8)))


def test_a_plan_records_the_fingerprint_of_this_process() -> None:
    plan = _plan(threads=1)
    assert plan.fingerprint == fingerprint((NATIVE_CODE,) if plan.options.native else ()).fields
    assert plan.bits == {**plan.bits, "backend": "numpy", "cpus per task": "1", **dict(fingerprint().fields)}
    assert json.loads(plan.to_json())["bits"] == plan.bits


def test_plans_that_differ_in_what_bits_depend_on_say_so() -> None:
    one, two = _plan(threads=1), _plan(threads=2)
    assert one.bits["program"] == two.bits["program"]
    assert (one.bits["cpus per task"], two.bits["cpus per task"]) == ("1", "2")


def test_a_plan_as_json_has_its_fingerprint() -> None:
    plan = _plan(threads=1)
    written = json.loads(plan.to_json())
    assert written["bits"] == plan.bits
    assert [tuple(field) for field in written["fingerprint"]] == list(plan.fingerprint)


def test_the_option_is_of_ray_and_has_two_values() -> None:
    with pytest.raises(ValueError, match=r"bits is an option of Session\('ray'\)"):
        dg.Session(bits="any")
    with pytest.raises(ValueError, match="bits is 'same' or 'any', got 'some'"):
        dg.Session("ray", bits="some")


def test_the_explanation_has_a_line_on_bits() -> None:
    plan = _plan(threads=1)
    kernels = dict(fingerprint().fields)["blas kernels"]
    told = f"numpy {np.__version__}, blas kernels {kernels}, cpus per task 1"
    assert f"bits        depend on {told}; the full list is in plan.bits" in plan.explain()
