"""What the baselines ask cuBLASLt, PyTorch and Triton for, with stand-ins that do it in NumPy, held to the oracle."""

import gc
import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from tests.measure.vendor_fakes import FakeLt, FakeTorch, FakeTriton

from narrowbench.measure.accuracy import draw, judged
from narrowbench.measure.named import baseline_named
from narrowbench.measure.vendor import cublaslt, triton_persistent
from narrowbench.measure.vendor.baseline import Library, as_tensor
from narrowbench.store.rows import Accuracy
from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.spec import format_named
from narrowgemm.problem import GemmProblem

FP8 = GemmProblem(136, 304, 208, "fp8_e4m3", "fp8_e4m3")
BF16 = GemmProblem(24, 40, 72, "bf16", "bf16")
FEW_ROWS = GemmProblem(3, 208, 272, "fp8_e4m3", "fp8_e4m3")


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    fake = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", fake)  # type: ignore[arg-type]
    return fake


@pytest.fixture
def lt(monkeypatch: pytest.MonkeyPatch) -> FakeLt:
    fake = FakeLt()
    monkeypatch.setitem(sys.modules, "nvmath.bindings.cublasLt", fake)  # type: ignore[arg-type]
    return fake


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTriton]:
    fake = FakeTriton()
    for name, module in fake.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    kernel = "narrowbench.measure.vendor.triton_kernel"
    monkeypatch.delitem(sys.modules, kernel, raising=False)
    yield fake
    sys.modules.pop(kernel, None)
    vars(importlib.import_module("narrowbench.measure.vendor")).pop("triton_kernel", None)


def _accuracies(library: Library, problem: GemmProblem) -> Iterator[tuple[dict[str, object], Accuracy]]:
    """Every way held to float64; raises where one is wrong or leaves something unwritten."""
    drawn = draw(problem, "normal", 0)
    out = _output(problem, 0.0)
    for way in library.ways(library.bound(*drawn.quantised, out)):

        def run(value: float, way: Any = way) -> tuple[jax.Array, bool]:
            filled = _output(problem, value)
            way.launch(library.bound(*drawn.quantised, filled))
            return filled, True

        yield way.config, judged(problem, drawn, run)


def _output(problem: GemmProblem, value: float) -> jax.Array:
    dtype = format_named(problem.out_format).element.dtype
    return jax.block_until_ready(jnp.full((problem.m, problem.n), value, dtype))


@pytest.mark.parametrize(("name", "problem"), [("cublaslt_bf16", BF16), ("cublaslt_fp8_e4m3", FP8)])
def test_cublaslt_is_asked_for_the_product_by_every_algorithm_of_its_heuristic(
    name: str, problem: GemmProblem, lt: FakeLt
) -> None:
    found = list(_accuracies(baseline_named(name).open(problem), problem))
    assert [config["algorithm"] for config, _ in found] == [60, 62]  # 61 is none that this device can do
    config, accuracy = found[0]
    assert accuracy.kernel_error < accuracy.tolerance
    assert config["library"] == "cuBLASLt 13.1.0"
    assert config["tile"] == "TILE_128x256"
    assert config["split_k"] == 7
    assert config["fast_accumulation"] is (problem is FP8)
    assert [config["workspace_bytes"] for config, _ in found] == [0, 2048]
    assert lt.ran == [60, 62]


def test_fp8_asks_for_fast_accumulation_with_the_scales_of_its_own_operands(lt: FakeLt) -> None:
    library = cublaslt.CublasLt("cublaslt_fp8_e4m3", FP8, lt)
    a, b = draw(FP8, "normal", 0).quantised
    out = _output(FP8, 0.0)
    bound = library.bound(a, b, out)
    told = lt.alive[bound.descriptor]
    assert isinstance(told, dict)
    assert told[lt.MatmulDescAttribute.FAST_ACCUM] == 1
    assert told[lt.MatmulDescAttribute.A_SCALE_POINTER] == b.tensor_scale.unsafe_buffer_pointer()  # type: ignore[union-attr]
    assert told[lt.MatmulDescAttribute.B_SCALE_POINTER] == a.tensor_scale.unsafe_buffer_pointer()  # type: ignore[union-attr]


def test_what_cublaslt_was_given_is_taken_back(lt: FakeLt) -> None:
    library = baseline_named("cublaslt_bf16").open(BF16)
    list(_accuracies(library, BF16))
    del library
    gc.collect()
    assert lt.alive == {}


def test_a_shape_without_algorithm_is_unsupported(lt: FakeLt) -> None:
    lt.states = ()
    with pytest.raises(UnsupportedError, match=r"m=24, n=40, k=72 is a shape that cuBLASLt 13\.1\.0 has no algorithm"):
        list(_accuracies(baseline_named("cublaslt_bf16").open(BF16), BF16))


@pytest.mark.parametrize("problem", [FP8, FEW_ROWS])
def test_torch_multiplies_with_fast_accumulation_into_memory_of_jax(problem: GemmProblem, torch: FakeTorch) -> None:
    ((config, accuracy),) = _accuracies(baseline_named("torch_scaled_mm_fp8_e4m3").open(problem), problem)
    assert accuracy.kernel_error < accuracy.tolerance
    assert config == {"library": "torch 2.0.fake", "use_fast_accum": True}
    assert all(call["use_fast_accum"] is True for call in torch.calls)


def test_an_output_that_dlpack_copied_is_refused(torch: FakeTorch) -> None:
    torch.copies = True
    with pytest.raises(RuntimeError, match=r"handed out a copy of bfloat16\(136, 304\)"):
        as_tensor(torch, _output(FP8, 0.0))


@pytest.mark.parametrize("problem", [FP8, FEW_ROWS, replace(FP8, m=65, n=1040)])
@pytest.mark.usefixtures("torch", "triton")
def test_every_config_of_the_triton_kernel_is_right(problem: GemmProblem) -> None:
    found = list(_accuracies(baseline_named("triton_persistent_fp8_e4m3").open(problem), problem))
    assert [config["rank"] for config, _ in found] == list(range(len(triton_persistent.candidates(problem))))
    assert len(found) > 5
    for config, accuracy in found:
        assert accuracy.kernel_error < accuracy.tolerance, config


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize(("tiles_m", "tiles_n", "band"), [(1, 1, 8), (8, 3, 8), (19, 5, 8), (3, 7, 1)])
def test_tiles_of_the_triton_kernel_are_each_taken_once_band_by_band(tiles_m: int, tiles_n: int, band: int) -> None:
    from narrowbench.measure.vendor import triton_kernel

    places = [triton_kernel.tile_place(tile, tiles_m, tiles_n, band) for tile in range(tiles_m * tiles_n)]
    assert sorted(places) == [(row, column) for row in range(tiles_m) for column in range(tiles_n)]
    assert [row // band for row, _ in places] == sorted(row // band for row, _ in places)


def test_the_grid_is_no_larger_than_the_tiles() -> None:
    config = triton_persistent.Config(64, 64, 128, 3, 4, a_core=2)
    assert triton_persistent.programs(FEW_ROWS, config, 132) == 4
    assert triton_persistent.programs(GemmProblem(4096, 4096, 64, "fp8_e4m3", "fp8_e4m3"), config, 132) == 264
