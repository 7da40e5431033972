"""What XLA for Hopper makes of the dots, compiled without a GPU; their results are judged in `test_oracle`."""

import json
import subprocess
import sys
from typing import Any

import pytest

from narrowgemm import aot
from narrowgemm.errors import UnsupportedError
from narrowgemm.gemm import xla_dot
from narrowgemm.gemm.registry import kernel_named
from narrowgemm.problem import GemmProblem
from narrowgemm.targets import target_named

#: Triton's fusions would need the GPU to be chosen well, and hide which call the dot becomes.
SCRIPT = """
import json, sys
import jax, jax.numpy as jnp
from narrowgemm import aot, quantize
from narrowgemm.targets import target_named
from narrowgemm.gemm.hlo import summarize
from narrowgemm.gemm.registry import kernel_named
from narrowgemm.problem import GemmProblem

device = aot.device_of(target_named("h200"))
place = jax.sharding.SingleDeviceSharding(device)
for name, scaled, out in json.load(sys.stdin):
    kernel = kernel_named(name)
    operand = kernel.a_formats[0]
    leaves = jax.eval_shape(lambda x: quantize(x, operand), jax.ShapeDtypeStruct((512, 512), "float32"))
    leaves = leaves if scaled else leaves.codes
    a = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), leaves)
    with jax.default_device(device):
        config = kernel.candidates(GemmProblem(512, 512, 512, operand, operand, out))[0]
        lowered = jax.jit(lambda a, b: kernel.matmul(a, b, config, out)).lower(a, a)
        options = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
        text = lowered.compile(compiler_options=options).as_text()
    summary = summarize(text)
    whole = sum(" fusion(" in line and "[512,512]" in line for line in text[text.index("ENTRY"):].splitlines())
    print(json.dumps([summary.calls, summary.upcast, whole]))
"""

CASES = {
    ("xla_dot_fp8_e4m3", False, "bf16"): "__cublas$lt$matmul$f8(f8e4m3fn, f8e4m3fn) -> bf16",
    ("xla_dot_fp8_e4m3", True, "bf16"): "__cublas$lt$matmul$f8(f8e4m3fn, f8e4m3fn) -> bf16",
    ("xla_dot_fp8_e4m3", True, "f32"): "__cublas$lt$matmul$f8(f8e4m3fn, f8e4m3fn) -> f32",
    ("xla_dot_fp8_e4m3", True, "fp8_e4m3"): "__cublas$lt$matmul$f8(f8e4m3fn, f8e4m3fn) -> f8e4m3fn",
    ("xla_dot_bf16", False, "bf16"): "__cublas$lt$matmul(bf16, bf16) -> bf16",
    ("xla_dot_f32", False, "f32"): "__cublas$lt$matmul(f32, f32) -> f32",
}


@pytest.fixture(scope="module")
def compiled() -> dict[tuple[str, bool, str], list[Any]]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(list(CASES)),
        capture_output=True,
        text=True,
        check=True,
        env=aot.environment_for(target_named("h200")),
    )
    return dict(zip(CASES, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{'scaled' if case[1] else 'plain'}-{case[2]}")
def test_on_hopper_a_dot_is_one_call_of_cublaslt_scales_and_store_included(
    case: tuple[str, bool, str], compiled: dict[tuple[str, bool, str], list[Any]]
) -> None:
    calls, upcast, passes_over_a_matrix = compiled[case]
    assert calls == [CASES[case]]
    assert upcast is False
    assert passes_over_a_matrix == 0


def test_a_fused_scale_is_refused_where_it_means_nothing() -> None:
    with pytest.raises(UnsupportedError, match="use fuse_scale=False"):
        xla_dot.check_fp8(GemmProblem(1, 1, 1, "fp8_e4m3", "fp8_e4m3", "f16"), xla_dot.Fp8Config(True))


def test_a_cpu_is_not_offered_a_scale_that_it_would_round() -> None:
    kernel = kernel_named("xla_dot_fp8_e4m3")
    assert list(kernel.candidates(GemmProblem(1, 1, 1, "fp8_e4m3", "fp8_e4m3"))) == [xla_dot.Fp8Config(False)]
