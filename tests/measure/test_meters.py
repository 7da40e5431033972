"""Meters over fakes and recorded logs: each reads its unit right, or refuses."""

from pathlib import Path
from typing import Any

import pytest
from tests.measure.fakes import FakeBoard, FakeNvml, write_tree

from narrowbench.measure import meters
from narrowbench.measure.meters import AmdSmiMeter, MeterError, NvmlMeter, RaplMeter


def test_nvml_counts_millijoules() -> None:
    board = FakeBoard(energy_mj=5_000)
    meter = NvmlMeter(FakeNvml(board), board.bus_id)
    assert meter.energy_j() == pytest.approx(5.0)
    board.energy_mj += 700_000
    assert meter.energy_j() == pytest.approx(705.0)


def test_a_board_without_a_counter_still_has_a_meter_for_its_power() -> None:
    board = FakeBoard(energy_counter=False)
    assert NvmlMeter(FakeNvml(board), board.bus_id).energy_j() is None


def test_a_board_that_reports_nothing_is_refused() -> None:
    board = FakeBoard(energy_counter=False, power_mw=None)
    with pytest.raises(MeterError, match="neither energy nor power"):
        NvmlMeter(FakeNvml(board), board.bus_id)


def _zone(number: str, name: str, energy_uj: int, range_uj: int) -> dict[str, str]:
    folder = f"sys/class/powercap/intel-rapl:{number}"
    return {
        f"{folder}/name": f"{name}\n",
        f"{folder}/energy_uj": f"{energy_uj}\n",
        f"{folder}/max_energy_range_uj": f"{range_uj}\n",
    }


def test_rapl_adds_packages_leaves_out_their_parts_and_undoes_wraps(tmp_path: Path) -> None:
    files = _zone("0", "package-0", 900, 999) | _zone("0:0", "core", 5, 999) | _zone("1", "package-1", 100, 999)
    meter = RaplMeter(write_tree(tmp_path, files))
    assert meter.energy_j() == 0.0
    write_tree(tmp_path, _zone("0", "package-0", 50, 999) | _zone("1", "package-1", 200, 999))
    assert meter.energy_j() == pytest.approx(250e-6)
    write_tree(tmp_path, _zone("0", "package-0", 60, 999))
    assert meter.energy_j() == pytest.approx(260e-6)


def test_rapl_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(MeterError, match="no RAPL: the kernel lists no powercap"):
        RaplMeter(tmp_path)
    with pytest.raises(MeterError, match="lists no package"):
        RaplMeter(write_tree(tmp_path, _zone("0", "psys", 1, 999)))


def test_rapl_that_only_root_may_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_tree(tmp_path, _zone("0", "package-0", 1, 999))
    plain = meters._line

    def guarded(path: Path) -> str:
        if path.name == "energy_uj":
            raise PermissionError(path)
        return plain(path)

    monkeypatch.setattr(meters, "_line", guarded)
    with pytest.raises(MeterError, match="root alone"):
        RaplMeter(root)


def _amd(*log: dict[str, Any]) -> AmdSmiMeter:
    entries = iter(log)
    return AmdSmiMeter(lambda: next(entries))


def _count(ticks: int, at_s: float) -> dict[str, Any]:
    return {"energy_accumulator": ticks, "counter_resolution": 15.3, "timestamp": int(at_s * 1e9)}


def test_amd_ticks_become_joules() -> None:
    meter = _amd(_count(0, 0.0), _count(1_000_000, 1.0))
    assert meter.energy_j() == pytest.approx(15.3)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"power": 12, "timestamp": 0}, "no energy_accumulator, counter_resolution"),
        ({"energy_accumulator": 1, "counter_resolution": 0.0, "timestamp": 0}, "0.0 µJ a tick"),
    ],
)
def test_amd_counts_without_a_unit_are_refused(entry: dict[str, Any], expected: str) -> None:
    with pytest.raises(MeterError, match=expected):
        _amd(entry)


def test_an_amd_count_that_stands_still_is_refused() -> None:
    meter = _amd(_count(7, 0.0), _count(7, 0.5), _count(7, 2.0))
    assert meter.energy_j() == pytest.approx(7 * 15.3e-6)
    with pytest.raises(MeterError, match="stood still"):
        meter.energy_j()


def test_a_tpu_is_refused_and_what_it_does_report_is_named() -> None:
    """The list is what Google documents for the monitoring library."""
    reason = meters.tpu_refusal(["duty_cycle_pct", "hbm_capacity_usage", "tensorcore_util"])
    assert "no energy (it lists duty_cycle_pct, hbm_capacity_usage, tensorcore_util)" in reason
    assert "whose unit and scope are not known" in meters.tpu_refusal(["chip_power"])
