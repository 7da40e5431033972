from types import SimpleNamespace

import jax
import pytest

from narrowgemm.gemm.device import arch_of, default_device


@pytest.mark.parametrize(
    ("platform", "capability", "arch"),
    [("cpu", None, "cpu"), ("tpu", None, "tpu"), ("gpu", "9.0", "hopper"), ("gpu", "10.3", "blackwell"),
     ("gpu", "12.0", "sm_12.0"), ("gpu", "gfx942", "AMD Instinct")],
)  # fmt: skip
def test_the_architecture_of_a_device(platform: str, capability: str | None, arch: str) -> None:
    device = SimpleNamespace(platform=platform, device_kind="AMD Instinct")
    if capability is not None:
        device.compute_capability = capability
    assert arch_of(device) == arch


def test_the_default_device_follows_the_setting() -> None:
    assert default_device() == jax.devices()[0]
    with jax.default_device(jax.devices()[-1]):
        assert default_device() == jax.devices()[-1]
    with jax.default_device("cpu"):
        assert default_device().platform == "cpu"
