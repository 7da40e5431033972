"""This machine's CPU as jobs see it, under a lock of the test's own, and a campaign that takes no time."""

import dataclasses
from pathlib import Path

import pytest

from narrowbench.config import CONFIGS, Campaign, Protocol, load_campaign, load_protocol
from narrowbench.measure import lock
from narrowbench.measure.devices import LocalDevice, local_devices

_QUICK = {
    "burst": {"train_s": 0.001, "idle_s": 0.0, "warm_up_s": 0.0, "stop": {"min_samples": 6, "max_samples": 6}},
    "sustained": {"warm_up_s": 0.01, "window_s": 0.01, "start_jitter_s": 0.0,
                  "stop": {"min_samples": 6, "max_samples": 6}},
    "energy": {"idle_s": 0.01},
}  # fmt: skip


@pytest.fixture
def cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalDevice:
    """This machine's CPU, said to have next to no cache, so that few operand sets are needed."""
    monkeypatch.setattr(lock.tempfile, "gettempdir", lambda: str(tmp_path))
    return dataclasses.replace(local_devices()[-1], cache_bytes=2**16, cache_reason=None)


@pytest.fixture
def campaign() -> Campaign:
    known = load_campaign(CONFIGS / "smoke.yaml").model_dump()
    entry = {"kernels": ["xla_dot_f32"], "suites": ["smoke"], "modes": ["burst", "sustained"], "out_formats": ["f32"]}
    return Campaign.model_validate(known | {"plan": {"cpu": [entry]}, "protocol": _QUICK, "roof_formats": None})


@pytest.fixture
def protocol(campaign: Campaign) -> Protocol:
    return load_protocol(campaign)
