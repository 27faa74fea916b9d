"""Which kernels are chosen for the CPUs of a cluster."""

from __future__ import annotations

import platform

import pytest

from distgrad.workers import node_report
from distgrad.workers.cpus import X86, Cpu, Kernels, can_run, chosen, cpu

NUMPY = ("X86_V3", "X86_V4", "AVX512_ICL", "AVX512_SPR")
V2 = "sse2 ssse3 sse4_1 sse4_2 popcnt cx16 lahf_lm"
V3 = f"{V2} avx avx2 bmi1 bmi2 f16c fma abm movbe"
V4 = f"{V3} avx512f avx512cd avx512bw avx512dq avx512vl"
ICL = f"{V4} avx512vbmi avx512_vbmi2 avx512_vnni avx512_bitalg avx512_vpopcntdq"


def x86(flags: str, features: int, tunables: str = "") -> Cpu:
    return Cpu("x86_64", frozenset(flags.split()), NUMPY, NUMPY[:features], tunables=tunables)


CPUS = {
    "Westmere": x86(V2, 0),
    "Sandy Bridge": x86(f"{V2} avx", 0),
    "Piledriver": x86(f"{V2} avx f16c fma fma4 bmi1", 0),
    "Haswell": x86(V3, 1),
    "Zen 3": x86(f"{V3} sse4a sha_ni vaes", 1),
    "Skylake-X": x86(V4, 2),
    "Knights Landing": x86(f"{V3} avx512f avx512cd avx512er avx512pf", 1),
    "Ice Lake": x86(ICL, 3),
    "Zen 4": x86(f"{ICL} avx512_bf16 sse4a", 3),
    "Sapphire Rapids": x86(f"{ICL} avx512_bf16 avx512_fp16 amx_tile", 4),
}


@pytest.mark.parametrize(
    ("names", "coretype", "disabled"),
    [
        (["Zen 4"], "SkylakeX", ()),
        (["Zen 4", "Ice Lake"], "SkylakeX", ()),
        (["Sapphire Rapids"] * 2, "SkylakeX", ()),
        (["Sapphire Rapids", "Skylake-X"], "SkylakeX", ("AVX512_ICL", "AVX512_SPR")),
        (["Ice Lake", "Zen 3"], "Haswell", ("X86_V4", "AVX512_ICL")),
        (["Knights Landing"], "Haswell", ()),
        (["Zen 3", "Haswell"], "Haswell", ()),
        (["Zen 3", "Sandy Bridge"], "Nehalem", ("X86_V3",)),
        (["Westmere", "Piledriver", "Zen 4"], "Nehalem", ("X86_V3", "X86_V4", "AVX512_ICL")),
    ],
    ids=str,
)
def test_the_best_kernels_that_all_can_run(names: list[str], coretype: str, disabled: tuple[str, ...]) -> None:
    cpus = [CPUS[name] for name in names]
    for order in (cpus, cpus[::-1]):
        found = chosen(order)
        assert (found.coretype, found.disabled) == (coretype, disabled)
    assert all(can_run(coretype, cpu.flags) for cpu in cpus)


def test_no_kernels_of_the_list_are_asked_of_a_cpu_that_can_run_none() -> None:
    assert chosen([x86("sse2", 0)]).coretype == ""


def test_the_c_library_does_without_what_some_cpus_lack() -> None:
    tunables = chosen([CPUS["Zen 4"], CPUS["Westmere"]]).tunables
    assert tunables is not None
    assert {"-AVX2", "-FMA", "-FMA4"} <= set(tunables.removeprefix("glibc.cpu.hwcaps=").split(","))
    assert chosen([CPUS["Piledriver"], CPUS["Westmere"]]).tunables == tunables  # FMA4 has functions of its own
    assert chosen([CPUS["Zen 4"], CPUS["Haswell"]]).tunables is None


def test_what_a_node_tells_the_c_library_about_its_cpu_is_taken_back_and_all_else_is_left() -> None:
    assert chosen([x86(V3, 1), x86(V3, 1, "glibc.cpu.hwcaps=-FMA")]).tunables == ""
    assert chosen([x86(V3, 1, "glibc.rtld.optional_static_tls=2048")]).tunables is None


def test_every_variable_is_set_whatever_a_node_has_set() -> None:
    assert Kernels("Haswell", ("X86_V4",)).env() == {
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": "X86_V4",
        "NPY_ENABLE_CPU_FEATURES": "",
    }
    assert set(Kernels(tunables="").env()) == set(node_report.VARIABLES)


def test_mixed_architectures_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="2 architectures, aarch64 and x86_64"):
        chosen([CPUS["Zen 4"], Cpu("arm64", frozenset())])
    assert chosen([CPUS["Zen 4"], CPUS["Zen 4"]._replace(machine="AMD64")]).coretype == "SkylakeX"


def test_arm_has_kernels_by_name_and_the_common_ones_where_names_differ() -> None:
    one, other = [Cpu("aarch64", frozenset(), kernels=name) for name in ("NEOVERSEN1", "NEOVERSEV1")]
    assert chosen([one, one]).coretype == "NEOVERSEN1"
    assert chosen([one, other]).coretype == "ARMV8"


def test_a_numpy_with_other_names_decides_nothing_about_features() -> None:
    other = x86(V3, 1)._replace(dispatch=("AVX2", "AVX512_SKX"), features=("AVX2",))
    assert chosen([CPUS["Haswell"], other]).disabled == ()


def test_the_report_of_this_machine_sees_through_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import inspect

    text = inspect.getsource(node_report)
    for name in node_report.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    plain = cpu(node_report.asked(text))
    if plain.dispatch:
        monkeypatch.setenv("NPY_DISABLE_CPU_FEATURES", " ".join(plain.dispatch))
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX2")
    told = cpu(node_report.asked(text))
    assert told == plain._replace(tunables="glibc.cpu.hwcaps=-AVX2")
    assert told.machine == platform.machine()


def test_the_list_goes_from_the_best_kernels_to_those_of_the_most_cpus() -> None:
    assert list(X86) == ["SkylakeX", "Haswell", "Nehalem"]
    assert X86["Haswell"] < X86["SkylakeX"]
