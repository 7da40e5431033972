import jax
import jax.numpy as jnp
import pytest

import narrowgemm
from narrowgemm.gemm.hlo import summarize
from narrowgemm.gemm.registry import kernel_named
from narrowgemm.problem import GemmProblem

CUBLASLT_FP8 = """
HloModule jit_matmul_fp8, is_scheduled=true

%wrapped_multiply_computation (param_0: f32[], param_1: f32[]) -> f32[] {
  %param_0 = f32[] parameter(0)
  %param_1 = f32[] parameter(1)
  ROOT %mul.3.1 = f32[] multiply(%param_0, %param_1), metadata={op_name="jit(matmul_fp8)/mul"}
}

ENTRY %main.1 (a.1: f8e4m3fn[512,1024], b.1: f8e4m3fn[768,1024], sa.1: f32[], sb.1: f32[]) -> bf16[512,768] {
  %constant_1 = f32[] constant(1)
  %sb.1 = f32[] parameter(3), sharding={mesh[], replicated}
  %sa.1 = f32[] parameter(2), sharding={mesh[], replicated}
  %wrapped_multiply = f32[] fusion(%sa.1, %sb.1), kind=kLoop, calls=%wrapped_multiply_computation
  %b.1 = f8e4m3fn[768,1024]{1,0} parameter(1), sharding={mesh[], [{}, {}]}
  %a.1 = f8e4m3fn[512,1024]{1,0} parameter(0), sharding={mesh[], [{}, {}]}
  %cublas-gemm.1 = (bf16[512,768]{1,0}, s8[33554432]{0}) custom-call(%a.1, %b.1, %wrapped_multiply, %constant_1), \
custom_call_target="__cublas$lt$matmul$f8", backend_config={"gemm_backend_config":{"alpha_real":1,"scale_mode":1}}
  ROOT %get-tuple-element.1 = bf16[512,768]{1,0} get-tuple-element(%cublas-gemm.1), index=0
}
"""

TRITON_THAT_WIDENS = """
HloModule jit_matmul, is_scheduled=true

%gemm_fusion_dot_computation (parameter_0: f8e4m3fn[512,1024], parameter_1: f8e4m3fn[768,1024]) -> f32[512,768] {
  %parameter_0 = f8e4m3fn[512,1024]{1,0} parameter(0)
  %convert.0 = bf16[512,1024]{1,0} convert(%parameter_0)
  %parameter_1 = f8e4m3fn[768,1024]{1,0} parameter(1)
  %convert.1 = bf16[768,1024]{1,0} convert(%parameter_1)
  ROOT %dot.1 = f32[512,768]{1,0} dot(%convert.0, %convert.1), lhs_contracting_dims={1}, rhs_contracting_dims={1}
}

ENTRY %main.1 (a.1: f8e4m3fn[512,1024], b.1: f8e4m3fn[768,1024]) -> f32[512,768] {
  %b.1 = f8e4m3fn[768,1024]{1,0} parameter(1)
  %a.1 = f8e4m3fn[512,1024]{1,0} parameter(0)
  ROOT %gemm_fusion_dot = f32[512,768]{1,0} fusion(%a.1, %b.1), kind=kCustom, calls=%gemm_fusion_dot_computation, \
backend_config={"fusion_backend_config":{"kind":"__triton_nested_gemm_fusion"}}
}
"""

PALLAS = """
HloModule jit_kernel, is_scheduled=true

ENTRY %main.1 (a.1: f8e4m3fn[512,1024], b.1: f8e4m3fn[768,1024]) -> bf16[512,768] {
  %b.1 = f8e4m3fn[768,1024]{1,0} parameter(1)
  %a.1 = f8e4m3fn[512,1024]{1,0} parameter(0)
  ROOT %custom-call.1 = bf16[512,768]{1,0} custom-call(%a.1, %b.1), custom_call_target="mosaic_gpu_v2"
}
"""

TPU = """
HloModule jit_matmul, is_scheduled=true

ENTRY %main.1 (a.1: bf16[512,1024], b.1: bf16[768,1024]) -> f32[512,768] {
  %b.1 = bf16[768,1024]{1,0:T(8,128)(2,1)} parameter(1)
  %a.1 = bf16[512,1024]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %convolution.1 = f32[512,768]{1,0:T(8,128)} convolution(%a.1, %b.1), dim_labels=bf_oi->bf
}
"""


def test_a_cublaslt_fp8_call_is_an_fp8_multiply() -> None:
    summary = summarize(CUBLASLT_FP8)
    assert summary.calls == ("__cublas$lt$matmul$f8(f8e4m3fn, f8e4m3fn) -> bf16",)
    assert summary.upcast is False


def test_a_fusion_that_widens_inside_is_an_upcast() -> None:
    summary = summarize(TRITON_THAT_WIDENS)
    assert summary.calls == ("__triton_nested_gemm_fusion: dot(bf16, bf16) -> f32",)
    assert summary.upcast is True


def test_an_opaque_kernel_tells_nothing_of_its_multiply() -> None:
    summary = summarize(PALLAS)
    assert summary.calls == ("mosaic_gpu_v2(f8e4m3fn, f8e4m3fn) -> bf16",)
    assert summary.upcast is None


def test_a_dot_that_a_tpu_runs_as_a_convolution_is_found() -> None:
    assert summarize(TPU).calls == ("convolution(bf16, bf16) -> f32",)
    assert summarize(TPU).upcast is False


def test_calls_of_one_kind_are_named_once() -> None:
    twice = CUBLASLT_FP8.replace("  ROOT %get", "  %again = bf16[512,768]{1,0} dot(%a.1, %b.1)\n  ROOT %get")
    twice = twice.replace("  ROOT %get", "  %once_more = bf16[512,768]{1,0} dot(%a.1, %b.1)\n  ROOT %get")
    assert summarize(twice).calls[1:] == ("dot(f8e4m3fn, f8e4m3fn) -> bf16",)


def test_a_text_that_is_no_hlo_is_refused() -> None:
    with pytest.raises(ValueError, match="no ENTRY computation in the text given as HLO, which begins 'module @jit"):
        summarize("module @jit_matmul {}")


@pytest.mark.parametrize(("name", "operand", "upcast"), [("f32", "f32", False), ("fp8_e4m3", "fp8_e4m3", True)])
def test_the_cpu_widens_fp8_and_that_is_labelled(name: str, operand: str, upcast: bool) -> None:
    kernel = kernel_named(f"xla_dot_{name}")
    config = kernel.candidates(GemmProblem(64, 64, 64, operand, operand))[0]
    q = narrowgemm.quantize(jnp.ones((64, 64)), operand)
    text = jax.jit(lambda a, b: kernel.matmul(a, b, config, "bf16")).lower(q, q).compile().as_text()
    assert summarize(text).upcast is upcast
