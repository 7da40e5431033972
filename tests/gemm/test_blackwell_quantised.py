"""Results that the Blackwell kernels quantise themselves, in GPU interpret mode."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import narrowgemm
from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.quantize import quantize
from narrowgemm.gemm import _mosaic_gpu, api
from narrowgemm.gemm._blackwell_plan import Config
from narrowgemm.gemm.registry import kernel_named

SMALL = Config(tile_n=128, stages=2, ctas=1, schedule="static")


def operands(m: int, n: int, k: int) -> tuple[jax.Array, jax.Array]:
    """BF16 operands whose products differ in size from row to row, one of them zero."""
    random = np.random.default_rng(0)
    a = random.standard_normal((m, k)) * np.exp(3 * random.standard_normal((m, 1)))
    a[m // 2] = 0
    return jnp.asarray(a, jnp.bfloat16), jnp.asarray(random.standard_normal((n, k)), jnp.bfloat16)


@pytest.mark.parametrize("out_format", ["mxfp8_e4m3", "mxfp8_e5m2", "mxfp4", "nvfp4"])
def test_the_epilogue_quantises_as_the_library_does(out_format: str) -> None:
    kernel = kernel_named("blackwell_tcgen05_bf16")
    a, b = operands(140, 288, 72)
    exact = jax.jit(lambda a, b: kernel.matmul(a, b, SMALL, "f32", interpret=True))(a, b)
    expected = quantize(exact, out_format)
    assert kernel.matmul_quantised is not None
    quantised = kernel.matmul_quantised
    got = jax.jit(lambda a, b, scale: quantised(a, b, SMALL, out_format, scale, interpret=True))(
        a, b, expected.tensor_scale
    )
    assert not _mosaic_gpu.races_found()
    assert (got.format, got.shape, got.codes.dtype) == (out_format, (140, 288), expected.codes.dtype)
    # NVFP4 divides in FP32: a quotient may fall on the other side of a tie.
    allowed = 1e-3 if out_format == "nvfp4" else 0
    for leaf in ("codes", "scales"):
        ours, theirs = (np.asarray(getattr(array, leaf)).view(np.uint8) for array in (got, expected))
        assert np.mean(ours != theirs) <= allowed


def test_what_the_epilogue_cannot_store_is_refused() -> None:
    kernel = kernel_named("blackwell_tcgen05_bf16")
    a, b = operands(16, 48, 64)
    assert kernel.matmul_quantised is not None
    with pytest.raises(UnsupportedError, match=r"n=48 is not a multiple of 32.*pad n to 64"):
        kernel.matmul_quantised(a, b, SMALL, "mxfp4")
    with pytest.raises(UnsupportedError, match="tile_n=64 is not a multiple of 128"):
        kernel.matmul_quantised(a, b, Config(tile_n=64), "mxfp8_e4m3")
    with pytest.raises(ValueError, match="nvfp4 has an FP32 tensor_scale, which must be known before"):
        kernel.matmul_quantised(a, operands(64, 64, 64)[0], SMALL, "nvfp4")
    with pytest.raises(ValueError, match="fp8_e4m3 has no block scales; matmul stores it"):
        kernel.matmul_quantised(a, b, SMALL, "fp8_e4m3")


def test_a_kernel_without_such_an_epilogue_names_those_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = operands(16, 64, 64)
    with pytest.raises(UnsupportedError, match="use one of blackwell_tcgen05_bf16, "):
        narrowgemm.gemm_quantized(a, b, "mxfp8_e4m3", kernel="xla_dot_bf16")
    monkeypatch.setattr(api, "check_device", lambda _: None)
    out = jax.eval_shape(lambda a, b: api.gemm_quantized(a, b, "mxfp4", kernel="blackwell_tcgen05_bf16"), a, b)
    assert isinstance(out, narrowgemm.QuantizedArray)
    assert SimpleNamespace(codes=out.codes.shape, scales=out.scales.shape) == SimpleNamespace(
        codes=(16, 32), scales=(16, 2)
    )
