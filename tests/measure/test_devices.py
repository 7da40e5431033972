"""Devices of machines that are described by fakes, and of this one."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.measure.fakes import FakeBoard, FakeCudaLibrary, FakeNvml, write_tree

from narrowbench.measure import devices, nvidia


def _use_cuda(monkeypatch: pytest.MonkeyPatch, *bus_ids: str) -> None:
    cuda = nvidia.Cuda(FakeCudaLibrary(*bus_ids))
    monkeypatch.setattr(nvidia.Cuda, "open", classmethod(lambda _: (cuda, None)))


def test_one_gpu_has_its_plain_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _use_cuda(monkeypatch, "0000:18:00.0")
    gpu, cpu = devices.local_devices(tmp_path, FakeNvml(FakeBoard()))
    assert (gpu.slug, gpu.device_class, gpu.platform, gpu.ordinal) == ("nvidia-h200", "hopper", "cuda", 0)
    assert gpu.cache_bytes == 60 * 2**20
    assert gpu.uuid_hash is not None
    assert "1234" not in gpu.uuid_hash
    assert cpu.platform == "cpu"


def test_several_gpus_are_numbered_in_cudas_order_and_hidden_ones_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use_cuda(monkeypatch, "0000:b0:00.0", "0000:a0:00.0")
    boards = [FakeBoard(bus_id=f"0000:{bus}:00.0", uuid=bus) for bus in ("a0", "b0", "c0")]
    first, second, _ = devices.local_devices(tmp_path, FakeNvml(*boards))
    assert (first.slug, first.bus_id) == ("nvidia-h200-n0", "0000:b0:00.0")
    assert (second.slug, second.bus_id) == ("nvidia-h200-n1", "0000:a0:00.0")
    assert first.model_slug == second.model_slug == "nvidia-h200"


@pytest.mark.parametrize(("capability", "device_class"), [((10, 3), "blackwell"), ((12, 0), "gpu"), ((8, 0), "gpu")])
def test_only_boards_with_tensor_memory_are_blackwell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], device_class: str
) -> None:
    _use_cuda(monkeypatch, "0000:18:00.0")
    gpu = devices.local_devices(tmp_path, FakeNvml(FakeBoard(capability=capability)))[0]
    assert gpu.device_class == device_class


def test_an_error_of_cuda_that_does_not_mean_hidden_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeCudaLibrary("0000:18:00.0")
    monkeypatch.setattr(library, "cuDeviceGetByPCIBusId", lambda *_: 1)
    with pytest.raises(OSError, match="cuDeviceGetByPCIBusId returned CUDA error 1"):
        nvidia.Cuda(library).ordinal("0000:18:00.0")


def test_a_driver_without_cuda_leaves_the_cache_unknown_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia.Cuda, "open", classmethod(lambda _: (None, "libcuda cannot be loaded: gone")))
    gpu = devices.local_devices(tmp_path, FakeNvml(FakeBoard()))[0]
    assert gpu.cache_bytes is None
    assert gpu.ordinal is None
    assert gpu.cache_reason == "libcuda cannot be loaded: gone"


def test_nvml_that_does_not_start_gives_the_cpu_alone(tmp_path: Path) -> None:
    nvml = FakeNvml(FakeBoard(), starts=False)
    assert [device.platform for device in devices.local_devices(tmp_path, nvml)] == ["cpu"]
    assert nvidia.start_nvml(nvml) == (None, "NVML does not start: Driver Not Loaded")


def _cache(cpu: int, index: int, level: int, size: str, shared_by: str) -> dict[str, str]:
    folder = f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
    return {f"{folder}/size": size, f"{folder}/level": str(level), f"{folder}/shared_cpu_list": shared_by}


def test_a_cpu_whose_model_is_hidden_is_named_by_family_and_its_caches_slices_are_added(tmp_path: Path) -> None:
    root = write_tree(
        tmp_path,
        {"proc/cpuinfo": "processor: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n\nprocessor: 1\n"}
        | _cache(0, 2, 2, "1024K", "0")
        | _cache(0, 3, 3, "32768K", "0-1")
        | _cache(1, 3, 3, "32768K", "0-1")
        | _cache(2, 3, 3, "32768K", "2-3"),
    )
    (cpu,) = devices.local_devices(root, FakeNvml(starts=False))
    assert cpu.slug.startswith("amd-epyc-f25m17-")
    assert cpu.cache_bytes == 64 * 2**20


def test_an_arm_cpu_is_named_by_its_part(tmp_path: Path) -> None:
    root = write_tree(tmp_path, {"proc/cpuinfo": "processor: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"})
    (cpu,) = devices.local_devices(root, FakeNvml(starts=False))
    assert "0x41-0xd4f" in cpu.slug
    assert cpu.cache_bytes is None
    assert cpu.cache_reason is not None


def test_tpus_are_found_on_the_pci_bus(tmp_path: Path) -> None:
    files = {}
    for slot, (vendor, device) in enumerate([("0x1ae0", "0x006f"), ("0x1ae0", "0x006f"), ("0x8086", "0x006f")]):
        files[f"sys/bus/pci/devices/0000:00:0{slot}.0/vendor"] = vendor
        files[f"sys/bus/pci/devices/0000:00:0{slot}.0/device"] = device
    found = devices.local_devices(write_tree(tmp_path, files), FakeNvml(starts=False))
    assert [device.slug for device in found[:-1]] == ["tpu-v6e-n0", "tpu-v6e-n1"]


def test_an_unknown_device_is_refused_with_the_nearest_known_name() -> None:
    here = devices.local_devices()[-1].slug
    with pytest.raises(ValueError, match=f"unknown local device .*{here}"):
        devices.device_named(here[:-1])


def test_listing_devices_imports_no_jax() -> None:
    code = (
        "import sys; from narrowbench.measure import devices; devices.local_devices(); sys.exit('jax' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
