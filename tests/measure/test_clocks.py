"""Readings of a fake board, the polling thread, and what readings say against a sample."""

import time
from pathlib import Path

import pytest
from tests.measure.fakes import FakeBoard, FakeNvml, write_tree

from narrowbench.measure import clocks
from narrowbench.measure.clocks import CpuSource, NvmlSource, Poller, Reading


@pytest.fixture
def board() -> FakeBoard:
    return FakeBoard()


@pytest.fixture
def source(board: FakeBoard) -> NvmlSource:
    return NvmlSource(FakeNvml(board), board.bus_id)


def test_a_board_is_read_in_si_units(board: FakeBoard, source: NvmlSource) -> None:
    board.event_reasons = 0x04 | 0x20
    reading = source.read()
    assert (reading.sm_hz, reading.memory_hz, reading.temperature_c) == (1700e6, 3201e6, 50.0)
    assert reading.power_w == pytest.approx(300.0)
    assert reading.throttled == {"sw_power_cap", "sw_thermal_slowdown"}
    assert (source.full_sm_hz, source.power_limit_w) == (1980e6, 700.0)


def test_a_board_without_instant_power_is_read_by_its_mean_power() -> None:
    board = FakeBoard(instant_power=False, power_mw=123_000)
    assert NvmlSource(FakeNvml(board), board.bus_id).read().power_w == pytest.approx(123.0)


def test_what_a_board_does_not_support_is_unknown_and_other_errors_are_raised(
    board: FakeBoard, source: NvmlSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    board.temperature = None
    assert source.read().temperature_c is None
    monkeypatch.setattr(FakeNvml, "NVML_ERROR_NOT_SUPPORTED", 99)
    with pytest.raises(FakeNvml.NVMLError, match="Not Supported"):
        source.read()


def test_the_poller_reads_until_the_block_ends(source: NvmlSource) -> None:
    with Poller(source, period_s=0.001) as poller:
        deadline_s = time.perf_counter() + 10
        while len(poller.readings) < 3 and time.perf_counter() < deadline_s:
            time.sleep(0.001)
        now = poller.read_now()
    count = len(poller.readings)
    assert count >= 4
    assert now in poller.readings
    assert poller.between(now.t_s, now.t_s) == [now]
    time.sleep(0.01)
    assert len(poller.readings) == count


def test_an_error_of_the_source_is_raised_on_leaving(source: NvmlSource, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Reading:
        raise RuntimeError("the board fell off the bus")

    monkeypatch.setattr(source, "read", fails)
    with pytest.raises(RuntimeError, match="fell off"), Poller(source, period_s=0.001) as poller:
        poller._thread.join(10)


def test_a_poller_without_a_source_reads_nothing() -> None:
    with Poller(None, period_s=0.001) as poller:
        assert poller.read_now() is None
    assert poller.readings == []


def test_faults_of_a_burst_sample(source: NvmlSource) -> None:
    good = Reading(0.0, sm_hz=1900e6)
    slow = Reading(0.0, sm_hz=345e6)
    hot = Reading(0.0, sm_hz=1900e6, throttled=frozenset({"hw_thermal_slowdown", "sw_power_cap"}))
    capped = Reading(0.0, sm_hz=1900e6, throttled=frozenset({"sw_power_cap"}))
    assert clocks.fault_of_burst([good, capped], source, 0.7) is None
    assert clocks.fault_of_burst([good, slow], source, 0.7) == "clock below the floor of 70% of 1980 MHz"
    assert clocks.fault_of_burst([good, hot], source, 0.7) == "throttled: hw_thermal_slowdown"
    assert clocks.fault_of_burst([], source, 0.7) == "no reading of the clock during the sample"


def test_nothing_is_held_against_a_device_whose_full_clock_is_unknown() -> None:
    assert clocks.fault_of_burst([], None, 0.7) is None
    assert clocks.fault_of_burst([Reading(0.0, sm_hz=1e9)], CpuSource([]), 0.7) is None


def test_flatness_needs_clock_and_temperature() -> None:
    def at(sm_mhz: float, temperature_c: float) -> Reading:
        return Reading(0.0, sm_hz=sm_mhz * 1e6, temperature_c=temperature_c)

    assert clocks.is_flat([at(1410, 60), at(1415, 60)], 0.01, 1.0)
    assert not clocks.is_flat([at(1410, 60), at(1500, 60)], 0.01, 1.0)
    assert not clocks.is_flat([at(1410, 60), at(1410, 62)], 0.01, 1.0)
    assert not clocks.is_flat([at(1410, 60)], 0.01, 1.0)


def test_summary_keeps_the_share_of_readings_that_showed_a_reason(source: NvmlSource) -> None:
    readings = [Reading(0.0, sm_hz=1e9, throttled=frozenset({"sw_power_cap"})), *[Reading(0.0, sm_hz=2e9)] * 3]
    summary = clocks.summarise(readings, source)
    assert summary.sm_hz is not None
    assert (summary.sm_hz.min, summary.sm_hz.median, summary.sm_hz.count) == (1e9, 2e9, 4)
    assert summary.throttle_reasons == {"sw_power_cap": 0.25}
    assert summary.temperature_c is None
    assert summary.power_limit_w == 700.0


def test_a_cpu_is_read_by_cpufreq_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "_usable_cpus", lambda: [0, 1])
    nothing, reason = CpuSource.open(tmp_path)
    assert nothing is None
    assert reason is not None
    folder = "sys/devices/system/cpu"
    write_tree(tmp_path, {f"{folder}/cpu{i}/cpufreq/scaling_cur_freq": f"{2 + i}000000\n" for i in (0, 1, 2)})
    cpu, reason = CpuSource.open(tmp_path)
    assert reason is None
    assert cpu is not None
    assert cpu.read().sm_hz == pytest.approx(2.5e9)
