"""Epilogues: what they are refused for, what XLA's dots make of them, and those of Hopper's kernels, interpreted."""

from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.gemm.operands import quantized

import narrowgemm
from narrowgemm import Epilogue, aot
from narrowgemm.errors import UnsupportedError
from narrowgemm.gemm import _mosaic_gpu, _wgmma_epilogue, api, oracle
from narrowgemm.gemm import epilogue as epilogues
from narrowgemm.gemm._hopper_space import Config
from narrowgemm.gemm.registry import kernel_named
from narrowgemm.problem import GemmProblem, epilogue_parts

SMALL = Config(tile_m=128, tile_n=128, stages=2)
PROBLEM = GemmProblem(130, 144, 160, "fp8_e4m3", "fp8_e4m3")


def operands(problem: GemmProblem) -> tuple[Any, Any]:
    random = np.random.default_rng(problem.m)
    return tuple(quantized(random.normal(size=(rows, problem.k)), problem.a_format) for rows in (problem.m, problem.n))


def epilogue(problem: GemmProblem, name: str, residual: Any = jnp.bfloat16) -> Epilogue:
    """Scales of a product near 1, so that activations are met where they bend."""
    rng = np.random.default_rng(problem.n)
    parts = epilogue_parts(name)

    def drawn(*shape: int, scale: bool = False) -> jax.Array:
        values = rng.uniform(0.7, 1.4, shape) / problem.k**0.25 if scale else rng.normal(size=shape)
        return jnp.asarray(values, jnp.float32)

    return Epilogue(
        row_scale=drawn(problem.m, scale=True) if {"scales", "rowscale"} & set(parts) else None,
        column_scale=drawn(problem.n, scale=True) if {"scales", "columnscale"} & set(parts) else None,
        bias=drawn(problem.n) if "bias" in parts else None,
        activation=next((part for part in parts if part in ("relu", "gelu", "silu")), None),
        residual=drawn(problem.m, problem.n).astype(residual) if "residual" in parts else None,
        out_scale=jnp.float32(0.013) if "outscale" in parts else None,
    )


def check_against_oracle(got: Any, a: Any, b: Any, problem: GemmProblem, given: Epilogue) -> None:
    product = oracle.exact(a, b)
    expected = oracle.finished(product, given)
    rows, columns = (np.asarray(factor, np.float64) for factor in oracle.scales_of(given))
    share = np.linalg.norm(product * rows * columns) / np.linalg.norm(expected)
    error, largest = oracle.errors(np.asarray(got), expected)
    assert got.shape == (problem.m, problem.n)
    assert error <= oracle.tolerance(problem, product_share=float(share))
    assert largest < 1.0


def check(kernel: str, problem: GemmProblem, config: Config, name: str, residual: Any = jnp.bfloat16) -> None:
    a, b = operands(problem)
    given = epilogue(problem, name, residual)
    assert given.name == name
    chosen = kernel_named(kernel)
    chosen.check(problem, config)
    assert chosen.matmul_epilogue is not None
    matmul = chosen.matmul_epilogue
    got = jax.jit(lambda a, b, e: matmul(a, b, config, problem.out_format, e, interpret=True))(a, b, given)
    check_against_oracle(got, a, b, problem, given)
    assert not _mosaic_gpu.races_found()


@pytest.mark.parametrize(
    ("shape", "config", "name", "out_format"),
    [
        # Tails in M and N, every activation, every format of a result.
        ((70, 80, 144), SMALL, "scales_bias_gelu", "bf16"),
        ((70, 80, 144), SMALL, "scales_bias_gelu_outscale", "fp8_e4m3"),
        ((70, 76, 144), SMALL, "rowscale_silu", "f32"),
        ((70, 80, 144), SMALL, "columnscale_relu", "f16"),
        ((70, 80, 144), SMALL, "bias_silu_residual_outscale", "fp8_e5m2"),
        # Each consumer has vectors of its own, both share an operand's half, the last part of a row overlaps.
        ((200, 264, 144), replace(SMALL, tile_m=64, split=None), "scales_bias_gelu_residual", "bf16"),
        ((201, 136, 144), replace(SMALL, tile_m=64, cluster_m=2, split="n"), "scales_bias_relu", "bf16"),
        ((70, 176, 144), replace(SMALL, tile_n=168), "scales_bias_silu", "bf16"),
    ],
)
def test_fp8_with_an_epilogue_equals_the_oracle_without_races(
    shape: tuple[int, int, int], config: Config, name: str, out_format: str
) -> None:
    check("hopper_wgmma_fp8", GemmProblem(*shape, "fp8_e4m3", "fp8_e4m3", out_format), config, name)


@pytest.mark.parametrize(("name", "residual"), [("bias_gelu_residual", jnp.float32), ("residual", jnp.float16)])
def test_bf16_with_an_epilogue_equals_the_oracle_without_races(name: str, residual: Any) -> None:
    check("hopper_wgmma_bf16", GemmProblem(70, 80, 72, "bf16", "bf16", "f32"), SMALL, name, residual)


@pytest.mark.parametrize("k_steps", [1, 5])
def test_vectors_of_many_tiles_follow_each_other_without_races(k_steps: int) -> None:
    """More tiles a block than sets of vectors, with fewer K steps a tile than stages and with more."""
    problem = GemmProblem(64, 64 * 7, 64 * k_steps, "bf16", "bf16", "f32")
    check("hopper_wgmma_bf16", problem, Config(64, 64, 3, "n", raster="n"), "scales_bias")


def test_an_fp8_result_with_an_epilogue_saturates() -> None:
    a = jnp.full((64, 64), 30.0, jnp.bfloat16)
    given = Epilogue(activation="gelu", out_scale=jnp.float32(0.01))
    chosen = kernel_named("hopper_wgmma_bf16")
    assert chosen.matmul_epilogue is not None
    got = chosen.matmul_epilogue(a, a, SMALL, "fp8_e4m3", given, interpret=True)
    np.testing.assert_array_equal(np.asarray(got, np.float32), 448.0)


@pytest.mark.parametrize("is_coarse", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_activations_are_their_functions_from_one_infinity_to_the_other(activation: str, is_coarse: bool) -> None:
    x = np.concatenate([np.linspace(-12, 12, 4001), [-3e38, -1e20, 0.0, 1e20, 3e38]]).astype(np.float32)
    with np.errstate(over="ignore"):
        expected = oracle.finished(x.astype(np.float64), Epilogue(activation=activation))
    for factor in (None, jnp.float32(0.25)):
        got = _wgmma_epilogue.activated(jnp.asarray(x), activation, is_coarse, factor)
        scaled = expected if factor is None else expected * 0.25
        np.testing.assert_allclose(got, scaled, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", ["scales_bias_gelu", "columnscale_silu_residual", "rowscale_bias_relu", "residual"])
@pytest.mark.parametrize(
    ("kernel", "operand", "out_format"),
    [
        ("xla_dot_f32", "f32", "f32"),
        ("xla_dot_bf16", "bf16", "f16"),
        ("xla_dot_fp8_e4m3", "fp8_e4m3", "bf16"),
        ("xla_dot_fp8_e4m3", "fp8_e4m3", "fp8_e4m3"),
    ],
)
def test_gemm_takes_an_epilogue(kernel: str, operand: str, out_format: str, name: str) -> None:
    problem = GemmProblem(33, 24, 64, operand, operand, out_format)
    a, b = (x if operand != "f32" else x.codes for x in operands(problem))
    given = epilogue(problem, f"{name}_outscale" if out_format == "fp8_e4m3" else name)
    dtype = narrowgemm.formats.spec.format_named(out_format).element.dtype
    got = narrowgemm.gemm(a, b, kernel=kernel, out_dtype=dtype, epilogue=given)
    check_against_oracle(got, a, b, problem, given)
    jitted = jax.jit(lambda a, b, e: narrowgemm.gemm(a, b, kernel=kernel, out_dtype=dtype, epilogue=e))(a, b, given)
    check_against_oracle(jitted, a, b, problem, given)


def test_codes_with_their_out_scale_are_the_next_operand() -> None:
    problem = replace(PROBLEM, out_format="fp8_e4m3")
    a, b = operands(problem)
    given = epilogue(problem, "scales_gelu_outscale")
    out = narrowgemm.gemm(a, b, kernel="xla_dot_fp8_e4m3", out_dtype=jnp.float8_e4m3fn, epilogue=given)
    values = narrowgemm.dequantize(narrowgemm.QuantizedArray(out, None, given.out_scale, "fp8_e4m3", out.shape))
    unscaled = replace(given, out_scale=None)
    error, _ = oracle.errors(np.asarray(values), oracle.finished(oracle.exact(a, b), unscaled))
    assert error < 2.0**-4


def test_jax_functions_and_the_oracle_agree() -> None:
    given = epilogue(PROBLEM, "scales_bias_gelu_residual_outscale")
    product = np.random.default_rng(0).normal(size=(PROBLEM.m, PROBLEM.n))
    with jax.enable_x64(True):
        got = epilogues.apply(jnp.asarray(product), given)
    np.testing.assert_allclose(got, oracle.finished(product, given), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"activation": "gelo"}, "unknown activation 'gelo'; did you mean gelu"),
        ({"bias": jnp.ones(144, jnp.bfloat16)}, "bias has dtype bfloat16, not float32"),
        ({"residual": jnp.ones((130, 144), jnp.int8)}, "residual has dtype int8, not float32 or bfloat16 or float16"),
        ({"row_scale": 2.0}, "row_scale is 2.0, not an array or None"),
        ({"row_scale": jnp.ones(144)}, r"row_scale has shape \(144,\), not \(130,\)"),
        ({"residual": jnp.ones((144, 130))}, r"residual has shape \(144, 130\), not \(130, 144\)"),
        ({"out_scale": jnp.float32(1)}, "out_scale with a result in bf16, which is not FP8"),
    ],
)
def test_what_is_no_epilogue_of_the_product_is_refused_with_both_values(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Epilogue(**fields).check(PROBLEM)


def test_a_kernel_without_epilogues_names_those_that_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "check_device", lambda _: None)
    a, b = operands(PROBLEM)
    with pytest.raises(
        UnsupportedError, match="use one of hopper_wgmma_bf16, hopper_wgmma_fp8, hopper_wgmma_fp8_block128, xla"
    ) as refusal:
        narrowgemm.gemm(a, b, kernel="hopper_wgmma_fp8_decode", epilogue=epilogue(PROBLEM, "bias_gelu"))
    assert refusal.value.values == {"epilogue": "bias_gelu"}


def test_the_default_kernel_of_few_rows_is_one_with_epilogues(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimpleNamespace(platform="gpu", compute_capability="9.0", device_kind="NVIDIA")
    monkeypatch.setattr(api, "default_device", lambda: device)
    problem = replace(PROBLEM, m=16)
    assert api._default_kernel(problem).name == "hopper_wgmma_fp8_decode"
    assert api._default_kernel(problem, Epilogue(activation="relu")).name == "hopper_wgmma_fp8"
    device.compute_capability = "10.0"
    with pytest.raises(UnsupportedError, match="all of this device with epilogues: xla_dot_bf16, ") as refusal:
        api._default_kernel(problem, Epilogue(activation="relu"))
    assert refusal.value.values["epilogue"] == "relu"


FULL = Config(tile_m=128, tile_n=112, stages=7)


def test_a_config_without_room_for_the_vectors_is_refused_and_another_chosen() -> None:
    kernel, problem = kernel_named("hopper_wgmma_fp8"), GemmProblem(1, 2048, 2048, *["fp8_e4m3"] * 3)
    given = epilogues.shapes(problem, "scales_bias")
    kernel.check(problem, FULL)
    with pytest.raises(UnsupportedError, match="232448 bytes of shared memory; a block has 231424; use fewer stages"):
        _wgmma_epilogue.check_room("hopper_wgmma_fp8", problem, FULL, given)
    picky = replace(kernel, candidates=lambda _: [FULL, replace(FULL, stages=6)])
    assert api.first_admitted(picky, problem) == FULL
    assert api.first_admitted(picky, problem, given) == replace(FULL, stages=6)


@pytest.mark.parametrize("shape", [(2048, 6144, 4096), (8192, 8192, 8192)])
@pytest.mark.parametrize("out_format", ["bf16", "fp8_e4m3", "f32"])
def test_the_first_guess_of_large_shapes_has_room_for_all_vectors(shape: tuple[int, int, int], out_format: str) -> None:
    kernel, problem = kernel_named("hopper_wgmma_fp8"), GemmProblem(*shape, "fp8_e4m3", "fp8_e4m3", out_format)
    assert (
        api.first_admitted(kernel, problem, epilogues.shapes(problem, "scales_bias")) == kernel.candidates(problem)[0]
    )


def test_machine_code_for_sm_90a_does_not_spill() -> None:
    fp8, bf16 = ("hopper_wgmma_fp8", "fp8_e4m3"), ("hopper_wgmma_bf16", "bf16")
    cases = [
        aot.CompileCase(kernel, "h200", GemmProblem(*shape, fmt, fmt, out), asdict(config), epilogue=name)
        for (kernel, fmt), shape, config, out, name in (
            (fp8, (8192, 8192, 8192), Config(128, 256, 4, "m", cluster_m=2), "fp8_e4m3", "scales_bias_gelu"),
            (fp8, (257, 1040, 4096), Config(128, 168, 5, "m"), "fp8_e5m2", "scales_bias_relu_residual_outscale"),
            (bf16, (8192, 8192, 8192), Config(256, 128, 4, "m", cluster_n=2), "bf16", "scales_bias_silu_residual"),
        )
    ]
    for case, outcome in zip(cases, aot.compile_many(cases), strict=True):
        assert outcome.code is not None, outcome.reason
        assert outcome.code.spill_bytes == 0
        assert outcome.code.count("LDL") == outcome.code.count("STL") == 0
        assert outcome.code.shared_memory_bytes <= _mosaic_gpu.SHARED_MEMORY_BYTES
        assert outcome.code.count("QGMMA" if case.kernel.endswith("fp8") else "HGMMA") >= 4
        assert outcome.code.count("UTMALDG.1D") >= 2


def test_an_empty_epilogue_compiles_to_the_plain_kernel() -> None:
    problem = GemmProblem(4096, 4096, 4096, "fp8_e4m3", "fp8_e4m3")
    plain = aot.compile_case(aot.CompileCase("hopper_wgmma_fp8", "h200", problem, asdict(Config(128, 256, 4, "m"))))
    assert plain.count("UTMALDG.1D") == 0
    assert plain.instruction_count < 1000


@pytest.mark.parametrize(
    "name", ["none", "scales_bias_gelu", "rowscale", "columnscale_relu", "bias_silu_residual_outscale"]
)
def test_a_name_says_its_parts(name: str) -> None:
    assert epilogue(PROBLEM, name).name == name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bais_gelu", "unknown epilogue part 'bais'; did you mean bias"),
        ("gelu_bias", "not once each in the order"),
        ("bias_bias", "not once each in the order"),
        ("relu_gelu", "more than one of relu, gelu, silu"),
        ("rowscale_columnscale", "together are called scales"),
        ("none_bias", "unknown epilogue part 'none'"),
    ],
)
def test_what_is_no_name_is_refused(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        epilogue_parts(name)


@pytest.mark.parametrize("wrong", ["relu", {"bias": 1.0}, Epilogue])
@pytest.mark.parametrize("axes", [2, 3])
def test_what_is_no_epilogue_is_refused_by_name(wrong, axes):
    x = jnp.ones((2, 8, 16)[-axes:])
    with pytest.raises(ValueError, match=r"gemm: epilogue is .*, not a narrowgemm.Epilogue\(...\) or None"):
        narrowgemm.gemm(x, x, kernel="xla_dot_f32", epilogue=wrong)


@pytest.mark.parametrize(
    ("change", "told"),
    [(lambda leaf: leaf.astype(jnp.bfloat16), "bias has dtype bfloat16, not float32"), (lambda _: 1.0, "bias is 1.0")],
)
def test_an_epilogue_that_a_transformation_has_changed_is_checked_again(change, told):
    x, changed = jnp.ones((8, 16)), jax.tree.map(change, Epilogue(bias=jnp.ones(8)))
    with pytest.raises(ValueError, match=told):
        narrowgemm.gemm(x, x, kernel="xla_dot_f32", epilogue=changed)
