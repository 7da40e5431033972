from types import SimpleNamespace

import jax
import numpy as np
import pytest

import narrowgemm
from narrowgemm.errors import UnsupportedError
from narrowgemm.formats import reference
from narrowgemm.gemm import xla_scaled_dot
from narrowgemm.problem import GemmProblem


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp8_e5m2", "nvfp4"])
def test_codes_and_scales_reach_the_dot_in_its_order(name: str) -> None:
    """Through XLA's widened dot on a CPU, which the kernel itself refuses as a baseline."""
    rng = np.random.default_rng(0)
    a, b = (narrowgemm.quantize(rng.normal(size=(rows, 64)).astype(np.float32), name) for rows in (5, 7))
    got = jax.jit(lambda a, b: xla_scaled_dot.matmul(a, b, xla_scaled_dot.Config(), "f32"))(a, b)
    np.testing.assert_allclose(got, reference.dequantize(a) @ reference.dequantize(b).T, rtol=1e-5, atol=1e-5)


def test_a_device_that_would_dequantise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = GemmProblem(16, 16, 64, "nvfp4", "nvfp4")
    with pytest.raises(UnsupportedError, match="would be dequantised before the multiply"):
        xla_scaled_dot.check(problem, xla_scaled_dot.Config())
    q = narrowgemm.quantize(np.ones((2, 32), np.float32), "nvfp4")
    with pytest.raises(UnsupportedError, match="is not what it runs on, blackwell"):
        narrowgemm.gemm(q, q, kernel="xla_scaled_dot_nvfp4")
    b200 = SimpleNamespace(platform="gpu", compute_capability="10.0", device_kind="NVIDIA B200")
    monkeypatch.setattr(xla_scaled_dot, "default_device", lambda: b200)
    xla_scaled_dot.check(problem, *xla_scaled_dot.candidates(problem))
