"""Which kind of machine a computation is for, as far as kernels differ by it."""

from typing import Any

import jax

from narrowgemm.errors import UnsupportedError
from narrowgemm.gemm.registry import Kernel

#: Major CUDA compute capability -> the name in kernels' stems. Consumer Blackwell (12) lacks tcgen05 and is not one.
_CUDA_ARCHES = {"9": "hopper", "10": "blackwell"}


def default_device() -> Any:
    """The device that JAX would run on now: `jax.default_device` where it is set, else the first device."""
    chosen = jax.config.jax_default_device
    if chosen is None:
        return jax.devices()[0]
    return jax.devices(chosen)[0] if isinstance(chosen, str) else chosen


def arch_of(device: Any) -> str:
    """The architecture: "hopper", "blackwell", "tpu" or "cpu"; "sm_…" for other NVIDIA GPUs, else the kind's name."""
    capability = str(getattr(device, "compute_capability", ""))
    if device.platform != "gpu":
        return str(device.platform)
    if not capability[:1].isdigit():
        return str(device.device_kind)
    return _CUDA_ARCHES.get(capability.partition(".")[0], f"sm_{capability}")


def check_device(kernel: Kernel) -> None:
    """Raises UnsupportedError where the default device is not what the kernel is for."""
    arch = arch_of(default_device())
    if kernel.arch not in ("any", arch):
        raise UnsupportedError(
            kernel.name,
            {"device": default_device().device_kind, "arch": arch},
            f"is not what it runs on, {kernel.arch}",
            "use another kernel, or compile it for such a device with narrowgemm.aot",
        )
