"""Roofs of this CPU, small and quick, and of a GPU's cache as far as a CPU can say."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from narrowbench.config import Campaign, Protocol
from narrowbench.measure import roofs, runner
from narrowbench.measure.devices import LocalDevice
from narrowbench.store import jsonl
from narrowbench.store.rows import Row
from narrowgemm.errors import UnsupportedError


def _rows(tmp_path: Path) -> list[Row]:
    return jsonl.read([tmp_path / "rows.jsonl"])


def test_roofs_are_measured_once_each_with_what_was_fastest(
    cpu: LocalDevice, campaign: Campaign, protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roofs, "_CPU_SHAPES", ((64, 64, 64), (128, 64, 64)))
    monkeypatch.setattr(roofs, "_CPU_ARRAY_BYTES", 2**16)
    out = tmp_path / "rows.jsonl"
    cpu = dataclasses.replace(cpu, cache_bytes=2**20)
    assert runner.run_roofs(cpu, campaign, protocol, out) == runner.JobReport({"ok": 5}, 0, ())
    assert runner.run_roofs(cpu, campaign, protocol, out) == runner.JobReport({}, 5, ())
    found = {(row.case.quantity, row.case.format): row for row in _rows(tmp_path)}
    assert set(found) == {("read", None), ("copy", None), ("cache_read", None), ("flop", "f32"), ("flop", "bf16")}
    copied = found["copy", None]
    assert copied.case.work == 2 * 3 * 2**20
    assert copied.config is not None
    assert copied.config["method"] in ("every word inverted", "every word inverted in place")
    cached = found["cache_read", None]
    assert cached.timing is not None
    assert cached.timing.rotation_bytes < cpu.cache_bytes, "operands stay in the cache"
    assert cached.case.work >= cpu.cache_bytes // 4
    multiplied = found["flop", "f32"]
    assert multiplied.config is not None
    assert multiplied.config["kernel"] == "xla_dot_f32"
    assert multiplied.case.distribution == "normal"
    assert multiplied.accuracy is not None


def test_a_campaign_may_name_the_formats_of_its_roofs(
    cpu: LocalDevice, campaign: Campaign, protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roofs, "_CPU_SHAPES", ((64, 64, 64),))
    monkeypatch.setattr(roofs, "_CPU_ARRAY_BYTES", 2**16)
    of_bf16 = campaign.model_copy(update={"roof_formats": ["bf16"]})
    assert runner.run_roofs(cpu, of_bf16, protocol, tmp_path / "rows.jsonl").done == {"ok": 4}
    assert [row.case.format for row in _rows(tmp_path)] == [None, None, None, "bf16"]


def test_a_roof_that_nothing_reaches_is_a_row_with_the_reasons(
    cpu: LocalDevice, campaign: Campaign, protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise UnsupportedError("xla_dot", {}, "is not for today", "wait")

    monkeypatch.setattr(roofs, "prepare", refuses)
    monkeypatch.setattr(roofs, "_CPU_ARRAY_BYTES", 2**16)
    report = runner.run_roofs(cpu, campaign, protocol, tmp_path / "rows.jsonl")
    assert report.done == {"ok": 3, "unsupported": 2}
    assert "is not for today" in str(_rows(tmp_path)[-1].reason)


def test_gpus_have_roofs_on_zeros_and_on_normal_data() -> None:
    names = [str(roof) for roof in roofs.roofs_of("hopper", ["burst"])]
    assert "flop fp8_e4m3 zeros burst" in names
    assert "flop fp8_e4m3 normal burst" in names
    assert "read burst" in names


def test_roofs_that_were_stored_before_another_was_added_are_not_measured_again(
    cpu: LocalDevice, campaign: Campaign, protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roofs, "_CPU_SHAPES", ((64, 64, 64),))
    monkeypatch.setattr(roofs, "_CPU_ARRAY_BYTES", 2**16)
    out = tmp_path / "rows.jsonl"
    of_before = [roof for roof in roofs.roofs_of("cpu", ["burst"]) if roof.quantity != "cache_read"]
    with monkeypatch.context() as before:
        before.setattr(runner, "roofs_of", lambda *_: of_before)
        runner.run_roofs(cpu, campaign, protocol, out)
    assert runner.run_roofs(cpu, campaign, protocol, out) == runner.JobReport({"ok": 1}, 4, ())


def test_a_cache_of_unknown_size_has_no_roof(
    cpu: LocalDevice, campaign: Campaign, protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = dataclasses.replace(cpu, cache_bytes=None, cache_reason="nobody says")
    monkeypatch.setattr(runner, "roofs_of", lambda *_: [roofs.Roof("cache_read", None, None, "burst")])
    assert runner.run_roofs(unknown, campaign, protocol, tmp_path / "rows.jsonl").done == {"unsupported": 1}
    (row,) = _rows(tmp_path)
    assert "needs the last-level cache's size" in str(row.reason)


def test_many_passes_over_a_cached_array_add_up_every_word_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = []
    monkeypatch.setattr(roofs, "workload_of", lambda launch, sets, *_: launches.append((launch, *sets[0])))
    monkeypatch.setattr(roofs, "Prepared", lambda *fields: fields)
    candidate = roofs._many_row_sums(2**16, 2**17)
    *_, method, _ = candidate.prepare(SimpleNamespace(device=SimpleNamespace(platform="cuda")))
    ((launch, words),) = launches
    assert words.shape == (1, 1024), "of 16 rows, none but 1 has no small factor"
    assert candidate.work == method["passes"] * words.nbytes == 2**17
    expected = [np.sum(np.asarray(words) ^ np.uint32(number), axis=-1, dtype=np.uint32) for number in range(32)]
    assert (np.asarray(launch(words)) == np.stack(expected)).all()


@pytest.mark.parametrize(("most", "rows"), [(0, 1), (16, 1), (17, 17), (18, 17), (4071, 4063)])
def test_rows_of_a_cached_array_have_no_small_factor(most: int, rows: int) -> None:
    assert roofs._without_small_factors(most) == rows
