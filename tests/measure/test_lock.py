"""Two runs at once on one device: the second is told who holds it, and a killed holder leaves no lock behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from narrowbench.errors import DeviceBusyError
from narrowbench.measure.devices import LocalDevice, local_devices
from narrowbench.measure.lock import device_lock


@pytest.fixture
def cpu() -> LocalDevice:
    return local_devices()[-1]


def _holder(folder: Path) -> subprocess.Popen[str]:
    code = (
        "import sys, time, pathlib\n"
        "from narrowbench.measure.devices import local_devices\n"
        "from narrowbench.measure.lock import device_lock\n"
        "with device_lock(local_devices()[-1], pathlib.Path(sys.argv[1])):\n"
        "    print('held', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True,
                               env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_second_run_is_told_which_process_holds_the_device(cpu: LocalDevice, tmp_path: Path) -> None:
    with _holder(tmp_path) as holder:
        told = f"{cpu.slug} is being measured by process {holder.pid}"
        with pytest.raises(DeviceBusyError, match=told), device_lock(cpu, tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
    with device_lock(cpu, tmp_path):
        pass


def test_the_lock_can_be_taken_again_after_an_error(cpu: LocalDevice, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), device_lock(cpu, tmp_path):
        raise RuntimeError("a fault while measuring")
    with device_lock(cpu, tmp_path):
        pass
