"""Chips to compile for that are not here, and what the compilers are told of them. No JAX.

None of it is a figure of performance; `configs/devices` has those.
"""

from dataclasses import dataclass

from narrowgemm.errors import unknown_name


@dataclass(frozen=True)
class GpuTarget:
    """An NVIDIA GPU.

    arch:          which kernels run on it, as in `Kernel.arch`.
    capability:    compute capability; code is made for its architecture-specific variant, `sm_100a` for (10, 0).
    cores:         streaming multiprocessors.
    l2_bytes, memory_bytes, bandwidth_bytes_s, clock_hz: as XLA's cost model wants them.
    """

    name: str
    kind: str
    arch: str
    capability: tuple[int, int]
    cores: int
    l2_bytes: int
    memory_bytes: int
    bandwidth_bytes_s: float
    clock_hz: float

    @property
    def description(self) -> str:
        """The GPU as XLA's compiler wants it described. XLA gives FP8 to cuBLASLt from CUDA 12 on alone."""
        major, minor = self.capability
        return f"""
        gpu_device_info {{
          threads_per_block_limit: 1024  threads_per_warp: 32  threads_per_core_limit: 2048  fpus_per_core: 128
          shared_memory_per_block: 49152  shared_memory_per_core: 233472  shared_memory_per_block_optin: 232448
          registers_per_core_limit: 65536  registers_per_block_limit: 65536
          block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
          core_count: {self.cores}  l2_cache_size: {self.l2_bytes}  device_memory_size: {self.memory_bytes}
          memory_bandwidth: {int(self.bandwidth_bytes_s)}  clock_rate_ghz: {self.clock_hz / 1e9}
          cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: ACCELERATED_FEATURES }}
          driver_version: "13.0.0"  runtime_version: "13.0.0"  compile_time_toolkit_version: "13.0.0"
        }}
        platform_name: "CUDA"
        dnn_version_info {{ major: 9 minor: 10 }}
        device_description_str: "{self.kind}"
        """


@dataclass(frozen=True)
class TpuTarget:
    """A TPU: `topology` is the smallest slice of it that libtpu knows by name."""

    name: str
    kind: str
    topology: str
    arch: str = "tpu"


Target = GpuTarget | TpuTarget

#: Source of the GPUs: the target specifications that OpenXLA keeps beside its GPU back end (b200, gb200, b300,
#: h100_sxm, h200), but 148 cores for B300, which devices report and OpenXLA gives as 158.
TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        GpuTarget("b200", "NVIDIA B200", "blackwell", (10, 0), 148, 132_644_864, 191_514_411_008, 7.67232e12, 1.965e9),
        GpuTarget(
            "gb200", "NVIDIA GB200", "blackwell", (10, 0), 152, 135_528_448, 197_897_748_480, 7.928064e12, 2.062e9
        ),
        GpuTarget("b300", "NVIDIA B300", "blackwell", (10, 3), 148, 135_528_448, 297_021_865_984, 7.936e12, 1.965e9),
        GpuTarget(
            "h100", "NVIDIA H100 80GB HBM3", "hopper", (9, 0), 132, 52_428_800, 84_942_979_072, 3.35232e12, 1.98e9
        ),
        GpuTarget("h200", "NVIDIA H200", "hopper", (9, 0), 132, 52_428_800, 151_397_597_184, 4.8e12, 1.98e9),
        TpuTarget("tpu_v5e", "TPU v5e", "v5e:2x2"),
        TpuTarget("tpu_v5p", "TPU v5p", "v5p:2x2x1"),
        TpuTarget("tpu_v6e", "TPU v6e", "v6e:2x2"),
        TpuTarget("tpu_v7x", "TPU v7", "tpu7x:2x2x1"),
    )
}


def target_named(name: str) -> Target:
    """The target called `name`. Raises ValueError, naming the nearest known ones, for any other."""
    if name not in TARGETS:
        raise ValueError(unknown_name("compile target", name, TARGETS))
    return TARGETS[name]
