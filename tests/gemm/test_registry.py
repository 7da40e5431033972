import pytest

from narrowgemm.errors import UnsupportedError
from narrowgemm.gemm.registry import accepts, check_formats, kernel_named, kernel_names
from narrowgemm.problem import GemmProblem


@pytest.mark.parametrize("name", kernel_names())
def test_every_kernel_is_in_the_module_that_the_registry_names(name: str) -> None:
    kernel = kernel_named(name)
    assert kernel.name == name
    assert kernel.arch == "any" or name.startswith((kernel.arch, "xla"))
    assert kernel.config_type.__dataclass_params__.frozen


def test_an_unknown_kernel_is_named_with_its_neighbours() -> None:
    with pytest.raises(ValueError, match="unknown kernel 'hopper_wgmma_fp9'; did you mean hopper_wgmma_fp8"):
        kernel_named("hopper_wgmma_fp9")
    with pytest.raises(ValueError, match=r"unknown kernel \['xla_dot_f32'\]; did you mean xla_dot_f32"):
        kernel_named(["xla_dot_f32"])  # type: ignore[arg-type]  # what is refused


def test_formats_are_checked_against_the_kernel() -> None:
    kernel = kernel_named("xla_dot_bf16")
    good, bad = (GemmProblem(1, 1, 1, "bf16", b) for b in ("bf16", "f16"))
    assert accepts(kernel, good)
    check_formats(kernel, good)
    assert not accepts(kernel, bad)
    with pytest.raises(UnsupportedError, match="b_format=f16, out_format=bf16 are not all among its formats"):
        check_formats(kernel, bad)
