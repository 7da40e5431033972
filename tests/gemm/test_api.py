import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, BFloat16

import narrowgemm
from narrowgemm.errors import UnsupportedError
from narrowgemm.formats import reference
from narrowgemm.gemm import api, registry, xla_dot
from narrowgemm.gemm.registry import Kernel
from narrowgemm.problem import GemmProblem
from narrowgemm.tune import table

M, N, K = 5, 7, 64


def normal(rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, K)).astype(np.float32)


A, B = normal(M, 0), normal(N, 1)


def run_python(code: str) -> list[str]:
    """Words that a fresh Python prints, with this one's import path."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()


@pytest.mark.parametrize("first", ["import narrowgemm", "import narrowgemm.gemm.registry"])
def test_the_function_and_the_package_are_one_whichever_is_asked_first(first: str) -> None:
    """In a fresh process, since importing any kernel rebinds the package's name."""
    code = (
        f"{first}\nimport narrowgemm, jax.numpy as jnp\n"
        "one = jnp.ones((2, 32))\n"
        "print(float(narrowgemm.gemm(one, one, out_dtype=jnp.float32)[0, 0]))\n"
        "from narrowgemm.gemm import api\n"
        "print(float(narrowgemm.gemm(one, one)[0, 0]))"
    )
    assert run_python(code) == ["32.0", "32.0"]


def test_public_names_come_without_importing_jax() -> None:
    code = "import sys, narrowgemm; narrowgemm.GemmProblem; print('jax' in sys.modules, *dir(narrowgemm))"
    assert run_python(code) == ["False", *sorted(narrowgemm.__all__)]
    assert all(hasattr(narrowgemm, name) for name in narrowgemm.__all__)
    assert not hasattr(narrowgemm, "gemmm")


def test_the_default_kernel_multiplies_with_k_last_in_both() -> None:
    got = narrowgemm.gemm(jnp.asarray(A), jnp.asarray(B), out_dtype=jnp.float32)
    np.testing.assert_allclose(got, A @ B.T, rtol=1e-5, atol=1e-5)
    narrow = jax.jit(narrowgemm.gemm)(jnp.asarray(A, jnp.bfloat16), jnp.asarray(B, jnp.bfloat16))
    assert isinstance(narrow, BFloat16[Array, f"{M} {N}"])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.float8_e5m2])
def test_tensor_scales_and_every_out_dtype(dtype: Any) -> None:
    qa, qb = narrowgemm.quantize(A, "fp8_e4m3"), narrowgemm.quantize(B, "fp8_e4m3")
    got = narrowgemm.gemm(qa, qb, kernel="xla_dot_fp8_e4m3", out_dtype=dtype)
    exact = reference.dequantize(qa) @ reference.dequantize(qb).T
    assert got.dtype == dtype
    step = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.asarray(got, np.float64), exact, rtol=step, atol=step)


def test_an_fp8_result_saturates() -> None:
    huge = jnp.full((2, 32), 1e3, jnp.float32)
    got = narrowgemm.gemm(huge, -huge, kernel="xla_dot_f32", out_dtype=jnp.float8_e4m3fn)
    assert np.all(np.asarray(got, np.float32) == -448.0)


def test_a_quantized_array_without_scales_is_the_plain_array() -> None:
    plain = jnp.asarray(A, jnp.bfloat16), jnp.asarray(B, jnp.bfloat16)
    wrapped = narrowgemm.quantize(plain[0], "bf16"), narrowgemm.quantize(plain[1], "bf16")
    np.testing.assert_array_equal(narrowgemm.gemm(*plain), narrowgemm.gemm(*wrapped))


def test_operands_that_do_not_fit_are_refused_with_both_shapes() -> None:
    with pytest.raises(ValueError, match=r"a has shape \(5, 64\) and b \(7, 32\)"):
        narrowgemm.gemm(A, B[:, :32])
    with pytest.raises(ValueError, match=r"shape \(0, 64\) has an empty axis"):
        narrowgemm.gemm(A[:0], B)
    with pytest.raises(ValueError, match="out_dtype int8 is not one of float32, bfloat16"):
        narrowgemm.gemm(A, B, out_dtype=jnp.int8)
    for none in ("f32", None, object()):
        with pytest.raises(ValueError, match="is not one of float32, bfloat16"):
            narrowgemm.gemm(A, B, out_dtype=none)


def test_an_unknown_kernel_is_named_with_its_neighbours() -> None:
    with pytest.raises(ValueError, match="unknown kernel 'xla_dot_fp32'; did you mean xla_dot_f32"):
        narrowgemm.gemm(A, B, kernel="xla_dot_fp32")


def test_formats_that_a_kernel_does_not_take_are_named_with_those_it_does() -> None:
    with pytest.raises(UnsupportedError, match="use a in bf16, b in bf16, out in f32") as caught:
        narrowgemm.gemm(A, B, kernel="xla_dot_bf16")
    assert caught.value.values["a_format"] == "f32"


def test_formats_without_a_default_here_are_refused_and_not_widened() -> None:
    q = narrowgemm.quantize(A, "fp8_e4m3")
    with pytest.raises(UnsupportedError, match="those of this device that take these formats: xla_dot_fp8_e4m3"):
        narrowgemm.gemm(q, q)


def test_a_kernel_of_another_device_is_refused() -> None:
    operands = jnp.asarray(A, jnp.bfloat16), jnp.asarray(B, jnp.bfloat16)
    with pytest.raises(UnsupportedError, match="is not what it runs on, blackwell") as caught:
        narrowgemm.gemm(*operands, kernel="blackwell_tcgen05_bf16")
    assert caught.value.values["arch"] == "cpu"


def test_a_config_is_checked_before_it_is_used() -> None:
    q = narrowgemm.quantize(A, "fp8_e4m3")
    with pytest.raises(ValueError, match="is not a Fp8Config of its module"):
        narrowgemm.gemm(q, q, kernel="xla_dot_fp8_e4m3", config=xla_dot.Config())
    with pytest.raises(UnsupportedError, match="out_format=f32 is a choice for BF16 results alone"):
        narrowgemm.gemm(q, q, kernel="xla_dot_fp8_e4m3", config=xla_dot.Fp8Config(True), out_dtype=jnp.float32)


def test_the_first_candidate_that_the_kernel_admits_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(problem: Any, config: int) -> None:
        if config != 2:
            raise UnsupportedError("picky", {"config": config, "m": problem.m}, "is not 2", "use 2")

    seen: list[int] = []

    def matmul(a: Any, b: Any, config: int, out_format: str) -> jax.Array:
        seen.append(config)
        assert out_format == "bf16"
        return jnp.zeros((a.shape[0], b.shape[0]))

    def picky(candidates: tuple[int, ...]) -> Kernel:
        return Kernel("picky", "any", False, ("f32",), ("f32",), ("bf16",), int, check, lambda _: candidates, matmul)

    monkeypatch.setattr("narrowgemm.gemm.api.kernel_named", lambda _: picky((1, 2, 3)))
    narrowgemm.gemm(A, B, kernel="picky")
    assert seen == [2]
    monkeypatch.setattr("narrowgemm.gemm.api.kernel_named", lambda _: picky((1, 3)))
    with pytest.raises(UnsupportedError, match="config=3, m=5 is not 2"):
        narrowgemm.gemm(A, B, kernel="picky")
    monkeypatch.setattr("narrowgemm.gemm.api.kernel_named", lambda _: picky(()))
    with pytest.raises(UnsupportedError, match="no config of this kernel"):
        narrowgemm.gemm(A, B, kernel="picky")


@pytest.mark.parametrize(
    ("capability", "operand", "m", "kernel"),
    [
        ("9.0", "fp8_e4m3", 1, "hopper_wgmma_fp8_decode"),
        ("9.0", "fp8_e4m3", 128, "hopper_wgmma_fp8_decode"),
        ("9.0", "fp8_e4m3", 129, "hopper_wgmma_fp8"),
        ("9.0", "bf16", 64, "hopper_wgmma_bf16"),
        ("10.0", "nvfp4", 64, "blackwell_tcgen05_nvfp4"),
        ("10.3", "fp8_e4m3", 64, "blackwell_tcgen05_fp8"),
        ("10.0", "f32", 64, "xla_dot_f32"),
        ("12.0", "bf16", 64, "xla_dot_bf16"),
    ],
)
def test_a_devices_own_kernel_is_its_default(
    capability: str, operand: str, m: int, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = SimpleNamespace(platform="gpu", compute_capability=capability, device_kind="NVIDIA")
    monkeypatch.setattr(api, "default_device", lambda: device)
    assert api._default_kernel(GemmProblem(m, 64, 64, operand, operand)).name == kernel


def test_kernels_are_listed() -> None:
    assert narrowgemm.kernels() == tuple(sorted(registry.kernel_names()))
    assert "xla_dot_f32" in narrowgemm.kernels()


@pytest.fixture
def tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., GemmProblem]:
    """A function that puts a config for one small problem of `xla_dot_fp8_e4m3` into the table of this CPU."""
    monkeypatch.setattr(table, "TUNED", tmp_path)

    def put(out_format: str = "bf16", **config: Any) -> GemmProblem:
        problem = GemmProblem(M, N, K, "fp8_e4m3", "fp8_e4m3", out_format)
        origin = table.Origin("0.11.2", "2026-01-01", "0" * 64)
        table.merge("xla_dot_fp8_e4m3", "cpu", [table.Entry(problem, config, 1e-6, 2, origin)])
        return problem

    return put


def test_the_tuned_config_of_exactly_this_problem_is_taken(
    tune: Callable[..., GemmProblem], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = registry.kernel_named("xla_dot_fp8_e4m3")
    problem = tune(fuse_scale=True)
    assert api.first_admitted(kernel, problem) == xla_dot.Fp8Config(fuse_scale=False)
    digest = table.table_sha256(kernel.name, "cpu")
    assert digest is not None
    assert api.chosen_config(kernel, problem) == (xla_dot.Fp8Config(fuse_scale=True), digest)
    other = GemmProblem(M + 1, N, K, "fp8_e4m3", "fp8_e4m3")
    assert api.chosen_config(kernel, other) == (xla_dot.Fp8Config(fuse_scale=False), None)

    used = []
    spy = dataclasses.replace(
        kernel, matmul=lambda a, b, config, out: used.append(config) or kernel.matmul(a, b, config, out)
    )
    monkeypatch.setattr(api, "kernel_named", lambda _: spy)
    a, b = (narrowgemm.quantize(jnp.asarray(x), "fp8_e4m3") for x in (A, B))
    narrowgemm.gemm(a, b, kernel=kernel.name)
    narrowgemm.gemm(a, b, kernel=kernel.name, config=xla_dot.Fp8Config(fuse_scale=False))
    assert used == [xla_dot.Fp8Config(fuse_scale=True), xla_dot.Fp8Config(fuse_scale=False)]


@pytest.mark.parametrize(
    ("config", "out_format", "text"),
    [
        ({"fuse_scales": True}, "bf16", "unknown field 'fuse_scales'; did you mean fuse_scale"),
        ({"fuse_scale": True}, "f32", "is none that the kernel admits: .*BF16 results alone.*; tune it again"),
    ],
)
def test_a_tuned_config_that_does_not_fit_the_kernel_is_refused_and_not_replaced(
    tune: Callable[..., GemmProblem], tmp_path: Path, config: dict[str, Any], out_format: str, text: str
) -> None:
    problem = tune(out_format, **config)
    with pytest.raises(ValueError, match=text) as error:
        api.chosen_config(registry.kernel_named("xla_dot_fp8_e4m3"), problem)
    assert str(error.value).startswith(str(tmp_path / "cpu" / "xla_dot_fp8_e4m3.json"))


@pytest.mark.parametrize("given", [None, 1.0, [[1.0]], "text"])
def test_what_is_no_operand_is_named_by_every_function(given: Any) -> None:
    q = narrowgemm.quantize(np.ones((8, 32), np.float32), "mxfp4")
    calls = [
        lambda: narrowgemm.quantize(given, "mxfp4"),
        lambda: narrowgemm.dequantize(given),
        lambda: narrowgemm.shuffle_weights(given, 8),
        lambda: narrowgemm.unshuffle_weights(given),
        lambda: narrowgemm.gemm(given, B),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=f"is a {type(given).__name__}, not"):
            call()
    for wrong in (lambda: narrowgemm.quantize(q, "mxfp4"), lambda: narrowgemm.unshuffle_weights(q)):
        with pytest.raises(ValueError, match="is a QuantizedArray, not"):
            wrong()
