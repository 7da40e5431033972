"""The devices of this machine by slug: the host CPU, NVIDIA GPUs, TPUs. JAX is not imported.

A slug names a device model («nvidia-h200», «amd-epyc-9r14-2c»): it is a folder of results and the stem of the
device's profile where there is one. Where a machine has several of a kind, each slug ends in its number.
"""

import os
import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from narrowbench.measure import nvidia
from narrowbench.names import DeviceClass
from narrowgemm.errors import unknown_name
from narrowgemm.slug import slugged

#: Compute capability -> class. Only 10.x has the tensor memory that the kernels for Blackwell need: 12.x does not.
_GPU_CLASSES: Mapping[int, DeviceClass] = {9: "hopper", 10: "blackwell"}
#: PCI device of Google's vendor 0x1ae0 -> TPU generation; as in `jax._src.hardware_utils`.
_TPU_KINDS = {"0x005e": "v4", "0x0062": "v5p", "0x0063": "v5e", "0x006f": "v6e", "0x0076": "v7"}
_GOOGLE = "0x1ae0"
_SIZE_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class LocalDevice:
    """A device of this machine.

    slug:         identity in results and on the command line.
    model_slug:   the same without the number that tells several of a kind apart.
    kind:         what the device calls itself.
    platform:     JAX's name of the platform.
    ordinal:      JAX's number of the device on its platform; None if it cannot be told before JAX runs.
    uuid_hash:    stands for the very board; None where a device has no identity.
    bus_id:       PCI address of a GPU. Never stored in a result.
    cache_bytes:  last-level cache; None with `cache_reason`.
    """

    slug: str
    model_slug: str
    kind: str
    device_class: DeviceClass
    platform: Literal["cpu", "cuda", "tpu"]
    ordinal: int | None
    uuid_hash: str | None
    bus_id: str | None
    cache_bytes: int | None
    cache_reason: str | None


def local_devices(root: Path = Path("/"), nvml: Any = None) -> tuple[LocalDevice, ...]:
    """Every device of this machine that can be measured: GPUs and TPUs first, the host CPU last."""
    return (*_numbered([*_gpus(nvml), *_tpus(root)]), _cpu(root))


def device_named(slug: str) -> LocalDevice:
    """The local device called `slug`. Raises ValueError that names those that are here."""
    devices = {device.slug: device for device in local_devices()}
    if slug not in devices:
        raise ValueError(unknown_name("local device", slug, devices))
    return devices[slug]


def _numbered(devices: list[LocalDevice]) -> list[LocalDevice]:
    """Slugs made unique. Numbers are by position, which is CUDA's own order."""
    count = Counter(device.slug for device in devices)
    seen: Counter[str] = Counter()
    numbered = []
    for device in devices:
        slug = device.slug
        if count[slug] > 1:
            device = replace(device, slug=f"{slug}-n{seen[slug]}")
        seen[slug] += 1
        numbered.append(device)
    return numbered


def _gpus(nvml: Any) -> list[LocalDevice]:
    nvml, reason = nvidia.start_nvml(nvml)
    if reason is not None:
        return []
    cuda, cuda_reason = nvidia.Cuda.open()
    return [_gpu(gpu) for gpu in nvidia.gpus(nvml, cuda, cuda_reason)]


def _gpu(gpu: nvidia.Gpu) -> LocalDevice:
    slug = slugged(gpu.name)
    return LocalDevice(
        slug=slug,
        model_slug=slug,
        kind=gpu.name,
        device_class=_GPU_CLASSES.get(gpu.capability[0], "gpu"),
        platform="cuda",
        ordinal=gpu.ordinal,
        uuid_hash=gpu.uuid_hash,
        bus_id=gpu.bus_id,
        cache_bytes=gpu.l2_bytes,
        cache_reason=gpu.l2_reason,
    )


def _tpus(root: Path) -> list[LocalDevice]:
    found: list[LocalDevice] = []
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        if _read(folder / "vendor") != _GOOGLE:
            continue
        kind = _TPU_KINDS.get(_read(folder / "device") or "")
        if kind is None:
            continue
        slug = f"tpu-{kind}"
        reason = "a TPU has no last-level cache: its vector memory is managed by the program"
        found.append(LocalDevice(slug, slug, f"TPU {kind}", "tpu", "tpu", len(found), None, None, None, reason))
    return found


def _cpu(root: Path) -> LocalDevice:
    kind, family = _cpu_model(root)
    slug = slugged(kind)
    if not any(character.isdigit() for character in slug):
        # A hypervisor that hides the model («AMD EPYC») still passes family and model through.
        slug = "-".join(part for part in (slug, family) if part)
    slug = f"{slug}-{usable_cores()}c"
    cache, reason = _cpu_cache(root)
    return LocalDevice(slug, slug, kind, "cpu", "cpu", 0, None, None, cache, reason)


def _cpu_model(root: Path) -> tuple[str, str | None]:
    """The CPU's name, and what tells its model where the name does not."""
    listing = _read(root / "proc/cpuinfo")
    if listing is None:
        return platform.processor() or platform.machine() or "cpu", None
    fields: dict[str, str] = {}
    for line in listing.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    if "CPU part" in fields:
        return f"{platform.machine()} {fields['CPU implementer']} {fields['CPU part']}", None
    family = f"f{fields['cpu family']}m{fields['model']}" if {"cpu family", "model"} <= fields.keys() else None
    return fields.get("model name", platform.machine()), family


def usable_cores() -> int:
    """CPUs this process may run on, which a container or a batch system often limits."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def _cpu_cache(root: Path) -> tuple[int | None, str | None]:
    """Bytes of the last level of cache, all its slices together, and None; or None and why not."""
    slices: dict[tuple[int, str], int] = {}
    for folder in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cache/index*"):
        size, level, shared_by = (_read(folder / name) for name in ("size", "level", "shared_cpu_list"))
        if size and level and shared_by and size[-1] in _SIZE_UNITS:
            slices[int(level), shared_by] = int(size[:-1]) * _SIZE_UNITS[size[-1]]
    if not slices:
        return None, "sysfs does not list the CPU's caches"
    last = max(level for level, _ in slices)
    return sum(size for (level, _), size in slices.items() if level == last), None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
