"""Other processes on a GPU are seen, whether or not NVML knows this process by its own number."""

import dataclasses
import os

import pytest
from tests.measure.fakes import FakeBoard, FakeNvml

from narrowbench.measure import share as share_module
from narrowbench.measure.devices import local_devices
from narrowbench.measure.share import GpuShare, open_share


@pytest.fixture
def board() -> FakeBoard:
    return FakeBoard()


@pytest.fixture
def share(board: FakeBoard) -> GpuShare:
    return GpuShare(FakeNvml(board), board.bus_id)


def test_this_process_alone_is_no_other(board: FakeBoard, share: GpuShare) -> None:
    board.processes = [os.getpid()]
    assert share.others() == 0


def test_another_process_is_counted_whenever_it_comes(board: FakeBoard, share: GpuShare) -> None:
    board.processes = [os.getpid(), 1]
    assert share.others() == 1


def test_in_a_container_the_first_to_appear_is_this_process(board: FakeBoard) -> None:
    board.processes = [70_000_001]
    share = GpuShare(FakeNvml(board), board.bus_id)
    board.processes = [70_000_001, 70_000_002]
    assert share.others() == 1
    board.processes = [70_000_002]
    assert share.others() == 0
    board.processes = [70_000_002, 70_000_003]
    assert share.others() == 1


def test_a_second_job_of_a_process_does_not_take_it_for_another(
    board: FakeBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = dataclasses.replace(local_devices()[-1], slug="a-gpu-of-this-test", bus_id=board.bus_id)
    monkeypatch.setattr(share_module.nvidia, "start_nvml", lambda: (FakeNvml(board), None))
    first = open_share(gpu)
    board.processes = [70_000_002]
    assert first.others() == 0
    assert open_share(gpu).others() == 0


def test_sharing_of_a_cpu_cannot_be_known() -> None:
    assert open_share(local_devices()[-1]).others() is None
