"""Faults of a real run on this CPU: two at once, and one that is killed half-way."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from narrowbench.config import CONFIGS, load_campaign, load_suite
from narrowbench.measure.devices import local_devices
from narrowbench.store import jsonl

SMOKE = CONFIGS / "smoke.yaml"


@pytest.fixture
def start(tmp_path):
    """Start a measuring job of the smoke campaign in a folder of its own; the device's lock lies there too."""
    cpu = next(device.slug for device in local_devices() if device.device_class == "cpu")
    job = ["--device", cpu, "--kernel", "xla_dot_f32", "--suite", "smoke", "--config", str(SMOKE)]
    running = []

    def call(out: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "narrowbench", "measure", *job, "--out", str(out)]
        environment = os.environ | {"TMPDIR": str(tmp_path)}
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        running.append(process)
        return process

    yield call
    for process in running:
        process.kill()
        process.communicate()


def _wait_for_a_row(out: Path, process: subprocess.Popen[str]) -> None:
    deadline_s = time.monotonic() + 120
    while not jsonl.scan(out).rows:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_a_second_run_is_turned_away_and_a_killed_one_resumes(start, tmp_path):
    out = tmp_path / "rows.jsonl"
    first = start(out)
    _wait_for_a_row(out, first)
    first.send_signal(signal.SIGSTOP)  # it must still be there when the second one comes, however slow that is

    second = start(tmp_path / "other.jsonl")
    _, error = second.communicate(timeout=120)
    assert second.returncode == 2
    assert f"is being measured by process {first.pid}" in error
    assert not (tmp_path / "other.jsonl").exists()

    first.send_signal(signal.SIGKILL)
    first.wait()
    survived = jsonl.scan(out).rows
    assert not out.with_suffix(".done").exists()

    third = start(out)
    output, error = third.communicate(timeout=120)
    assert third.returncode == 0, error
    assert out.with_suffix(".done").exists()
    assert f"{len(survived)} already there" in output
    rows = jsonl.read([out])
    settings = load_campaign(SMOKE).settings("cpu", "xla_dot_f32", "smoke")
    assert len(rows) == len({row.key for row in rows}) == len(settings) * len(load_suite("smoke").shapes)
    assert rows[: len(survived)] == list(survived)
