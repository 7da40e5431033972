"""Micro-benchmarks of what is on a Hopper GPU's chip, interpreted: that they do the work that their rates are of."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from narrowbench.measure import onchip_roofs, roofs


@pytest.mark.parametrize("turns", [4, 7])
def test_every_warpgroup_reads_its_slots_in_turn(monkeypatch: pytest.MonkeyPatch, turns: int) -> None:
    monkeypatch.setattr(onchip_roofs, "READ_TURNS", turns)
    shape = (onchip_roofs.SLOTS, onchip_roofs.SLOT_WORDS)
    words = np.random.default_rng(0).integers(0, 2**32, shape, dtype=np.uint32)
    found = onchip_roofs.read_shared(2, plgpu.InterpretGPUParams())(jnp.asarray(words))
    expected = np.bitwise_xor.reduce([words[turn % onchip_roofs.SLOTS] for turn in range(turns)])
    assert found.shape == (2, onchip_roofs.WARPGROUPS, onchip_roofs.SLOT_WORDS)
    assert (np.asarray(found) == expected).all()
    assert onchip_roofs.shared_bytes(2) == turns * found.size * 4


def test_waiting_takes_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onchip_roofs, "WAIT_TURNS", 3)
    words = np.arange(onchip_roofs.THREADS, dtype=np.uint32)
    expected = words
    for _ in range(3):
        expected = expected * np.uint32(1664525) + np.uint32(1)
    assert (np.asarray(onchip_roofs.wait(jnp.asarray(words), plgpu.InterpretGPUParams())) == expected).all()


def test_a_hopper_gpu_has_them_and_waits_in_long_windows_alone() -> None:
    burst = [roof.quantity for roof in roofs.roofs_of("hopper", ["burst"])]
    assert "shared_read" in burst
    assert "active_idle" not in burst
    assert str(roofs.roofs_of("hopper", ["burst", "sustained"])[-1]) == "active_idle sustained"
    assert {"shared_read", "active_idle"}.isdisjoint(roof.quantity for roof in roofs.roofs_of("cpu", ["sustained"]))
