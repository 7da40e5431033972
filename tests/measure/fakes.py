"""Stand-ins for NVML and the CUDA driver, as plain as they can be."""

# ruff: noqa: ARG002, N802 - names and signatures are those of the libraries

import ctypes
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class NvmlError(Exception):
    """What the bindings raise."""

    def __init__(self, text: str, value: int) -> None:
        super().__init__(text)
        self.value = value


@dataclass
class FakeBoard:
    """What NVML would say of one GPU; power, clocks and energy are changed by tests."""

    name: str = "NVIDIA H200"
    bus_id: str = "0000:18:00.0"
    uuid: str = "GPU-1234"
    capability: tuple[int, int] = (9, 0)
    sm_mhz: int = 1700
    memory_mhz: int = 3201
    max_sm_mhz: int = 1980
    temperature: int | None = 50
    power_mw: int | None = 300_000
    limit_mw: int = 700_000
    energy_mj: int = 1_000_000
    event_reasons: int = 0
    instant_power: bool = True
    energy_counter: bool = True
    processes: list[int] = field(default_factory=list)


class FakeNvml:
    """The part of `pynvml` that is used, over `FakeBoard`s; a handle is the board."""

    NVMLError = NvmlError
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0
    NVML_FI_DEV_POWER_INSTANT = 186
    NVML_SUCCESS = 0
    NVML_ERROR_NOT_SUPPORTED = 3

    def __init__(self, *boards: FakeBoard, starts: bool = True) -> None:
        self.boards = boards
        self.starts = starts

    def nvmlInit(self) -> None:
        if not self.starts:
            raise NvmlError("Driver Not Loaded", 9)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.95.05"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13010

    def nvmlDeviceGetCount(self) -> int:
        return len(self.boards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeBoard:
        return self.boards[index]

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: str) -> FakeBoard:
        return next(board for board in self.boards if board.bus_id == bus_id)

    def nvmlDeviceGetPciInfo(self, board: FakeBoard) -> Any:
        return SimpleNamespace(busIdLegacy=board.bus_id)

    def nvmlDeviceGetName(self, board: FakeBoard) -> str:
        return board.name

    def nvmlDeviceGetUUID(self, board: FakeBoard) -> bytes:
        return board.uuid.encode()

    def nvmlDeviceGetCudaComputeCapability(self, board: FakeBoard) -> tuple[int, int]:
        return board.capability

    def nvmlDeviceGetClockInfo(self, board: FakeBoard, kind: int) -> int:
        return board.sm_mhz if kind == self.NVML_CLOCK_SM else board.memory_mhz

    def nvmlDeviceGetMaxClockInfo(self, board: FakeBoard, kind: int) -> int:
        assert kind == self.NVML_CLOCK_SM
        return board.max_sm_mhz

    def nvmlDeviceGetTemperature(self, board: FakeBoard, sensor: int) -> int:
        if board.temperature is None:
            raise NvmlError("Not Supported", 3)
        return board.temperature

    def nvmlDeviceGetPowerUsage(self, board: FakeBoard) -> int:
        if board.power_mw is None:
            raise NvmlError("Not Supported", 3)
        return board.power_mw

    def nvmlDeviceGetEnforcedPowerLimit(self, board: FakeBoard) -> int:
        return board.limit_mw

    def nvmlDeviceGetFieldValues(self, board: FakeBoard, fields: list[int]) -> list[Any]:
        assert fields == [self.NVML_FI_DEV_POWER_INSTANT]
        status = 0 if board.instant_power else 3
        return [SimpleNamespace(nvmlReturn=status, value=SimpleNamespace(uiVal=board.power_mw))]

    def nvmlDeviceGetTotalEnergyConsumption(self, board: FakeBoard) -> int:
        if not board.energy_counter:
            raise NvmlError("Not Supported", 3)
        return board.energy_mj

    def nvmlDeviceGetCurrentClocksEventReasons(self, board: FakeBoard) -> int:
        return board.event_reasons

    def nvmlDeviceGetComputeRunningProcesses(self, board: FakeBoard) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in board.processes]


class FakeCudaLibrary:
    """The driver library, knowing some addresses; a number is a GPU's place in that list."""

    def __init__(self, *bus_ids: str, l2_bytes: int = 60 * 2**20) -> None:
        self.bus_ids = bus_ids
        self.l2 = l2_bytes

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGetByPCIBusId(self, device: Any, bus_id: bytes) -> int:
        if bus_id.decode() not in self.bus_ids:
            return 101
        ctypes.cast(device, ctypes.POINTER(ctypes.c_int))[0] = self.bus_ids.index(bus_id.decode())
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: int) -> int:
        assert attribute == 38
        ctypes.cast(value, ctypes.POINTER(ctypes.c_int))[0] = self.l2
        return 0


def write_tree(root: Path, files: dict[str, str]) -> Path:
    """A folder that looks like part of /proc and /sys."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root
