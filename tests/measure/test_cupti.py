"""The private bindings of JAX that device times come through."""

import re
from importlib.metadata import PackageNotFoundError, version

import pytest

from narrowbench.measure import cupti
from narrowbench.measure.cupti import Cupti, CuptiError, KernelRecord


class Bindings:
    """Stands for JAX's module: hands out kernels that were «launched» since the start."""

    def __init__(self) -> None:
        self.launched: list[tuple[str, float]] = []
        self.finalized: list[bool] = []
        self.busy = False

    def _cupti_init(self) -> None:
        if self.busy:
            raise RuntimeError("Attempted to subscribe to CUPTI while another subscriber is active")
        self.launched = []

    def _cupti_get_timings(self, finalize: bool) -> list[tuple[str, float]]:
        self.finalized.append(finalize)
        return self.launched


@pytest.fixture
def bindings(monkeypatch: pytest.MonkeyPatch) -> Bindings:
    fake = Bindings()
    monkeypatch.setattr(cupti, "bindings", lambda: fake)
    return fake


def _cuda_plugin() -> str | None:
    for name in ("jax-cuda13-plugin", "jax-cuda12-plugin"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


@pytest.mark.skipif(_cuda_plugin() is None, reason="JAX's CUDA plugin is not installed")
def test_jax_still_has_its_bindings_where_they_are_looked_for() -> None:
    assert cupti.bindings() is not None, "JAX moved its CUPTI bindings: change narrowbench.measure.cupti"


def test_bindings_that_moved_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    mosaic = pytest.importorskip("jax._src.lib.mosaic_gpu", reason="JAX's CUDA plugin is not installed")
    monkeypatch.setattr(mosaic, "_mosaic_gpu_ext", object())
    with pytest.raises(CuptiError, match=re.escape("has no _cupti_init, _cupti_get_timings")):
        cupti.bindings()


def test_milliseconds_become_seconds_and_cupti_stays_attached_between_trains(bindings: Bindings) -> None:
    collector = Cupti()
    with collector.collect() as collection:
        bindings.launched.append(("gemm", 0.724))
    assert collection.records == [KernelRecord("gemm", pytest.approx(0.724e-3))]
    assert bindings.finalized == [False]
    collector.detach()
    assert bindings.finalized == [False, True]


def test_collecting_ends_when_the_block_fails(bindings: Bindings) -> None:
    with pytest.raises(ValueError, match="a fault"), Cupti().collect():
        raise ValueError("a fault of the launch")
    assert bindings.finalized == [False]


def test_another_profiler_is_named(bindings: Bindings) -> None:
    bindings.busy = True
    with pytest.raises(CuptiError, match="another subscriber"), Cupti().collect():
        pass
