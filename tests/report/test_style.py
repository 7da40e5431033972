"""One style a kernel, told apart in grey as well."""

from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from narrowbench.measure import named
from narrowbench.report import kernels, style


def test_everything_that_can_be_measured_has_a_style() -> None:
    assert set(named.names()) <= set(kernels.KERNELS)


def test_baselines_are_those_of_vendors_and_compilers() -> None:
    ours = ("hopper_", "blackwell_", "tpu_")
    assert all(look.is_baseline != name.startswith(ours) for name, look in kernels.KERNELS.items())


@pytest.mark.parametrize("architecture", ["hopper_", "blackwell_", "tpu_"])
def test_kernels_that_meet_in_a_panel_have_markers_of_their_own(architecture: str) -> None:
    meet = [look for name, look in kernels.KERNELS.items() if look.is_baseline or name.startswith(architecture)]
    assert len({look.marker for look in meet}) == len(meet)


def test_every_legend_key_is_unique() -> None:
    keys = style.legend_keys(kernels.KERNELS)
    assert [key.get_label() for key in keys] == list(kernels.KERNELS)
    looks = [(key.get_color(), key.get_marker(), key.get_linestyle()) for key in keys]
    assert all(one != other for one, other in combinations(looks, 2))


def test_a_kernel_is_in_the_legend_once_and_in_fixed_order() -> None:
    keys = style.legend_keys(["hopper_wgmma_fp8", "xla_dot_bf16", "hopper_wgmma_fp8"])
    assert [key.get_label() for key in keys] == ["xla_dot_bf16", "hopper_wgmma_fp8"]


def test_modelled_points_are_hollow_and_say_so() -> None:
    (measured,) = style.legend_keys(["hopper_wgmma_fp8"])
    (modelled,) = style.legend_keys(["hopper_wgmma_fp8"], "modelled")
    assert measured.get_markerfacecolor() == kernels.FP8
    assert modelled.get_markerfacecolor() == "none"
    assert modelled.get_label() == "hopper_wgmma_fp8 (modelled)"


def test_a_kernel_without_style_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"hopper_wgmma_fp9.*did you mean hopper_wgmma_fp8.*kernels\.KERNELS"):
        style.legend_keys(["hopper_wgmma_fp9"])


def test_a_figure_is_three_files_without_dates_or_versions(tmp_path: Path) -> None:
    with style.house():
        figure = Figure(figsize=(1, 1))
        figure.subplots().add_line(Line2D([0, 1], [0, 1]))
        paths = style.save(figure, "fig_test", tmp_path)
    assert [path.name for path in paths] == ["fig_test.pdf", "fig_test.svg", "fig_test.png"]
    for path in paths:
        content = path.read_bytes().lower()
        assert b"matplotlib v" not in content
        assert b"date" not in content
